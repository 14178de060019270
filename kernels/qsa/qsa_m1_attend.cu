/* QSA of one token, third and fourth launch: attention over the selected blocks of tokens and the tail, in splits, and
 * their merge.
 *
 * Attend: grid (splits of 8 blocks of tokens, KV heads), DIM threads. DIM / 8 lanes share a block of four tokens: they
 * hold its keys and values in registers in 16-byte words, and meet each query head of the KV head in turn. Values then
 * go through shared memory, where a thread owns two columns and half of the tokens for all query heads. The tail is a
 * block of its own behind the selected ones. Reads keys and values once: (n_select * 4 + 3) * DIM * 4 bytes a KV head;
 * writes a partial result of HEADS * DIM floats a split.
 *
 * Merge: grid (query heads, DIM / 64 columns). Sixteen groups of threads share the splits; sums have a fixed order. */

#include "qsa/qsa_m1.cuh"
#include "qsa/qsa_m1.h"

namespace {

enum {
    SPLIT_BLOCKS = 8,
    SPLIT_TOKENS = SPLIT_BLOCKS * QSA_RATIO,
    MAX_SPLITS = QSA_MAX_SELECT / SPLIT_BLOCKS + 1,
    MERGE_GROUPS = 16,
    MERGE_SPLITS = (MAX_SPLITS + MERGE_GROUPS - 1) / MERGE_GROUPS
};

/* A share of every query head's softmax: its largest score, its sum of exponentials, its weighted values. */
struct partials {
    float *largest, *sum; /* [n_heads, n_splits] */
    float *values;        /* [n_heads, n_splits, DIM] */
    int n_splits;
};

/* Of the query at this position: how many blocks it sees, how many of them it takes, and tokens behind the last one. */
struct visible {
    int n_blocks, n_taken, n_tail;
    bool is_all; /* the list is not written then */
    __device__ visible(int64_t position, int n_select) {
        n_blocks = (int)((position + 1) / QSA_RATIO);
        n_tail = (int)((position + 1) % QSA_RATIO);
        is_all = n_blocks <= n_select;
        n_taken = min(n_blocks, n_select);
    }
    __device__ int n_splits() const { return (n_taken + (n_tail > 0) + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS; }
};

template <int DIM, int HEADS>
__global__ void __launch_bounds__(DIM) qsa_m1_attend_f16_kernel(stamp_t stamp, qsa_attend_args_t args, partials out) {
    constexpr int LANES = DIM / 8, PADDED = (HEADS + 3) / 4 * 4, PAIRS = DIM / 2, HALF = SPLIT_TOKENS / 2;
    constexpr int VALUES_BYTES = SPLIT_TOKENS * DIM * 2, SUMS_BYTES = HEADS * DIM * 4;
    __shared__ __align__(16) unsigned char buffer[VALUES_BYTES > SUMS_BYTES ? VALUES_BYTES : SUMS_BYTES];
    __shared__ float4 weights[SPLIT_TOKENS][PADDED / 4];

    next_start();
    visible seen(*args.start_pos, (int)args.shape.n_select);
    if ((int)blockIdx.x >= seen.n_splits()) return;
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, block = (int)blockIdx.x * SPLIT_BLOCKS + group;
    int n_tokens = block < seen.n_taken ? QSA_RATIO : block == seen.n_taken ? seen.n_tail : 0;
    int64_t kv_head = blockIdx.y, head = kv_head * HEADS;

    previous_wait(stamp);
    const uint4 *query = (const uint4 *)(args.q + head * DIM) + lane;
    uint4 queries[HEADS], keys[QSA_RATIO], values[QSA_RATIO];
    int64_t first = (int64_t)seen.n_blocks * QSA_RATIO;
    if (block < seen.n_taken) first = (int64_t)(seen.is_all ? block : args.blocks[block]) * QSA_RATIO;
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        queries[h] = query[h * LANES];
    int64_t at = (kv_head * args.cache.capacity + first) * LANES + lane;
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        keys[i] = i < n_tokens ? ((const uint4 *)args.cache.k)[at + i * LANES] : uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        values[i] = i < n_tokens ? ((const uint4 *)args.cache.v)[at + i * LANES] : uint4{0, 0, 0, 0};

    float scale = rsqrtf((float)DIM), k[QSA_RATIO][8];
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        unpack8(keys[i], k[i]);
    int token = group * QSA_RATIO + sums4_index<LANES>();
    bool is_there = sums4_index<LANES>() < n_tokens;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float q[8], dots[QSA_RATIO] = {};
        unpack8(queries[h], q);
#pragma unroll
        for (int i = 0; i < QSA_RATIO; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                dots[i] = fmaf(q[j], k[i][j], dots[i]);
        }
        float dot = sums4<LANES>(dots);
        if (lane % (LANES / 4) == 0) ((float *)weights[token])[h] = is_there ? dot * scale : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        ((uint4 *)buffer)[(group * QSA_RATIO + i) * LANES + lane] = values[i];
    __syncthreads();

    for (int h = threadIdx.x / WARP; h < HEADS; h += DIM / WARP) { /* by a warp, a lane a token */
        float *own = (float *)weights[threadIdx.x % WARP] + h;
        float score = *own, largest = score;
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        float weight = __expf(score - largest), sum = lanes_sum<WARP>(weight);
        *own = weight;
        if (threadIdx.x % WARP == 0) {
            out.largest[(head + h) * out.n_splits + blockIdx.x] = largest;
            out.sum[(head + h) * out.n_splits + blockIdx.x] = sum;
        }
    }
    __syncthreads();

    int pair = threadIdx.x % PAIRS, half = threadIdx.x / PAIRS;
    float2 sums[PADDED];
#pragma unroll
    for (int h = 0; h < PADDED; h++)
        sums[h] = {0.0f, 0.0f};
#pragma unroll 4
    for (int i = half * HALF; i < (half + 1) * HALF; i++) {
        float2 value = __half22float2(((const __half2 *)buffer)[i * PAIRS + pair]);
#pragma unroll
        for (int h = 0; h < PADDED; h += 4) {
            float4 weight = weights[i][h / 4];
            sums[h].x = fmaf(weight.x, value.x, sums[h].x);
            sums[h].y = fmaf(weight.x, value.y, sums[h].y);
            sums[h + 1].x = fmaf(weight.y, value.x, sums[h + 1].x);
            sums[h + 1].y = fmaf(weight.y, value.y, sums[h + 1].y);
            sums[h + 2].x = fmaf(weight.z, value.x, sums[h + 2].x);
            sums[h + 2].y = fmaf(weight.z, value.y, sums[h + 2].y);
            sums[h + 3].x = fmaf(weight.w, value.x, sums[h + 3].x);
            sums[h + 3].y = fmaf(weight.w, value.y, sums[h + 3].y);
        }
    }
    __syncthreads(); /* the values have been read */
    float2 *others = (float2 *)buffer;
    if (half == 1) {
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            others[h * PAIRS + pair] = sums[h];
    }
    __syncthreads();
    if (half == 1) return;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float2 other = others[h * PAIRS + pair];
        float2 *to = (float2 *)(out.values + ((head + h) * out.n_splits + blockIdx.x) * DIM);
        to[pair] = {sums[h].x + other.x, sums[h].y + other.y};
    }
}

template <int DIM>
__global__ void __launch_bounds__((DIM < 64 ? DIM : 64) / 4 * MERGE_GROUPS)
    qsa_m1_merge_f32_kernel(stamp_t stamp, qsa_attend_args_t args, const __half *projected, partials in) {
    constexpr int COLUMNS = DIM < 64 ? DIM : 64, LANES = COLUMNS / 4;
    __shared__ float factors[MERGE_SPLITS * MERGE_GROUPS];
    __shared__ float4 sums[MERGE_GROUPS][LANES];
    next_start();
    int n_splits = visible(*args.start_pos, (int)args.shape.n_select).n_splits();
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t head = blockIdx.x, column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x;

    previous_wait(stamp);
    float4 values[MERGE_SPLITS];
#pragma unroll
    for (int i = 0; i < MERGE_SPLITS; i++) {
        int split = i * MERGE_GROUPS + group;
        const float4 *from = (const float4 *)(in.values + (head * in.n_splits + split) * DIM) + blockIdx.y * LANES;
        values[i] = split < n_splits ? from[lane] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float gate = threadIdx.x < COLUMNS ? __half2float(projected[(2 * head + 1) * DIM + column]) : 0.0f;
    if (threadIdx.x < WARP) {
        constexpr int PER_LANE = (MAX_SPLITS + WARP - 1) / WARP;
        float largest[PER_LANE], parts[PER_LANE], most = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            int split = i * WARP + threadIdx.x;
            bool is_there = split < n_splits;
            largest[i] = is_there ? in.largest[head * in.n_splits + split] : -INFINITY;
            parts[i] = is_there ? in.sum[head * in.n_splits + split] : 0.0f;
            most = fmaxf(most, largest[i]);
        }
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            largest[i] = __expf(largest[i] - most);
            sum = fmaf(parts[i], largest[i], sum);
        }
        sum = 1.0f / lanes_sum<WARP>(sum);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            int split = i * WARP + threadIdx.x;
            if (split < MERGE_SPLITS * MERGE_GROUPS) factors[split] = largest[i] * sum;
        }
    }
    __syncthreads();
    float4 part = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < MERGE_SPLITS; i++) {
        float factor = factors[i * MERGE_GROUPS + group];
        part.x = fmaf(values[i].x, factor, part.x), part.y = fmaf(values[i].y, factor, part.y);
        part.z = fmaf(values[i].z, factor, part.z), part.w = fmaf(values[i].w, factor, part.w);
    }
    sums[group][lane] = part;
    __syncthreads();
    if (threadIdx.x >= COLUMNS) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MERGE_GROUPS; i++)
        sum += ((const float *)sums[i])[threadIdx.x];
    args.y[head * DIM + column] = __float2half_rn(sum * sigmoidf(gate));
}

