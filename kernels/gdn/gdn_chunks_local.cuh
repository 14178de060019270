#ifndef GALVANI_KERNELS_GDN_CHUNKS_LOCAL_CUH
#define GALVANI_KERNELS_GDN_CHUNKS_LOCAL_CUH

/* What of a chunk does not depend on the state: T, its products with K and V, and the weights of d in o (the formulas
 * are in gdn_chunks.cu). */

#include "device/mma.cuh"
#include "gdn/gdn.h"
#include "gdn/gdn_chunks_scratch.cuh"

namespace {

/* log(1 + exp(x)) without overflow */
__device__ __forceinline__ float softplusf(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/* Shared memory of gdn_chunk_kernel. */
template <int D> struct chunk_shared {
    static constexpr int STRIDE = D + 8, T_STRIDE = CHUNK + 8; /* rows start in different banks */
    float log_decay[CHUNK], beta[CHUNK];                       /* G, beta */
    float lower[CHUNK][CHUNK + 4];                             /* L; its diagonal blocks become those of T */
    __half k[CHUNK * STRIDE], v[CHUNK * STRIDE];
    union {
        struct {
            __half q[CHUNK * STRIDE];
            float product[CHUNK / 2][CHUNK / 2 + 4]; /* L21 T11 */
        };
        struct {                                                 /* once q and the product have been read */
            __half t_k[CHUNK * T_STRIDE], t_v[CHUNK * T_STRIDE]; /* - T diag(beta exp(G)), T diag(beta) */
        };
    };
};

/* Inverts the two 32 x 32 blocks on the diagonal of 1 + L in place, a warp each, a column a lane. */
template <int D> __device__ __forceinline__ void invert_blocks(chunk_shared<D> &shared) {
    constexpr int HALF = CHUNK / 2;
    int block = threadIdx.x / WARP * HALF, column = threadIdx.x % WARP;
    float x[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sum[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < i; j += 4) { /* L is zero on and above the diagonal */
            float4 row = *(const float4 *)&shared.lower[block + i][block + j];
            sum[0] = fmaf(-row.x, x[j], sum[0]);
            if (j + 1 < i) sum[1] = fmaf(-row.y, x[j + 1], sum[1]);
            if (j + 2 < i) sum[2] = fmaf(-row.z, x[j + 2], sum[2]);
            if (j + 3 < i) sum[3] = fmaf(-row.w, x[j + 3], sum[3]);
        }
        x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i++)
        shared.lower[block + i][block + column] = x[i];
}

/* Eight values of row `row` of the 32 x 32 product a b, from `column` on. */
__device__ __forceinline__ void multiply_row(const float *a, const float *b, int stride_b, int column, float out[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = 0.0f;
#pragma unroll 4
    for (int j = 0; j < CHUNK / 2; j++) {
        float factor = a[j];
        float4 low = *(const float4 *)(b + j * stride_b + column),
               high = *(const float4 *)(b + j * stride_b + column + 4);
        out[0] = fmaf(factor, low.x, out[0]), out[1] = fmaf(factor, low.y, out[1]);
        out[2] = fmaf(factor, low.z, out[2]), out[3] = fmaf(factor, low.w, out[3]);
        out[4] = fmaf(factor, high.x, out[4]), out[5] = fmaf(factor, high.y, out[5]);
        out[6] = fmaf(factor, high.z, out[6]), out[7] = fmaf(factor, high.w, out[7]);
    }
}

__device__ __forceinline__ void store_tile(__half *tiles, int tile, const fragment_a &a) {
    *(uint4 *)(tiles + tile * TILE + threadIdx.x % WARP * 8) = make_uint4(a.x[0], a.x[1], a.x[2], a.x[3]);
}

/* Grid: (chunks, value heads), four warps, each with 16 of the chunk's tokens. Tokens past the end have zeros for q, k
 * and v, beta 0 and g 0, so that they change nothing. The last chunk's block of the last segment moves the
 * convolution's state on (`is_last`; the segment then has at least conv_kernel - 1 tokens). */
template <int D>
__global__ void __launch_bounds__(THREADS)
    gdn_chunk_kernel(gdn_core_args_t args, int64_t first, int n_tokens, scratch out) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    chunk_shared<D> &shared = *(chunk_shared<D> *)memory;
    constexpr int STRIDE = chunk_shared<D>::STRIDE, T_STRIDE = chunk_shared<D>::T_STRIDE;
    int chunk = blockIdx.x, head = blockIdx.y, n_heads = (int)args.n_value_heads, n_keys = (int)args.n_key_heads;
    int group = n_heads / n_keys, key_head = head / group, width = (2 * n_keys + n_heads) * D;
    int begin = chunk * CHUNK, n = min((int)CHUNK, n_tokens - begin), warp = threadIdx.x / WARP,
        lane = threadIdx.x % WARP;

    const __half *row = out.convolved + (int64_t)begin * width;
    for (int i = threadIdx.x; i < CHUNK * (D / 8); i += THREADS) {
        int t = i / (D / 8), column = i % (D / 8) * 8;
        const __half *from = row + (int64_t)min(t, n - 1) * width + column;
        copy_16(shared.q + t * STRIDE + column, from + key_head * D, t < n);
        copy_16(shared.k + t * STRIDE + column, from + (n_keys + key_head) * D, t < n);
        copy_16(shared.v + t * STRIDE + column, from + (2 * n_keys + head) * D, t < n);
    }
    copies_commit();
    if (warp == 0) { /* two tokens a lane */
        float rate = -expf(args.A_log[head]), bias = args.dt_bias[head], g[2];
        const __half *b = args.projected + (first + begin) * args.projected_stride + width + n_heads * D + head;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int t = 2 * lane + i;
            const __half *at = b + (int64_t)min(t, n - 1) * args.projected_stride;
            g[i] = t < n ? rate * softplusf(__half2float(at[n_heads]) + bias) : 0.0f;
            shared.beta[t] = t < n ? sigmoidf(__half2float(*at)) : 0.0f;
        }
        float sum = g[0] + g[1];
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            float before = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += before;
        }
        shared.log_decay[2 * lane] = sum - g[1];
        shared.log_decay[2 * lane + 1] = sum;
    }
    copies_wait<0>();
    __syncthreads();
    int64_t chunk_head = (int64_t)chunk * n_heads + head;
    if (threadIdx.x < CHUNK) {
        float *factors = out.factors + chunk_head * 2 * CHUNK + threadIdx.x;
        float own = shared.log_decay[threadIdx.x];
        factors[0] = expf(own);
        factors[CHUNK] = expf(shared.log_decay[CHUNK - 1] - own);
    }
    if (head % group == 0) { /* q and k for the walk, once for the heads that share them */
        int64_t chunk_key = (int64_t)chunk * n_keys + key_head;
        __half *q = out.q + chunk_key * CHUNK * D, *k = out.k + chunk_key * CHUNK * D;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            store_tile(q, warp * (D / 16) + i, load_a(shared.q, STRIDE, warp * 16, i * 16));
            store_tile(k, i * 4 + warp, load_a_transposed(shared.k, STRIDE, i * 16, warp * 16));
        }
    }

    /* L, and the weights of d in o, 16 columns at a time up to the diagonal */
    int g = lane / 4, t2 = lane % 4 * 2, i0 = warp * 16 + g;
    float decay0 = shared.log_decay[i0], decay1 = shared.log_decay[i0 + 8];
    float beta0 = shared.beta[i0], beta1 = shared.beta[i0 + 8];
    __half *weights = out.weights + chunk_head * CHUNK * CHUNK;
    for (int tile = 0; tile < 4; tile++) {
        float kk[2][4] = {}, qk[2][4] = {};
        if (tile <= warp) {
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t b[4];
                load_b_transposed(b, shared.k, STRIDE, k, tile * 16);
                fragment_a a = load_a(shared.k, STRIDE, warp * 16, k);
                mma_16816(kk[0], a, b[0], b[1]);
                mma_16816(kk[1], a, b[2], b[3]);
                a = load_a(shared.q, STRIDE, warp * 16, k);
                mma_16816(qk[0], a, b[0], b[1]);
                mma_16816(qk[1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int j = tile * 16 + half * 8 + t2 + c;
                float factor0 = j <= i0 ? expf(decay0 - shared.log_decay[j]) : 0.0f;
                float factor1 = j <= i0 + 8 ? expf(decay1 - shared.log_decay[j]) : 0.0f;
                shared.lower[i0][j] = j < i0 ? beta0 * factor0 * kk[half][c] : 0.0f;
                shared.lower[i0 + 8][j] = j < i0 + 8 ? beta1 * factor1 * kk[half][c + 2] : 0.0f;
                qk[half][c] *= factor0;
                qk[half][c + 2] *= factor1;
            }
        }
        if (tile <= warp) store_tile(weights, warp * 4 + tile, pack_a(qk[0], qk[1]));
    }
    __syncthreads();

    /* T: the diagonal blocks, then - T22 L21 T11 */
    if (warp < 2) invert_blocks(shared);
    __syncthreads();
    int half = CHUNK / 2, r = threadIdx.x / 4, c8 = threadIdx.x % 4 * 8;
    float values[8];
    multiply_row(shared.lower[half + r], shared.lower[0], CHUNK + 4, c8, values);
#pragma unroll
    for (int i = 0; i < 8; i++)
        shared.product[r][c8 + i] = values[i];
    __syncthreads();
    multiply_row(shared.lower[half + r] + half, shared.product[0], half + 4, c8, values);
#pragma unroll
    for (int i = 0; i < 8; i++)
        shared.lower[half + r][c8 + i] = -values[i];
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK * CHUNK; i += THREADS) {
        int j = i % CHUNK;
        float value = shared.lower[i / CHUNK][j] * shared.beta[j];
        shared.t_v[i / CHUNK * T_STRIDE + j] = __float2half_rn(value);
        shared.t_k[i / CHUNK * T_STRIDE + j] = __float2half_rn(-value * expf(shared.log_decay[j]));
    }
    __syncthreads();

    /* the two products with T, whose upper triangle is zero */
    __half *kd = out.kd + chunk_head * CHUNK * D, *vd = out.vd + chunk_head * CHUNK * D;
