#include "device/device.cuh"
#include "device/route.h"
#include "linear/linear.h"
#include "qsa/qsa.h"
#include "qsa/qsa_tiles.cuh"

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
    int n_selected, tail_start, n, ratio;
    __device__ int position(int i) const {
        return i < n_selected ? blocks[i / ratio] * ratio + i % ratio : tail_start + i - n_selected;
    }
};

__device__ __forceinline__ visible visible_of(const qsa_attend_args_t &args, int64_t token) {
    int ratio = (int)args.shape.ratio, n_tokens = (int)(*args.start_pos + token + 1);
    int n_selected = args.n_blocks[token] * ratio, tail_start = n_tokens / ratio * ratio;
    return visible{args.blocks + token * args.shape.n_select, n_selected, tail_start,
                   n_selected + n_tokens - tail_start, ratio};
}

/* Sixteen bytes of keys and eight values of a query. */
__device__ __forceinline__ float dot8(uint4 key, const float *query, float sum) {
    float k[8];
    unpack8(key, k);
    float4 low = *(const float4 *)query, high = *(const float4 *)(query + 4);
    sum = fmaf(k[0], low.x, fmaf(k[1], low.y, fmaf(k[2], low.z, fmaf(k[3], low.w, sum))));
    return fmaf(k[4], high.x, fmaf(k[5], high.y, fmaf(k[6], high.z, fmaf(k[7], high.w, sum))));
}

/* One share of a query head's softmax: its largest score, its sum of exponentials, its weighted values. */
struct partials {
    float *largest, *sum; /* [n_tokens, n_heads, n_splits] */
    float *values;        /* [n_tokens, n_heads, n_splits, head_dim] */
};

/* Grid: (splits, KV heads * groups of 16 query heads, tokens). The block walks its share of the visible tokens in tiles
 * with a running softmax in FP32; a thread owns one (key, head) pair of the scores and one column of the values. With
 * one split it writes the output, else partial results. Any size with head_dim <= blockDim.x. */
