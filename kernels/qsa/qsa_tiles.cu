/* Attention of many tokens: some neighbouring tokens with all query heads of one KV head are the rows of a tile, which
 * walks the union of the blocks that they selected, each row seeing its own. Where every token attends to everything
 * this is dense attention; elsewhere neighbours mostly select the same blocks, and a block that few of them want costs
 * the others only products that are masked. At most the blocks that there are, so never more than dense attention. */

#include "device/mma.cuh"
#include "linear/linear.h"
#include "qsa/qsa_tiles.cuh"

namespace {

enum {
    RATIO = 4,
    WARPS = 8,
    THREADS = WARPS * WARP,
    TILE_ROWS = WARPS * 16,
    MAX_TOKENS = 32, /* of a tile: bits of a mask */
    STEP_BLOCKS = 16,
    STEP_KEYS = STEP_BLOCKS * RATIO,
    WINDOW = 2048, /* blocks whose masks stand in shared memory at once */
    RING = 4
};

/* A block that some of a tile's tokens see, bit i for the i-th; also the one that holds a token's tail. */
struct entry {
    int32_t block;
    uint32_t tokens;
};

int heads_per_kv(const qsa_attend_args_t *args) { return (int)(args->shape.n_heads / args->shape.n_kv_heads); }

int tokens_per_tile(const qsa_attend_args_t *args) {
    int n = TILE_ROWS / heads_per_kv(args);
    return n < MAX_TOKENS ? n : (int)MAX_TOKENS;
}

/* The union of a tile has at most so many entries. */
int64_t max_entries(const qsa_attend_args_t *args) {
    int64_t all = args->cache.capacity / RATIO, chosen = (args->shape.n_select + 1) * tokens_per_tile(args);
    return all < chosen ? all : chosen;
}

/* Grid: one block a tile. Window by window its tokens set their bits, then what is not zero is written in rising order.
 */
__global__ void __launch_bounds__(THREADS)
    qsa_union_kernel(qsa_attend_args_t args, int tile_tokens, int64_t stride, entry *entries, int32_t *n_entries) {
    __shared__ uint32_t masks[WINDOW];
    __shared__ int cursors[MAX_TOKENS], sums[WARPS];
    int first = blockIdx.x * tile_tokens, n = min(tile_tokens, (int)args.n_tokens - first);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, start = (int)*args.start_pos + first, done = 0;
    int n_blocks = (start + n + RATIO - 1) / RATIO;
    if (threadIdx.x < MAX_TOKENS) cursors[threadIdx.x] = 0;
    entries += blockIdx.x * stride;
    for (int base = 0; base < n_blocks; base += WINDOW) {
        for (int i = threadIdx.x; i < WINDOW; i += THREADS)
            masks[i] = 0;
        __syncthreads();
        for (int token = warp; token < n; token += WARPS) {
            const int32_t *blocks = args.blocks + (first + token) * args.shape.n_select;
            int n_selected = args.n_blocks[first + token], cursor = cursors[token], n_inside;
            do {
                int block = cursor + lane < n_selected ? blocks[cursor + lane] : INT32_MAX;
                bool is_inside = block < base + WINDOW;
                if (is_inside) atomicOr(&masks[block - base], 1u << token);
                n_inside = __popc(__ballot_sync(0xffffffffu, is_inside));
                cursor += n_inside;
            } while (n_inside == WARP);
            int tail = (start + token + 1) / RATIO - base;
            if (lane == 0) {
                cursors[token] = cursor;
                if ((start + token + 1) % RATIO && tail >= 0 && tail < WINDOW) atomicOr(&masks[tail], 1u << token);
            }
        }
        __syncthreads();
        constexpr int OWN = WINDOW / THREADS;
        int count = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++)
            count += masks[threadIdx.x * OWN + i] != 0;
        int sum = count;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            int before = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += before;
        }
        if (lane == WARP - 1) sums[warp] = sum;
        __syncthreads();
        int place = done + sum - count;
        for (int i = 0; i < WARPS; i++) {
            if (i < warp) place += sums[i];
            done += sums[i];
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint32_t tokens = masks[threadIdx.x * OWN + i];
            if (tokens) entries[place++] = entry{base + (int)threadIdx.x * OWN + i, tokens};
        }
        __syncthreads(); /* masks and sums have been read */
    }
    if (threadIdx.x == 0) n_entries[blockIdx.x] = done;
}

template <int D> struct tile_shared {
    static constexpr int STRIDE = D + 8; /* rows start in different banks */
    __half q[TILE_ROWS * STRIDE];
    __half k[2][STEP_KEYS * STRIDE], v[2][STEP_KEYS * STRIDE];
    entry entries[RING][STEP_BLOCKS];
};