#pragma unroll 1
    for (int column = 0; column < D; column += 32) {
        float from_k[4][4] = {}, from_v[4][4] = {};
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            if (tile > warp) continue;
            fragment_a a_k = load_a(shared.t_k, T_STRIDE, warp * 16, tile * 16);
            fragment_a a_v = load_a(shared.t_v, T_STRIDE, warp * 16, tile * 16);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                uint32_t b[4];
                load_b(b, shared.k, STRIDE, tile * 16, column + part * 16);
                mma_16816(from_k[2 * part], a_k, b[0], b[1]);
                mma_16816(from_k[2 * part + 1], a_k, b[2], b[3]);
                load_b(b, shared.v, STRIDE, tile * 16, column + part * 16);
                mma_16816(from_v[2 * part], a_v, b[0], b[1]);
                mma_16816(from_v[2 * part + 1], a_v, b[2], b[3]);
            }
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            store_tile(kd, warp * (D / 16) + column / 16 + part, pack_a(from_k[2 * part], from_k[2 * part + 1]));
            store_tile(vd, (column / COLUMNS * 4 + warp) * 2 + part, pack_a(from_v[2 * part], from_v[2 * part + 1]));
        }
    }

    if (first + n_tokens < args.n_tokens || begin + n < n_tokens) return;
    for (int i = threadIdx.x; i < (TAPS - 1) * D; i += THREADS) {
        const __half *from = args.projected + (args.n_tokens - (TAPS - 1) + i / D) * args.projected_stride;
        __half *to = args.conv_state + (int64_t)(i / D) * width;
        int channel = (2 * n_keys + head) * D + i % D;
        to[channel] = from[channel];
        if (head % group) continue;
        to[key_head * D + i % D] = from[key_head * D + i % D];
        to[(n_keys + key_head) * D + i % D] = from[(n_keys + key_head) * D + i % D];
    }
}

} // namespace

#endif
