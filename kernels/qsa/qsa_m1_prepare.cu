/* QSA of one token, first launch: norms, rope, caches, index key, and the scores of the complete blocks.
 *
 * Grid: blocks for the heads, one warp each (query heads, then keys, then values), then blocks that score. Each of the
 * latter norms and rotates the index queries for itself. INDEX_DIM / 8 lanes read one index key in 16-byte words; keys
 * go round the grid, so that it reads them once: capacity / ratio * INDEX_DIM * 2 bytes at most. The index keys of
 * earlier blocks, the norm weights and the rotation are ready before the wait for the projection: they come from
 * earlier steps. The first scoring block makes the index key of a block that this token completes. */

#include <math.h>

#include "qsa/qsa_m1.cuh"
#include "qsa/qsa_m1.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP, MAX_PAIRS = 32, UNROLL = 4 };

/* Turns a position makes of each rotated pair: theta^(-2 pair / rotary_dim) / (2 pi). In FP64, as FP32 would be off by
 * 0.01 at position 262143. */
struct rotary {
    double turns[MAX_PAIRS];
};

/* A vector of DIM values over the lanes of a warp, DIM / 32 neighbouring ones each. */
template <int DIM> struct norm_rope {
    static constexpr int N = DIM / WARP;
    float norm[N], cosine[N], sine[N];
    int partner; /* lanes from here to the other value of a pair */

    /* One-plus norm weights and the angles, of which each lane works out one. half is a multiple of N, and a power of
     * two of lanes. */
    __device__ void load(const float *weight, const rotary &rotary, int half, int64_t position) {
        int lane = (int)threadIdx.x % WARP, first = lane * N;
        partner = half / N;
        double turns = (double)position * rotary.turns[lane % MAX_PAIRS];
        float own_sine, own_cosine;
        sincospif(2.0f * (float)(turns - rint(turns)), &own_sine, &own_cosine);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = first + i, pair = at < half ? at : at - half;
            float s = __shfl_sync(0xffffffffu, own_sine, pair), c = __shfl_sync(0xffffffffu, own_cosine, pair);
            norm[i] = 1.0f + weight[at];
            cosine[i] = at < 2 * half ? c : 1.0f;
            sine[i] = at < half ? -s : at < 2 * half ? s : 0.0f;
        }
    }

    /* x = rope(n(x)) */
    __device__ void apply(float x[N], float eps) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            sum = fmaf(x[i], x[i], sum);
        float scale = rsqrtf(lanes_sum<WARP>(sum) / (float)DIM + eps);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] *= scale * norm[i];
            float other = __shfl_xor_sync(0xffffffffu, x[i], partner);
            x[i] = x[i] * cosine[i] + other * sine[i];
        }
    }
};

template <int N> __device__ __forceinline__ void load_halves(const __half *from, float x[N]) {
    from += threadIdx.x % WARP * N;
    if constexpr (N == 8) {
        unpack8(*(const uint4 *)from, x);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = __half2float(from[i]);
    }
}

template <int N> __device__ __forceinline__ void store_halves(const float x[N], __half *to) {
    to += threadIdx.x % WARP * N;
    if constexpr (N == 8) {
        __half2 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        *(uint4 *)to = *(const uint4 *)pairs;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = __float2half_rn(x[i]);
    }
}

/* By one warp: one query head, key or value. */
template <int DIM>
__device__ __forceinline__ void prepare_head(stamp_t stamp, const qsa_prepare_args_t &args, const rotary &rotary,
                                             int unit) {
    constexpr int N = norm_rope<DIM>::N;
    const qsa_shape_t &shape = args.shape;
    int n_heads = (int)shape.n_heads, n_kv = (int)shape.n_kv_heads;
    if (unit >= n_heads + 2 * n_kv) return;
    int64_t position = *args.start_pos;
    bool is_query = unit < n_heads, is_value = unit >= n_heads + n_kv;
    const __half *from = args.projected + (is_query ? 2 * unit : unit + n_heads) * DIM;
    __half *to = args.q + unit * DIM;
    if (!is_query) {
        int64_t kv_head = unit - n_heads - (is_value ? n_kv : 0);
        to = (is_value ? args.cache.v : args.cache.k) + (kv_head * args.cache.capacity + position) * DIM;
    }
    norm_rope<DIM> row;
    if (!is_value) row.load(is_query ? args.q_norm : args.k_norm, rotary, (int)shape.rotary_dim / 2, position);
    previous_wait(stamp);
    float x[N];
    load_halves<N>(from, x);
    if (!is_value) row.apply(x, args.rms_norm_eps);
    store_halves<N>(x, to);
}

