#ifndef GALVANI_KERNELS_QSA_M1_ATTEND_MMA_CUH
#define GALVANI_KERNELS_QSA_M1_ATTEND_MMA_CUH

/* One split on tensor cores: the query heads of a KV head are the rows of a 16-row product with FP32 sums. Warps share
 * the scores by tiles of eight tokens and parts of DIM, then the values by 32 columns each. A product's sum over DIM
 * may take its terms in any order as long as both sides agree, so that a thread's share of a row of queries or keys is
 * one 16-byte word. The softmax's weights are rounded to FP16, and so summed. By DIM threads. */

#include "device/mma.cuh"
#include "qsa/qsa_m1_split.cuh"

template <int DIM, int HEADS>
__device__ __forceinline__ void attend_mma(const qsa_attend_args_t &args, const visible &seen, const partials &out) {
    constexpr int LANES = DIM / 8, WARPS = DIM / WARP, TILES = SPLIT_TOKENS / 8; /* LANES read a row of values */
    constexpr int PARTS = WARPS > TILES ? WARPS / TILES : 1, TILES_A_WARP = TILES * PARTS / WARPS;
    constexpr int WORDS = DIM / PARTS / 32; /* a thread's words of a part of a row */
    /* FP16 values, eight more than a row has, so that a tile's rows lie in different banks */
    constexpr int VALUES_STRIDE = DIM + 8, WEIGHTS_STRIDE = SPLIT_TOKENS + 8;
    constexpr bool HAS_UPPER = HEADS > 8; /* rows 8 ... 15 */
    __shared__ __align__(16) __half value_rows[SPLIT_TOKENS][VALUES_STRIDE];
    __shared__ __align__(16) float scores[PARTS][HEADS][SPLIT_TOKENS];
    __shared__ __align__(16) __half weights[16][WEIGHTS_STRIDE];

    int first_block = (int)blockIdx.x * SPLIT_BLOCKS, warp = threadIdx.x / WARP;
    int row = threadIdx.x % WARP / 4, quad = threadIdx.x % 4; /* of a tile: which token or head, which of its words */
    int64_t kv_head = blockIdx.y, head = kv_head * HEADS, cache_row = kv_head * args.cache.capacity;
    const uint4 zero = {0, 0, 0, 0};

    int part = warp / (WARPS / PARTS), first_tile = warp % (WARPS / PARTS) * TILES_A_WARP;
    const uint4 *query = (const uint4 *)(args.q + (head + row) * DIM) + part * WORDS * 4 + quad;
    uint4 lower[WORDS], upper[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        lower[i] = row < HEADS ? query[i * 4] : zero;
        upper[i] = HAS_UPPER && row + 8 < HEADS ? query[8 * LANES + i * 4] : zero;
    }
    token_block tokens(args, seen, first_block + threadIdx.x / LANES);
    const uint4 *value = (const uint4 *)args.cache.v + (cache_row + tokens.first) * LANES + threadIdx.x % LANES;
    uint4 keys[TILES_A_WARP][WORDS], values[QSA_RATIO];
#pragma unroll
    for (int tile = 0; tile < TILES_A_WARP; tile++) {
        token_block of_tile(args, seen, first_block + (first_tile + tile) * 2 + row / QSA_RATIO);
        const uint4 *key = (const uint4 *)args.cache.k + (cache_row + of_tile.first + row % QSA_RATIO) * LANES;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            keys[tile][i] = row % QSA_RATIO < of_tile.n_tokens ? key[(part * WORDS + i) * 4 + quad] : zero;
    }
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        values[i] = i < tokens.n_tokens ? value[i * LANES] : zero;

    float dots[TILES_A_WARP][4] = {};
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
#pragma unroll
        for (int tile = 0; tile < TILES_A_WARP; tile++) {
            uint4 key = keys[tile][i];
            mma_16816(dots[tile], {{lower[i].x, upper[i].x, lower[i].y, upper[i].y}}, key.x, key.y);
            mma_16816(dots[tile], {{lower[i].z, upper[i].z, lower[i].w, upper[i].w}}, key.z, key.w);
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES_A_WARP; tile++) {
        int token = (first_tile + tile) * 8 + quad * 2;
        if (row < HEADS) *(float2 *)&scores[part][row][token] = {dots[tile][0], dots[tile][1]};
        if (HAS_UPPER && row + 8 < HEADS) *(float2 *)&scores[part][row + 8][token] = {dots[tile][2], dots[tile][3]};
    }
#pragma unroll
    for (int i = 0; i < QSA_RATIO; i++)
        *(uint4 *)&value_rows[threadIdx.x / LANES * QSA_RATIO + i][threadIdx.x % LANES * 8] = values[i];
    __syncthreads();

    /* Eight lanes have a head, each of them a block of tokens. */
    int n_tokens = (seen.n_taken - first_block) * QSA_RATIO + seen.n_tail, own = threadIdx.x % 8;
    float scale = rsqrtf((float)DIM);
    for (int h = threadIdx.x / 8; h < 16; h += DIM / 8) {
        float4 score = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            float4 more = h < HEADS ? *(const float4 *)&scores[i][h][own * 4] : score;
            score.x += more.x, score.y += more.y, score.z += more.z, score.w += more.w;
        }
        float x[QSA_RATIO] = {score.x, score.y, score.z, score.w}, largest = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < QSA_RATIO; i++) {
            x[i] = own * QSA_RATIO + i < n_tokens ? x[i] * scale : -INFINITY;
            largest = fmaxf(largest, x[i]);
        }
#pragma unroll
        for (int offset = 4; offset > 0; offset /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        __align__(8) __half weight[QSA_RATIO];
#pragma unroll
        for (int i = 0; i < QSA_RATIO; i++) {
            weight[i] = __float2half_rn(h < HEADS ? __expf(x[i] - largest) : 0.0f);
            sum += __half2float(weight[i]);
        }
        sum = lanes_sum<8>(sum);
        *(uint2 *)&weights[h][own * 4] = *(const uint2 *)weight;
        if (own == 0 && h < HEADS) {
            out.largest[(head + h) * out.n_splits + blockIdx.x] = largest;
            out.sum[(head + h) * out.n_splits + blockIdx.x] = sum;
        }
    }
    __syncthreads();

    float sums[4][4] = {}; /* of four tiles of eight columns */
#pragma unroll
    for (int first = 0; first < SPLIT_TOKENS; first += 16) {
        fragment_a a = load_a(&weights[0][0], WEIGHTS_STRIDE, 0, first);
#pragma unroll
        for (int tile = 0; tile < 4; tile += 2) {
            uint32_t b[4];
            load_b(b, &value_rows[0][0], VALUES_STRIDE, first, warp * 32 + tile * 8);
            mma_16816(sums[tile], a, b[0], b[1]);
            mma_16816(sums[tile + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
        float *to = out.values + ((head + row) * out.n_splits + blockIdx.x) * DIM + warp * 32 + tile * 8 + quad * 2;
        if (row < HEADS) *(float2 *)to = {sums[tile][0], sums[tile][1]};
        if (HAS_UPPER && row + 8 < HEADS)
            *(float2 *)(to + (int64_t)8 * out.n_splits * DIM) = {sums[tile][2], sums[tile][3]};
    }
}

#endif
