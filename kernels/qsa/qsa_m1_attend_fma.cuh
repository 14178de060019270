#ifndef GALVANI_KERNELS_QSA_M1_ATTEND_FMA_CUH
#define GALVANI_KERNELS_QSA_M1_ATTEND_FMA_CUH

/* One split without tensor cores: DIM / 8 lanes share a block of four tokens. They hold its keys and values in
 * registers in 16-byte words, and meet each query head of the KV head in turn. Values then go through shared memory,
 * where a thread owns two columns and half of the tokens for all query heads. By DIM threads. */

#include "qsa/qsa_m1_split.cuh"

template <int DIM, int HEADS>
__device__ __forceinline__ void attend_fma(const qsa_attend_args_t &args, const visible &seen, const partials &out) {
    constexpr int LANES = DIM / 8, PADDED = (HEADS + 3) / 4 * 4, PAIRS = DIM / 2, HALF = SPLIT_TOKENS / 2;
    constexpr int VALUES_BYTES = SPLIT_TOKENS * DIM * 2, SUMS_BYTES = HEADS * DIM * 4;
    __shared__ __align__(16) unsigned char buffer[VALUES_BYTES > SUMS_BYTES ? VALUES_BYTES : SUMS_BYTES];
    __shared__ float4 weights[SPLIT_TOKENS][PADDED / 4];

    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, block = (int)blockIdx.x * SPLIT_BLOCKS + group;
    int64_t kv_head = blockIdx.y, head = kv_head * HEADS;

    const uint4 *query = (const uint4 *)(args.q + head * DIM) + lane;
    uint4 queries[HEADS], keys[QSA_RATIO], values[QSA_RATIO];
    token_block tokens(args, seen, block);
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        queries[h] = query[h * LANES];
    int64_t at = (kv_head * args.cache.capacity + tokens.first) * LANES + lane;
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        keys[i] = i < tokens.n_tokens ? ((const uint4 *)args.cache.k)[at + i * LANES] : uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        values[i] = i < tokens.n_tokens ? ((const uint4 *)args.cache.v)[at + i * LANES] : uint4{0, 0, 0, 0};

    float scale = rsqrtf((float)DIM), k[QSA_RATIO][8];
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        unpack8(keys[i], k[i]);
    int token = group * QSA_RATIO + sums4_index<LANES>();
    bool is_there = sums4_index<LANES>() < tokens.n_tokens;
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

#endif
