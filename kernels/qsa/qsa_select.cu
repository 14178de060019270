#include "device/device.cuh"
#include "device/route.h"
#include "linear/linear.h"
#include "qsa/qsa.h"
#include "qsa/qsa_scores.cuh"

namespace {

enum {
    SCORE_THREADS = 256,
    SELECT_THREADS = 1024,
    MAX_SCORES = 8 << 20, /* that stand in the workspace at once */
    LEAST_TOKENS = 64,    /* even where they have more */
    MOST_TOKENS = 1024,
    BINS = 256
};

/* Grid: (any, tokens of the tile), warps striding over the query's complete blocks. score = sum over index heads of
 * relu(index_q . index_key) / sqrt(index_dim). Reads the index keys once for each query. A query that sees all of its
 * blocks needs no scores. Any size. */
__global__ void __launch_bounds__(SCORE_THREADS)
    qsa_score_f16_kernel(qsa_select_args_t args, int64_t first_token, float *scores) {
    const qsa_shape_t &shape = args.shape;
    int64_t token = first_token + blockIdx.y, n_blocks = (*args.start_pos + token + 1) / shape.ratio;
    if (n_blocks <= shape.n_select) return;
    extern __shared__ float4 shared[];
    float *q = (float *)shared; /* [index_n_heads, index_dim] */
    int width = (int)(shape.index_n_heads * shape.index_dim), dim = (int)shape.index_dim;
    for (int i = threadIdx.x; i < width; i += SCORE_THREADS)
        q[i] = __half2float(args.index_q[token * width + i]);
    __syncthreads();
    scores += blockIdx.y * (args.cache.capacity / shape.ratio);
    float scale = rsqrtf((float)dim);
    int lane = threadIdx.x % WARP;
    int64_t first = ((int64_t)blockIdx.x * SCORE_THREADS + threadIdx.x) / WARP;
    for (int64_t block = first; block < n_blocks; block += (int64_t)gridDim.x * (SCORE_THREADS / WARP)) {
        const __half *key = args.cache.index_keys + block * dim;
        float score = 0.0f;
        if (dim % 4 == 0 && shape.index_n_heads == 4) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (int i = lane * 4; i < dim; i += WARP * 4) {
                uint2 word = __ldg((const uint2 *)(key + i));
                float2 low = __half22float2(*(const __half2 *)&word.x),
                       high = __half22float2(*(const __half2 *)&word.y);
#pragma unroll
                for (int head = 0; head < 4; head++) {
                    float4 query = *(const float4 *)(q + head * dim + i);
                    sums[head] = fmaf(low.x, query.x, fmaf(low.y, query.y, sums[head]));
                    sums[head] = fmaf(high.x, query.z, fmaf(high.y, query.w, sums[head]));
                }
            }
#pragma unroll
            for (int head = 0; head < 4; head++)
                score += fmaxf(lanes_sum<WARP>(sums[head]), 0.0f);
            if (lane == 0) scores[block] = score * scale;
            continue;
        }
        for (int head = 0; head < shape.index_n_heads; head++) {
            float sum = 0.0f;
            for (int i = lane; i < dim; i += WARP)
                sum = fmaf(q[head * dim + i], __half2float(key[i]), sum);
            score += fmaxf(lanes_sum<WARP>(sum), 0.0f);
        }
        if (lane == 0) scores[block] = score * scale;
    }
}

/* Inclusive prefix sum over the block's threads of two small counts at once, one in each half of the word. */
__device__ __forceinline__ uint32_t block_prefix(uint32_t value, uint32_t *warp_sums) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        uint32_t below = __shfl_up_sync(0xffffffffu, value, offset);
        if (lane >= offset) value += below;
    }
    if (lane == WARP - 1) warp_sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        uint32_t sum = warp_sums[lane];
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            uint32_t below = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += below;
        }
        warp_sums[lane] = sum;
    }
    __syncthreads();
    return value + (warp ? warp_sums[warp - 1] : 0);
}

/* Scores are sums of values that are not negative, so their bits order as integers do; a NaN stands above all. */
__device__ __forceinline__ uint32_t score_key(float score) { return __float_as_uint(score) & 0x7fffffffu; }

/* Grid: tokens of the tile. Radix selection: four passes find the n_select-th largest key byte by byte, a last pass
 * writes the blocks in rising order, those above the threshold and, of those equal to it, the lowest. */