template <int DIM, int INDEX_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    qsa_m1_prepare_f16_kernel(stamp_t stamp, const __grid_constant__ qsa_prepare_args_t args,
                              const __grid_constant__ rotary rotary, int n_head_blocks, float *scores) {
    constexpr int N = norm_rope<INDEX_DIM>::N, LANES = INDEX_DIM / 8;
    __shared__ float4 index_q[QSA_INDEX_HEADS][INDEX_DIM / 4];
    __shared__ uint4 new_key[LANES];
    next_start();
    int warp = threadIdx.x / WARP;
    if ((int)blockIdx.x < n_head_blocks) {
        prepare_head<DIM>(stamp, args, rotary, (int)blockIdx.x * WARPS + warp);
        return;
    }

    const qsa_shape_t &shape = args.shape;
    int64_t position = *args.start_pos;
    int n_old = (int)(position / QSA_RATIO), slot = (int)(position % QSA_RATIO);
    bool completes = slot == QSA_RATIO - 1, scores_all = n_old + completes > shape.n_select;
    bool is_first = (int)blockIdx.x == n_head_blocks;
    if (!scores_all && !is_first) return;

    int n_groups = ((int)gridDim.x - n_head_blocks) * (THREADS / LANES);
    int key = ((int)blockIdx.x - n_head_blocks) * (THREADS / LANES) + threadIdx.x / LANES;
    const uint4 *keys = (const uint4 *)args.cache.index_keys + threadIdx.x % LANES;
    uint4 words[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        int at = key + i * n_groups;
        words[i] = scores_all && at < n_old ? keys[(int64_t)at * LANES] : uint4{0, 0, 0, 0};
    }

    /* The first warps have an index query each, the next one the index key. */
    int half = (int)min(shape.rotary_dim, (int64_t)INDEX_DIM) / 2;
    const __half *projected = args.projected + 2 * (shape.n_heads + shape.n_kv_heads) * DIM;
    const __half *raw = projected + QSA_INDEX_HEADS * INDEX_DIM;
    if (warp < QSA_INDEX_HEADS) {
        norm_rope<INDEX_DIM> row;
        row.load(args.index_q_norm, rotary, half, position);
        previous_wait();
        float x[N];
        load_halves<N>(projected + warp * INDEX_DIM, x);
        row.apply(x, args.rms_norm_eps);
#pragma unroll
        for (int i = 0; i < N; i++) /* rounded as activations are */
            ((float *)index_q[warp])[threadIdx.x % WARP * N + i] = __half2float(__float2half_rn(x[i]));
    } else if (warp == QSA_INDEX_HEADS && is_first) {
        norm_rope<INDEX_DIM> row;
        row.load(args.index_k_norm, rotary, half, position - slot);
        float sum[N] = {}, x[N];
#pragma unroll
        for (int i = 0; i < QSA_RATIO - 1; i++) {
            load_halves<N>(args.cache.raw_keys + i * INDEX_DIM, x);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] += x[j];
        }
        previous_wait();
        load_halves<N>(raw, x);
        if (completes) {
#pragma unroll
            for (int j = 0; j < N; j++) /* the reference keeps the mean as an activation */
                x[j] = __half2float(__float2half_rn((sum[j] + x[j]) / (float)QSA_RATIO));
            row.apply(x, args.rms_norm_eps);
            store_halves<N>(x, args.cache.index_keys + (int64_t)n_old * INDEX_DIM);
            store_halves<N>(x, (__half *)new_key);
        } else {
            store_halves<N>(x, args.cache.raw_keys + slot * INDEX_DIM);
        }
    } else {
        previous_wait();
    }
    if (!scores_all) return;
    __syncthreads();

    float q[QSA_INDEX_HEADS][8];
#pragma unroll
    for (int head = 0; head < QSA_INDEX_HEADS; head++) {
        *(float4 *)q[head] = index_q[head][threadIdx.x % LANES * 2];
        *(float4 *)(q[head] + 4) = index_q[head][threadIdx.x % LANES * 2 + 1];
    }
    float scale = rsqrtf((float)INDEX_DIM);
    auto score = [&](uint4 word) { /* by LANES lanes */
                                   float values[8], sums[QSA_INDEX_HEADS] = {};
                                   unpack8(word, values);
#pragma unroll
                                   for (int head = 0; head < QSA_INDEX_HEADS; head++) {
#pragma unroll
                                       for (int i = 0; i < 8; i++)
                                           sums[head] = fmaf(values[i], q[head][i], sums[head]);
                                   }
                                   float sum = fmaxf(sums4<LANES>(sums), 0.0f);
                                   sum += __shfl_xor_sync(0xffffffffu, sum, LANES / 4);
                                   sum += __shfl_xor_sync(0xffffffffu, sum, LANES / 2);
                                   return sum * scale;
    };
    bool writes = threadIdx.x % LANES == 0;
    if (is_first && warp == QSA_INDEX_HEADS && completes) {
        float value = score(new_key[threadIdx.x % LANES]);
        if (threadIdx.x % WARP == 0) scores[n_old] = value;
    }
    /* A warp goes on while any of its lanes has a key. */
    for (int first = key - threadIdx.x % WARP / LANES; first < n_old; first += UNROLL * n_groups) {
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            if (first + i * n_groups >= n_old) break;
            float value = score(words[i]);
            if (writes && key + i * n_groups < n_old) scores[key + i * n_groups] = value;
        }
        key += UNROLL * n_groups;
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            int at = key + i * n_groups;
            if (at < n_old) words[i] = keys[(int64_t)at * LANES];
        }
    }
}

} // namespace

status_t launch_qsa_m1_prepare(const qsa_prepare_args_t *args, float *scores, const device_queue_t *queue) {
    const qsa_shape_t *shape = &args->shape;
    rotary rotary = {};
    for (int64_t pair = 0; pair < shape->rotary_dim / 2; pair++)
        rotary.turns[pair] =
            pow(args->rope_theta, -2.0 * (double)pair / (double)shape->rotary_dim) * 0.15915494309189535;
    unsigned int n_head_blocks = blocks_for(shape->n_heads + 2 * shape->n_kv_heads, WARPS);
    /* Long contexts need more reads in flight. */
    unsigned int blocks_per_sm = args->cache.capacity / shape->ratio > 16384 ? 3 : 1;
    unsigned int n_blocks = n_head_blocks + blocks_per_sm * (unsigned int)queue->n_sms;
    if (shape->head_dim == 256)
        launch_kernel(queue, qsa_m1_prepare_f16_kernel<256, 128>, n_blocks, THREADS, 0, *args, rotary, n_head_blocks,
                      scores);
    else
        launch_kernel(queue, qsa_m1_prepare_f16_kernel<32, 32>, n_blocks, THREADS, 0, *args, rotary, n_head_blocks,
                      scores);
    return queue_check_launch("qsa_prepare");
}
