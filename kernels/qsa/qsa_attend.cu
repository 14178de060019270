#include "device/device.cuh"
#include "linear/linear.h"
#include "qsa/qsa.h"

namespace {

enum {
    TILE = 32,      /* tokens whose keys stand in shared memory at once */
    MAX_HEADS = 16, /* query heads of one block */
    MERGE_THREADS = 128,
    KEY_PADDING = 8 /* FP16 values behind a key, so that 32 keys' same columns lie in different banks */
};

/* Tokens that a query attends to: those of its selected blocks, then the tail. */
struct visible {
    const int32_t *blocks;
    int64_t n_selected, tail_start, n, ratio;
    __device__ int64_t position(int64_t i) const {
        return i < n_selected ? blocks[i / ratio] * ratio + i % ratio : tail_start + i - n_selected;
    }
};

__device__ __forceinline__ visible visible_of(const qsa_attend_args_t &args, int64_t token) {
    int64_t ratio = args.shape.ratio, n_tokens = *args.start_pos + token + 1;
    int64_t n_selected = args.n_blocks[token] * ratio, tail_start = n_tokens / ratio * ratio;
    return visible{args.blocks + token * args.shape.n_select, n_selected, tail_start,
                   n_selected + n_tokens - tail_start, ratio};
}

/* One share of a query head's softmax: its largest score, its sum of exponentials, its weighted values. */
struct partials {
    float *largest, *sum; /* [n_tokens, n_heads, n_splits] */
    float *values;        /* [n_tokens, n_heads, n_splits, head_dim] */
};

/* Grid: (splits, KV heads * groups of 16 query heads, tokens). The block walks its share of the visible tokens in tiles
 * with a running softmax in FP32; a thread owns one (key, head) pair of the scores and one column of the values. With
 * one split it writes the output, else partial results. Any size with head_dim <= blockDim.x. */
template <int HEADS> __global__ void qsa_attend_f16_kernel(qsa_attend_args_t args, partials out) {
    extern __shared__ float4 shared[];
    const qsa_shape_t &shape = args.shape;
    int dim = (int)shape.head_dim, key_stride = dim + KEY_PADDING;
    float *p = (float *)shared;        /* [HEADS, TILE] */
    float *largest = p + HEADS * TILE; /* [HEADS], as sum and rescale */
    float *sum = largest + HEADS, *rescale = sum + HEADS;
    __half *q = (__half *)(rescale + HEADS + HEADS % 4); /* [HEADS, head_dim] */
    __half *keys = q + HEADS * dim;                      /* [TILE, key_stride] */

    int heads_per_kv = (int)(shape.n_heads / shape.n_kv_heads), n_groups = (heads_per_kv + HEADS - 1) / HEADS;
    int64_t token = blockIdx.z, kv_head = blockIdx.y / n_groups;
    int first_head = (int)(blockIdx.y % n_groups) * HEADS, n_heads = min(HEADS, heads_per_kv - first_head);
    int64_t head = kv_head * heads_per_kv + first_head, n_splits = gridDim.x;
    visible seen = visible_of(args, token);
    int64_t share = (seen.n + n_splits - 1) / n_splits;
    share = (share + TILE - 1) / TILE * TILE;
    int64_t begin = min(blockIdx.x * share, seen.n), end = min(begin + share, seen.n);

    const __half *q_in = args.q + (token * shape.n_heads + head) * dim;
    for (int i = threadIdx.x; i < n_heads * dim; i += blockDim.x)
        q[i] = q_in[i];
    for (int i = threadIdx.x; i < HEADS; i += blockDim.x) {
        largest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    float values[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        values[h] = 0.0f;
    float scale = rsqrtf((float)dim);
    const __half *k_cache = args.cache.k + kv_head * args.cache.capacity * dim;
    const __half *v_cache = args.cache.v + kv_head * args.cache.capacity * dim;
    bool paired = dim % 2 == 0;

    for (int64_t first = begin; first < end; first += TILE) {
        int n = (int)min((int64_t)TILE, end - first);
        __syncthreads();
        for (int i = threadIdx.x / WARP; i < n; i += (int)blockDim.x / WARP) {
            const __half *key = k_cache + seen.position(first + i) * dim;
            if (paired) {
                for (int j = threadIdx.x % WARP; j < dim / 2; j += WARP)
                    ((__half2 *)(keys + i * key_stride))[j] = ((const __half2 *)key)[j];
            } else {
                for (int j = threadIdx.x % WARP; j < dim; j += WARP)
                    keys[i * key_stride + j] = key[j];
            }
        }
        __syncthreads();
        for (int pair = threadIdx.x; pair < n_heads * TILE; pair += blockDim.x) {
            int i = pair % TILE, h = pair / TILE;
            float dot = 0.0f;
            if (i < n) {
                const __half *key = keys + i * key_stride, *query = q + h * dim;
                if (paired) {
#pragma unroll 8
                    for (int j = 0; j < dim / 2; j++) {
                        float2 a = __half22float2(((const __half2 *)key)[j]);
                        float2 b = __half22float2(((const __half2 *)query)[j]);
                        dot = fmaf(a.x, b.x, fmaf(a.y, b.y, dot));
                    }
                } else {
                    for (int j = 0; j < dim; j++)
                        dot = fmaf(__half2float(key[j]), __half2float(query[j]), dot);
                }
            }
            p[pair] = i < n ? dot * scale : -INFINITY;
        }
        __syncthreads();
        for (int h = threadIdx.x / WARP; h < n_heads; h += (int)blockDim.x / WARP) {
            float score = p[h * TILE + threadIdx.x % WARP], tile_largest = score;
#pragma unroll
            for (int offset = WARP / 2; offset > 0; offset /= 2)
                tile_largest = fmaxf(tile_largest, __shfl_xor_sync(0xffffffffu, tile_largest, offset));
            float next = fmaxf(largest[h], tile_largest), weight = __expf(score - next);
            float tile_sum = lanes_sum<WARP>(weight);
            p[h * TILE + threadIdx.x % WARP] = weight;
            __syncwarp();
            if (threadIdx.x % WARP == 0) {
                rescale[h] = __expf(largest[h] - next);
                sum[h] = sum[h] * rescale[h] + tile_sum;
                largest[h] = next;
            }
        }
        __syncthreads();
        if (threadIdx.x < dim) {
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                values[h] *= h < n_heads ? rescale[h] : 0.0f;
#pragma unroll 4
            for (int i = 0; i < n; i++) {
                float v = __half2float(v_cache[seen.position(first + i) * dim + threadIdx.x]);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < n_heads) values[h] = fmaf(p[h * TILE + i], v, values[h]);
            }
        }
    }
    __syncthreads();

    for (int h = 0; h < n_heads; h++) {
        int64_t at = token * shape.n_heads + head + h;
        if (n_splits == 1) {
            float value = 0.0f;
#pragma unroll
            for (int i = 0; i < HEADS; i++)
                if (i == h) value = values[i];
            if (threadIdx.x < dim) {
                float gate = sigmoidf(__half2float(args.gate[at * dim + threadIdx.x]));
                args.y[at * dim + threadIdx.x] = __float2half_rn(value / sum[h] * gate);
            }
            continue;
        }
        at = at * n_splits + blockIdx.x;
        if (threadIdx.x == 0) {
            out.largest[at] = largest[h];
            out.sum[at] = sum[h];
        }
#pragma unroll
        for (int i = 0; i < HEADS; i++)
            if (i == h && threadIdx.x < dim) out.values[at * dim + threadIdx.x] = values[i];
    }
}

/* Grid: (query heads, tokens), one block a head: joins the splits, in their order. A split past the visible tokens has
 * the sum 0. */
__global__ void __launch_bounds__(MERGE_THREADS)
    qsa_merge_f32_kernel(qsa_attend_args_t args, partials in, int n_splits) {
    int64_t at = (int64_t)blockIdx.y * args.shape.n_heads + blockIdx.x, dim = args.shape.head_dim;
    const float *largest = in.largest + at * n_splits, *sums = in.sum + at * n_splits;
    float most = -INFINITY, sum = 0.0f;
    for (int split = 0; split < n_splits; split++)
        if (sums[split] > 0.0f || isnan(sums[split])) most = fmaxf(most, largest[split]);
    for (int split = 0; split < n_splits; split++)
        if (sums[split] != 0.0f) sum += sums[split] * __expf(largest[split] - most);
    for (int64_t i = threadIdx.x; i < dim; i += MERGE_THREADS) {
        float value = 0.0f;
        for (int split = 0; split < n_splits; split++)
            if (sums[split] != 0.0f)
                value = fmaf(in.values[(at * n_splits + split) * dim + i], __expf(largest[split] - most), value);
        float gate = sigmoidf(__half2float(args.gate[at * dim + i]));
        args.y[at * dim + i] = __float2half_rn(value / sum * gate);
    }
}

/* Few queries are cut into tiles of tokens to fill the device; many fill it as they are. */
int64_t n_splits_of(const qsa_attend_args_t *args) {
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS) return 1;
    return (args->shape.n_select * args->shape.ratio + args->shape.ratio - 1 + TILE - 1) / TILE;
}

template <int HEADS> status_t launch_attend(const qsa_attend_args_t *args, partials out, const device_queue_t *queue) {
    const qsa_shape_t *shape = &args->shape;
    int64_t dim = shape->head_dim, heads_per_kv = shape->n_heads / shape->n_kv_heads;
    int64_t threads = (dim + WARP - 1) / WARP * WARP;
    if (threads < 128) threads = 128;
    size_t shared_bytes = (HEADS * TILE + 4 * HEADS) * sizeof(float) +
                          (size_t)(HEADS * dim + TILE * (dim + KEY_PADDING)) * sizeof(__half);
    if (threads > 1024 || shared_bytes > 48 * 1024)
        return status_fail(STATUS_USAGE, "head_dim %lld: the CUDA backend computes up to 384", (long long)dim);
    dim3 grid((unsigned int)n_splits_of(args), (unsigned int)(shape->n_kv_heads * ((heads_per_kv + HEADS - 1) / HEADS)),
              (unsigned int)args->n_tokens);
    qsa_attend_f16_kernel<HEADS><<<grid, (unsigned int)threads, shared_bytes, queue->stream>>>(*args, out);
    return queue_check_launch("qsa_attend");
}

} // namespace