/* Grid: (tiles, KV heads), the last tiles, whose unions are longest, first. A warp has 16 rows; row r is query head
 * r % heads_per_kv of token r / heads_per_kv. Steps of 64 keys, the next one's on their way meanwhile; running softmax
 * in FP32, its weights rounded to FP16 for the product with the values. Moves the keys and values of the union once a
 * tile, out of the L2. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1) qsa_tile_kernel(qsa_attend_args_t args, int tile_tokens, int64_t stride,
                                                              const entry *entries, const int32_t *n_entries) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    tile_shared<D> &shared = *(tile_shared<D> *)memory;
    constexpr int STRIDE = tile_shared<D>::STRIDE, PIECES = D / 8, COLUMNS = D / 8;
    int tile = gridDim.x - 1 - blockIdx.x, kv_head = blockIdx.y, n_heads = (int)args.shape.n_heads;
    int heads = n_heads / (int)args.shape.n_kv_heads, first = tile * tile_tokens;
    int n_tokens = min(tile_tokens, (int)args.n_tokens - first), start = (int)*args.start_pos + first;
    int last_position = start + n_tokens - 1, n = n_entries[tile], n_steps = (n + STEP_BLOCKS - 1) / STEP_BLOCKS;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const __half *k_cache = args.cache.k + kv_head * args.cache.capacity * D;
    const __half *v_cache = args.cache.v + kv_head * args.cache.capacity * D;
    entries += tile * stride;

    auto entry_at = [&](int index) { return index < n ? entries[index] : entry{0, 0}; };
    auto copy = [&](int step) {
        if (step < n_steps) {
#pragma unroll
            for (int i = threadIdx.x; i < STEP_KEYS * PIECES; i += THREADS) {
                int key = i / PIECES, column = i % PIECES * 8;
                entry of = shared.entries[step % RING][key / RATIO];
                int position = of.block * RATIO + key % RATIO;
                bool there = of.tokens && position <= last_position;
                int64_t from = (int64_t)(there ? position : 0) * D + column;
                copy_16(shared.k[step % 2] + key * STRIDE + column, k_cache + from, there);
                copy_16(shared.v[step % 2] + key * STRIDE + column, v_cache + from, there);
            }
        }
        copies_commit();
    };

    for (int i = threadIdx.x; i < TILE_ROWS * PIECES; i += THREADS) {
        int row = i / PIECES, column = i % PIECES * 8, token = row / heads;
        bool there = token < n_tokens;
        int64_t from = ((int64_t)(first + (there ? token : 0)) * n_heads + kv_head * heads + row % heads) * D + column;
        copy_16(shared.q + row * STRIDE + column, args.q + from, there);
    }
    if (threadIdx.x < 2 * STEP_BLOCKS)
        shared.entries[threadIdx.x / STEP_BLOCKS][threadIdx.x % STEP_BLOCKS] = entry_at(threadIdx.x);
    __syncthreads();
    copy(0);

    int token[2] = {(warp * 16 + g) / heads, (warp * 16 + g + 8) / heads};
    float scale = rsqrtf((float)D) * 1.4426950408889634f; /* to powers of two */
    float out[COLUMNS][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int step = 0; step < n_steps; step++) {
        copy(step + 1);
        entry ahead = {0, 0};
        if (threadIdx.x < STEP_BLOCKS) ahead = entry_at((step + 2) * STEP_BLOCKS + threadIdx.x);
        copies_wait<1>();
        __syncthreads(); /* this step's keys and values are there */
        const __half *k = shared.k[step % 2], *v = shared.v[step % 2];
        const entry *of = shared.entries[step % RING];

        float scores[STEP_KEYS / 8][4] = {};
#pragma unroll
        for (int column = 0; column < D; column += 16) {
            fragment_a a = load_a(shared.q, STRIDE, warp * 16, column);
#pragma unroll
            for (int key = 0; key < STEP_KEYS; key += 16) {
                uint32_t b[4];
                load_b_transposed(b, k, STRIDE, column, key);
                mma_16816(scores[key / 8], a, b[0], b[1]);
                mma_16816(scores[key / 8 + 1], a, b[2], b[3]);
            }
        }

        entry own = of[lane % STEP_BLOCKS];
        uint32_t everyone = n_tokens == 32 ? 0xffffffffu : (1u << n_tokens) - 1;
        if (!__all_sync(0xffffffffu, own.tokens == everyone && own.block * RATIO + RATIO - 1 <= start)) {
#pragma unroll
            for (int j = 0; j < STEP_KEYS / 8; j++) {
                entry here = of[2 * j + t / 2];
                int position = here.block * RATIO + t % 2 * 2;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = i / 2;
                    bool sees = token[row] < n_tokens && here.tokens >> token[row] & 1u &&
                                position + i % 2 <= start + token[row];
                    if (!sees) scores[j][i] = -INFINITY;
                }
            }
        }

        fragment_a weights[STEP_KEYS / 16];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float most = largest[row];