__global__ void __launch_bounds__(SELECT_THREADS)
    qsa_select_f32_kernel(qsa_select_args_t args, int64_t first_token, const float *scores) {
    __shared__ uint32_t histogram[BINS], warp_sums[WARP], shared_prefix, shared_wanted;
    const qsa_shape_t &shape = args.shape;
    int64_t token = first_token + blockIdx.x;
    int n_blocks = (int)((*args.start_pos + token + 1) / shape.ratio), n_select = (int)shape.n_select;
    int32_t *blocks = args.blocks + token * n_select;
    if (threadIdx.x == 0) args.n_blocks[token] = min(n_blocks, n_select);
    if (n_blocks <= n_select) {
        for (int i = threadIdx.x; i < n_blocks; i += SELECT_THREADS)
            blocks[i] = i;
        return;
    }

    scores += blockIdx.x * (args.cache.capacity / shape.ratio);
    uint32_t prefix = 0, mask = 0;
    int wanted = n_select; /* of the keys that share the prefix */
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int bin = threadIdx.x; bin < BINS; bin += SELECT_THREADS)
            histogram[bin] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n_blocks; i += SELECT_THREADS) {
            uint32_t key = score_key(scores[i]);
            if ((key & mask) == prefix) atomicAdd(&histogram[key >> shift & (BINS - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x <
            WARP) { /* lane l looks after 8 bins from the top; the one that holds the wanted key goes on */
            int bin = BINS - 1 - (int)threadIdx.x * (BINS / WARP), own = 0;
#pragma unroll
            for (int i = 0; i < BINS / WARP; i++)
                own += (int)histogram[bin - i];
            int above = own;
#pragma unroll
            for (int offset = 1; offset < WARP; offset *= 2) {
                int before = __shfl_up_sync(0xffffffffu, above, offset);
                if (threadIdx.x >= offset) above += before;
            }
            above -= own;
            if (above < wanted && above + own >= wanted) {
                while (above + (int)histogram[bin] < wanted)
                    above += (int)histogram[bin--];
                shared_prefix = prefix | (uint32_t)bin << shift;
                shared_wanted = (uint32_t)(wanted - above);
            }
        }
        __syncthreads();
        prefix = shared_prefix;
        wanted = (int)shared_wanted;
        mask |= (uint32_t)(BINS - 1) << shift;
    }

    int n_above = 0, n_equal = 0; /* among the blocks before this round's */
    for (int first = 0; first < n_blocks; first += SELECT_THREADS) {
        int block = first + threadIdx.x;
        uint32_t key = block < n_blocks ? score_key(scores[block]) : 0;
        bool above = block < n_blocks && key > prefix, equal = block < n_blocks && key == prefix;
        uint32_t counts = block_prefix((uint32_t)above << 16 | (uint32_t)equal, warp_sums);
        int above_here = n_above + (int)(counts >> 16), equal_here = n_equal + (int)(counts & 0xffffu);
        if (above || (equal && equal_here <= wanted)) blocks[above_here + min(equal_here, wanted) - 1] = block;
        uint32_t total = warp_sums[WARP - 1];
        n_above += (int)(total >> 16);
        n_equal += (int)(total & 0xffffu);
        __syncthreads(); /* warp_sums is written again */
    }
}

/* Queries whose scores stand in the workspace at once: few enough for the L2 at usual lengths. */
int64_t n_at_once(const qsa_select_args_t *args) {
    int64_t n = MAX_SCORES / (args->cache.capacity / args->shape.ratio);
    n = n < LEAST_TOKENS ? (int64_t)LEAST_TOKENS : n > MOST_TOKENS ? (int64_t)MOST_TOKENS : n;
    return n < args->n_tokens ? n : args->n_tokens;
}

} // namespace

size_t qsa_select_cuda_workspace_bytes(const qsa_select_args_t *args) {
    if (args->cache.capacity < args->shape.ratio) return 0;
    return (size_t)(n_at_once(args) * (args->cache.capacity / args->shape.ratio)) * sizeof(float);
}

status_t launch_qsa_select(const qsa_select_args_t *args, const device_queue_t *queue) {
    float *scores = (float *)args->workspace;
    size_t q_bytes = (size_t)(args->shape.index_n_heads * args->shape.index_dim) * sizeof(float);
    bool tiles =
        args->n_tokens > LINEAR_MAX_GEMV_TOKENS && route_take(queue, ROUTE_QSA_TILES, qsa_scores_refusal(args, queue));
    int64_t step = n_at_once(args);
    queue_stamp(queue);
    for (int64_t first = 0; first < args->n_tokens; first += step) {
        unsigned int n = (unsigned int)(args->n_tokens - first < step ? args->n_tokens - first : step);
        dim3 grid(n == 1 ? 2u * (unsigned int)queue->n_sms : 16u, n);
        if (tiles)
            launch_qsa_scores(args, first, n, scores, queue);
        else
            qsa_score_f16_kernel<<<grid, SCORE_THREADS, q_bytes, queue->stream>>>(*args, first, scores);
        qsa_select_f32_kernel<<<n, SELECT_THREADS, 0, queue->stream>>>(*args, first, scores);
        TRY(queue_check_launch("qsa_select"));
    }
    return STATUS_OK;
}