size_t qsa_attend_cuda_workspace_bytes(const qsa_attend_args_t *args) {
    int64_t n_splits = n_splits_of(args);
    int64_t n_tokens = args->n_tokens < LINEAR_MAX_GEMV_TOKENS ? args->n_tokens : (int64_t)LINEAR_MAX_GEMV_TOKENS;
    if (n_splits == 1) { /* fewer tokens than these may come, and then they are split */
        qsa_attend_args_t few = *args;
        few.n_tokens = n_tokens;
        n_splits = n_splits_of(&few);
    }
    return (size_t)(n_tokens * args->shape.n_heads * n_splits * (args->shape.head_dim + 2)) * sizeof(float);
}

status_t launch_qsa_attend(const qsa_attend_args_t *args, const device_queue_t *queue) {
    int64_t n_splits = n_splits_of(args), n = args->n_tokens * args->shape.n_heads * n_splits;
    float *workspace = (float *)args->workspace;
    partials out = {workspace, workspace + n, workspace + 2 * n};
    int64_t heads_per_kv = args->shape.n_heads / args->shape.n_kv_heads;
    if (heads_per_kv <= 4)
        TRY(launch_attend<4>(args, out, queue));
    else if (heads_per_kv <= 12)
        TRY(launch_attend<12>(args, out, queue));
    else
        TRY(launch_attend<MAX_HEADS>(args, out, queue));
    if (n_splits == 1) return STATUS_OK;
    dim3 grid((unsigned int)args->shape.n_heads, (unsigned int)args->n_tokens);
    qsa_merge_f32_kernel<<<grid, MERGE_THREADS, 0, queue->stream>>>(*args, out, (int)n_splits);
    return queue_check_launch("qsa_merge");
}