template <int HEADS, bool VECTOR> __global__ void qsa_attend_f16_kernel(qsa_attend_args_t args, partials out) {
    extern __shared__ float4 shared[];
    const qsa_shape_t &shape = args.shape;
    int dim = (int)shape.head_dim, key_stride = dim + KEY_PADDING;
    float *p = (float *)shared;       /* [TILE, HEADS] */
    float *q = p + TILE * HEADS;      /* [HEADS, head_dim] */
    float *largest = q + HEADS * dim; /* [HEADS], as sum and rescale */
    float *sum = largest + HEADS, *rescale = sum + HEADS;
    int *positions = (int *)(rescale + HEADS);   /* [TILE] */
    __half *keys = (__half *)(positions + TILE); /* [TILE, key_stride] */

    int heads_per_kv = (int)(shape.n_heads / shape.n_kv_heads), n_groups = (heads_per_kv + HEADS - 1) / HEADS;
    int64_t token = blockIdx.z, kv_head = blockIdx.y / n_groups;
    int first_head = (int)(blockIdx.y % n_groups) * HEADS, n_heads = min(HEADS, heads_per_kv - first_head);
    int64_t head = kv_head * heads_per_kv + first_head, n_splits = gridDim.x;
    visible seen = visible_of(args, token);
    int share = (seen.n + (int)n_splits - 1) / (int)n_splits;
    share = (share + TILE - 1) / TILE * TILE;
    int begin = min((int)blockIdx.x * share, seen.n), end = min(begin + share, seen.n);

    float scale = rsqrtf((float)dim);
    const __half *q_in = args.q + (token * shape.n_heads + head) * dim;
    for (int i = threadIdx.x; i < HEADS * dim; i += blockDim.x)
        q[i] = i < n_heads * dim ? __half2float(q_in[i]) * scale : 0.0f;
    for (int i = threadIdx.x; i < HEADS; i += blockDim.x) {
        largest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    float values[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        values[h] = 0.0f;
    const __half *k_cache = args.cache.k + kv_head * args.cache.capacity * dim;
    const __half *v_cache = args.cache.v + kv_head * args.cache.capacity * dim + threadIdx.x;

    for (int first = begin; first < end; first += TILE) {
        int n = min((int)TILE, end - first);
        __syncthreads();
        if (threadIdx.x < TILE) positions[threadIdx.x] = seen.position(first + min((int)threadIdx.x, n - 1));
        __syncthreads();
        if (VECTOR) {
            int chunks = dim / 8;
            for (int i = threadIdx.x; i < n * chunks; i += blockDim.x) {
                int key = i / chunks, chunk = i % chunks;
                *(uint4 *)(keys + key * key_stride + chunk * 8) =
                    __ldg((const uint4 *)(k_cache + (int64_t)positions[key] * dim) + chunk);
            }
        } else {
            for (int i = threadIdx.x; i < n * dim; i += blockDim.x)
                keys[i / dim * key_stride + i % dim] = k_cache[(int64_t)positions[i / dim] * dim + i % dim];
        }
        __syncthreads();
        for (int pair = threadIdx.x; pair < HEADS * TILE; pair += blockDim.x) {
            int i = pair % TILE, h = pair / TILE;
            const __half *key = keys + i * key_stride;
            const float *query = q + h * dim;
            float dot = 0.0f;
            if (i < n && VECTOR) {
#pragma unroll 4
                for (int j = 0; j < dim; j += 8)
                    dot = dot8(*(const uint4 *)(key + j), query + j, dot);
            } else if (i < n) {
                for (int j = 0; j < dim; j++)
                    dot = fmaf(__half2float(key[j]), query[j], dot);
            }
            p[i * HEADS + h] = i < n ? dot : -INFINITY;
        }
        __syncthreads();
        for (int h = threadIdx.x / WARP; h < n_heads; h += (int)blockDim.x / WARP) {
            float *own = p + threadIdx.x % WARP * HEADS + h;
            float score = *own, tile_largest = score;
#pragma unroll
            for (int offset = WARP / 2; offset > 0; offset /= 2)
                tile_largest = fmaxf(tile_largest, __shfl_xor_sync(0xffffffffu, tile_largest, offset));
            float next = fmaxf(largest[h], tile_largest), weight = __expf(score - next);
            float tile_sum = lanes_sum<WARP>(weight);
            *own = weight;
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
#pragma unroll 8
            for (int i = 0; i < n; i++) {
                float v = __half2float(v_cache[(int64_t)positions[i] * dim]);
#pragma unroll
                for (int h = 0; h < HEADS; h += 4) {
                    float4 weight = *(const float4 *)(p + i * HEADS + h);
                    values[h] = fmaf(weight.x, v, values[h]);
                    values[h + 1] = fmaf(weight.y, v, values[h + 1]);
                    values[h + 2] = fmaf(weight.z, v, values[h + 2]);
                    values[h + 3] = fmaf(weight.w, v, values[h + 3]);
                }
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
 * the sum 0. The factors of the splits stand in shared memory. */
__global__ void __launch_bounds__(MERGE_THREADS)
    qsa_merge_f32_kernel(qsa_attend_args_t args, partials in, int n_splits) {
    int64_t at = (int64_t)blockIdx.y * args.shape.n_heads + blockIdx.x, dim = args.shape.head_dim;
    extern __shared__ float factors[]; /* [n_splits] */
    const float *largest = in.largest + at * n_splits, *sums = in.sum + at * n_splits;
    float most = -INFINITY;
    for (int split = threadIdx.x % WARP; split < n_splits; split += WARP)
        if (sums[split] != 0.0f) most = fmaxf(most, largest[split]);
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    for (int split = threadIdx.x; split < n_splits; split += MERGE_THREADS)
        factors[split] = sums[split] != 0.0f ? __expf(largest[split] - most) : 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int split = threadIdx.x % WARP; split < n_splits; split += WARP)
        sum = fmaf(sums[split], factors[split], sum);
    sum = lanes_sum<WARP>(sum);
    for (int64_t i = threadIdx.x; i < dim; i += MERGE_THREADS) {
        float value = 0.0f;
#pragma unroll 8
        for (int split = 0; split < n_splits; split++)
            if (factors[split] != 0.0f)
                value = fmaf(in.values[(at * n_splits + split) * dim + i], factors[split], value);
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
    size_t shared_bytes = (size_t)(TILE * HEADS + HEADS * dim + 3 * HEADS + TILE) * sizeof(float) +
                          (size_t)(TILE * (dim + KEY_PADDING)) * sizeof(__half);
    if (threads > 1024 || shared_bytes > 48 * 1024)
        return status_fail(STATUS_USAGE, "head_dim %lld: the CUDA backend computes up to 320", (long long)dim);
    dim3 grid((unsigned int)n_splits_of(args), (unsigned int)(shape->n_kv_heads * ((heads_per_kv + HEADS - 1) / HEADS)),
              (unsigned int)args->n_tokens);
    if (dim % 8 == 0)
        qsa_attend_f16_kernel<HEADS, true><<<grid, (unsigned int)threads, shared_bytes, queue->stream>>>(*args, out);
    else
        qsa_attend_f16_kernel<HEADS, false><<<grid, (unsigned int)threads, shared_bytes, queue->stream>>>(*args, out);
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
    size_t splits = (size_t)(n_tokens * args->shape.n_heads * n_splits * (args->shape.head_dim + 2)) * sizeof(float);
    size_t tiles = qsa_tiles_workspace_bytes(args);
    return splits > tiles ? splits : tiles;
}

status_t launch_qsa_attend(const qsa_attend_args_t *args, const device_queue_t *queue) {
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS && route_take(queue, ROUTE_QSA_TILES, qsa_tiles_refusal(args, queue)))
        return launch_qsa_tiles(args, queue);
    int64_t n_splits = n_splits_of(args), n = args->n_tokens * args->shape.n_heads * n_splits;
    float *workspace = (float *)args->workspace;
    partials out = {workspace, workspace + n, workspace + 2 * n};
    int64_t heads_per_kv = args->shape.n_heads / args->shape.n_kv_heads;
    queue_stamp(queue);
    if (heads_per_kv <= 4)
        TRY(launch_attend<4>(args, out, queue));
    else if (heads_per_kv <= 12)
        TRY(launch_attend<12>(args, out, queue));
    else
        TRY(launch_attend<MAX_HEADS>(args, out, queue));
    if (n_splits == 1) return STATUS_OK;
    dim3 grid((unsigned int)args->shape.n_heads, (unsigned int)args->n_tokens);
    qsa_merge_f32_kernel<<<grid, MERGE_THREADS, (size_t)n_splits * sizeof(float), queue->stream>>>(*args, out,
                                                                                                   (int)n_splits);
    return queue_check_launch("qsa_merge");
}