template <int DIM, int HEADS>
void launch_splits(const qsa_attend_args_t *args, partials out, const device_queue_t *queue) {
    dim3 grid((unsigned int)out.n_splits, (unsigned int)args->shape.n_kv_heads);
    launch_kernel(queue, qsa_m1_attend_f16_kernel<DIM, HEADS>, grid, DIM, 0, *args, out);
}

} // namespace

status_t launch_qsa_m1_attend(const qsa_attend_args_t *args, const activation_t *projected,
                              const device_queue_t *queue) {
    int64_t dim = args->shape.head_dim, heads = args->shape.n_heads / args->shape.n_kv_heads;
    int n_splits = (int)args->shape.n_select / SPLIT_BLOCKS + 1;
    int64_t n = args->shape.n_heads * n_splits;
    float *workspace = (float *)args->workspace;
    partials parts = {workspace + n * dim, workspace + n * (dim + 1), workspace, n_splits};
    if (dim == 256 && heads == 12)
        launch_splits<256, 12>(args, parts, queue);
    else if (dim == 256 && heads == 6)
        launch_splits<256, 6>(args, parts, queue);
    else if (dim == 256)
        launch_splits<256, 3>(args, parts, queue);
    else if (heads == 4)
        launch_splits<32, 4>(args, parts, queue);
    else
        launch_splits<32, 2>(args, parts, queue);
    TRY(queue_check_launch("qsa_attend"));
    unsigned int n_heads = (unsigned int)args->shape.n_heads;
    if (dim == 256)
        launch_kernel(queue, qsa_m1_merge_f32_kernel<256>, dim3(n_heads, 4), 64 / 4 * MERGE_GROUPS, 0, *args, projected,
                      parts);
    else
        launch_kernel(queue, qsa_m1_merge_f32_kernel<32>, n_heads, 32 / 4 * MERGE_GROUPS, 0, *args, projected, parts);
    return queue_check_launch("qsa_merge");
}
