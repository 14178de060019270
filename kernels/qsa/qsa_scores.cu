#include "device/mma.cuh"
#include "qsa/qsa_scores.cuh"

namespace {

enum { THREADS = 256, TILE_TOKENS = 64, TILE_BLOCKS = 128, MAX_HEADS = 8 };

/* Grid: (blocks / 128, tokens / 64), eight warps, each with 16 tokens and 64 blocks: per index head the products of
 * queries and keys with FP32 sums, then score = sum over heads of relu / sqrt(D), heads in order. Moves queries and
 * keys once a tile. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    qsa_score_tile_kernel(qsa_select_args_t args, int64_t first, int n_tokens, float *scores) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    constexpr int STRIDE = D + 8, PIECES = D / 8, COLUMNS = TILE_BLOCKS / 2 / 8;
    int n_heads = (int)args.shape.index_n_heads, q_stride = n_heads * D + 8; /* rows start in different banks */
    __half *keys = (__half *)memory, *queries = keys + TILE_BLOCKS * STRIDE;
    int ratio = (int)args.shape.ratio, first_block = blockIdx.x * TILE_BLOCKS, first_token = blockIdx.y * TILE_TOKENS;
    int n = min((int)TILE_TOKENS, n_tokens - first_token);
    int64_t position = *args.start_pos + first + first_token; /* of the tile's first token */
    int64_t last_blocks = (position + n) / ratio;             /* complete ones of its last token */
    if (first_block >= last_blocks || last_blocks <= args.shape.n_select) return;

    for (int i = threadIdx.x; i < TILE_BLOCKS * PIECES; i += THREADS) {
        int block = i / PIECES, column = i % PIECES * 8;
        bool there = first_block + block < last_blocks;
        copy_16(keys + block * STRIDE + column,
                args.cache.index_keys + (int64_t)(there ? first_block + block : 0) * D + column, there);
    }
    const __half *index_q = args.index_q + (first + first_token) * n_heads * D;
    for (int i = threadIdx.x; i < TILE_TOKENS * n_heads * PIECES; i += THREADS) {
        int token = i / (n_heads * PIECES), column = i % (n_heads * PIECES) * 8;
        bool there = token < n;
        copy_16(queries + token * q_stride + column, index_q + (there ? token * n_heads * D + column : 0), there);
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = warp / 2 * 16, half = warp % 2 * (TILE_BLOCKS / 2);
    float score[COLUMNS][4] = {};
    for (int head = 0; head < n_heads; head++) {
        float sums[COLUMNS][4] = {};
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            fragment_a a = load_a(queries, q_stride, row, head * D + k);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                uint32_t b[4];
                load_b_transposed(b, keys, STRIDE, k, half + j * 8);
                mma_16816(sums[j], a, b[0], b[1]);
                mma_16816(sums[j + 1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[j][i] += fmaxf(sums[j][i], 0.0f);
        }
    }
    float scale = rsqrtf((float)D);
    int64_t stride = args.cache.capacity / ratio;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int token = row + lane / 4 + i / 2 * 8;
        if (token >= n) continue;
        int64_t n_blocks = (position + token + 1) / ratio;
        float *out = scores + (first_token + token) * stride + first_block;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int block = half + j * 8 + lane % 4 * 2 + i % 2;
            if (first_block + block < n_blocks) out[block] = score[j][i] * scale;
        }
    }
}

template <int D>
void launch_tiles(const qsa_select_args_t *args, int64_t first, int64_t n, float *scores, const device_queue_t *queue) {
    size_t shared_bytes =
        (size_t)(TILE_BLOCKS * (D + 8) + TILE_TOKENS * (args->shape.index_n_heads * D + 8)) * sizeof(__half);
    cudaFuncSetAttribute(qsa_score_tile_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    dim3 grid(blocks_for(args->cache.capacity / args->shape.ratio, TILE_BLOCKS), blocks_for(n, TILE_TOKENS));
    qsa_score_tile_kernel<D><<<grid, THREADS, shared_bytes, queue->stream>>>(*args, first, (int)n, scores);
}

} // namespace

const char *qsa_scores_refusal(const qsa_select_args_t *args, const device_queue_t *queue) {
    if (queue->mma_refusal) return queue->mma_refusal;
    if (args->shape.index_dim != 128 && args->shape.index_dim != 32) return "indexer_head_dim is neither 128 nor 32";
    if (args->shape.index_n_heads > MAX_HEADS) return "more than 8 index heads";
    bool aligned = (uintptr_t)args->index_q % 16 == 0 && (uintptr_t)args->cache.index_keys % 16 == 0;
    return aligned ? NULL : "index queries or keys are not aligned to 16 bytes";
}

void launch_qsa_scores(const qsa_select_args_t *args, int64_t first, int64_t n, float *scores,
                       const device_queue_t *queue) {
    if (args->shape.index_dim == 128)
        launch_tiles<128>(args, first, n, scores, queue);
    else
        launch_tiles<32>(args, first, n, scores, queue);
}