#pragma unroll
            for (int j = 0; j < STEP_KEYS / 8; j++)
                most = fmaxf(most, fmaxf(scores[j][2 * row], scores[j][2 * row + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale, rescale = exp2f(largest[row] * scale - base);
            largest[row] = most;
            sum[row] *= rescale;
#pragma unroll
            for (int j = 0; j < STEP_KEYS / 8; j++) {
                float left = exp2f(fmaf(scores[j][2 * row], scale, -base));
                float right = exp2f(fmaf(scores[j][2 * row + 1], scale, -base));
                sum[row] += left + right;
                weights[j / 2].x[row + j % 2 * 2] = pack_halves(left, right);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                out[j][2 * row] *= rescale;
                out[j][2 * row + 1] *= rescale;
            }
        }
#pragma unroll
        for (int key = 0; key < STEP_KEYS; key += 16) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                uint32_t b[4];
                load_b(b, v, STRIDE, key, j * 8);
                mma_16816(out[j], weights[key / 16], b[0], b[1]);
                mma_16816(out[j + 1], weights[key / 16], b[2], b[3]);
            }
        }
        if (threadIdx.x < STEP_BLOCKS) shared.entries[(step + 2) % RING][threadIdx.x] = ahead;
        __syncthreads(); /* keys and values have been read */
    }

#pragma unroll
    for (int row = 0; row < 2; row++) {
        sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 1);
        sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 2);
        if (token[row] >= n_tokens) continue;
        int head = kv_head * heads + (warp * 16 + g + 8 * row) % heads;
        int64_t at = ((int64_t)(first + token[row]) * n_heads + head) * D + t * 2;
        float factor = 1.0f / sum[row];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float2 gate = __half22float2(*(const __half2 *)(args.gate + at + j * 8));
            *(__half2 *)(args.y + at + j * 8) = __floats2half2_rn(out[j][2 * row] * factor * sigmoidf(gate.x),
                                                                  out[j][2 * row + 1] * factor * sigmoidf(gate.y));
        }
    }
}

template <int D> status_t launch_tiles(const qsa_attend_args_t *args, const device_queue_t *queue) {
    int tile_tokens = tokens_per_tile(args);
    unsigned int n_tiles = blocks_for(args->n_tokens, tile_tokens);
    int64_t stride = max_entries(args);
    entry *entries = (entry *)args->workspace;
    int32_t *n_entries = (int32_t *)(entries + n_tiles * stride);
    qsa_union_kernel<<<n_tiles, THREADS, 0, queue->stream>>>(*args, tile_tokens, stride, entries, n_entries);
    cudaFuncSetAttribute(qsa_tile_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(tile_shared<D>));
    dim3 grid(n_tiles, (unsigned int)args->shape.n_kv_heads);
    qsa_tile_kernel<D>
        <<<grid, THREADS, sizeof(tile_shared<D>), queue->stream>>>(*args, tile_tokens, stride, entries, n_entries);
    return queue_check_launch("qsa_attend");
}

const char *shape_refusal(const qsa_attend_args_t *args) {
    if (args->shape.ratio != RATIO) return "indexer_compress_ratio is not 4";
    if (args->shape.head_dim != 256 && args->shape.head_dim != 32) return "head_dim is neither 256 nor 32";
    return heads_per_kv(args) > TILE_ROWS ? "more than 128 query heads of a KV head" : NULL;
}

} // namespace

const char *qsa_tiles_refusal(const qsa_attend_args_t *args, const device_queue_t *queue) {
    if (queue->mma_refusal) return queue->mma_refusal;
    const char *refusal = shape_refusal(args);
    if (refusal) return refusal;
    bool aligned = (uintptr_t)args->q % 16 == 0 && (uintptr_t)args->cache.k % 16 == 0 &&
                   (uintptr_t)args->cache.v % 16 == 0 && (uintptr_t)args->gate % 4 == 0 && (uintptr_t)args->y % 4 == 0;
    return aligned ? NULL : "q or the caches are not aligned to 16 bytes";
}

size_t qsa_tiles_workspace_bytes(const qsa_attend_args_t *args) {
    if (args->n_tokens <= LINEAR_MAX_GEMV_TOKENS || shape_refusal(args)) return 0;
    size_t n_tiles = blocks_for(args->n_tokens, tokens_per_tile(args));
    return n_tiles * ((size_t)max_entries(args) * sizeof(entry) + sizeof(int32_t));
}

status_t launch_qsa_tiles(const qsa_attend_args_t *args, const device_queue_t *queue) {
    queue_stamp(queue);
    return args->shape.head_dim == 256 ? launch_tiles<256>(args, queue) : launch_tiles<32>(args, queue);
}
