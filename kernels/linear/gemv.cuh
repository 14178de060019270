#ifndef GALVANI_KERNELS_LINEAR_GEMV_CUH
#define GALVANI_KERNELS_LINEAR_GEMV_CUH

/* Matrix times few vectors: FP16 weights and vectors, FP32 sums. What happens to a sum is the epilogue's affair, so
 * that each op has its own without a further launch. */

#include "device/device.cuh"

enum { GEMV_THREADS = 256, GEMV_TOKENS = 4 };

typedef struct gemv {
    int64_t n_tokens, rows, columns;
    int64_t row_step; /* rows of one group: row + i * row_step */
    const __half *w;  /* [.., columns] */
    const __half *x;  /* [n_tokens, columns] */
} gemv_t;

/* Grid: (groups of N_ROWS rows / groups a block, tokens / N_TOKENS). ROW_WARPS warps share a group: 1, or all 8 of the
 * block where there are few rows. Each weight is read once for N_TOKENS tokens, 16 bytes a lane with VECTOR (columns a
 * multiple of 8, rows aligned to 16 bytes), else one by one. A sum's order depends on columns and ROW_WARPS alone.
 * epilogue(token, row, sums) is called by one thread for each group and token. */
template <int N_TOKENS, int N_ROWS, int ROW_WARPS, bool VECTOR, typename epilogue_t>
static __global__ void __launch_bounds__(GEMV_THREADS) gemv_f16_kernel(gemv_t args, epilogue_t epilogue) {
    constexpr int LANES = ROW_WARPS * WARP, GROUPS = GEMV_THREADS / LANES;
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    int64_t first_token = (int64_t)blockIdx.y * N_TOKENS;
    if (ROW_WARPS == 1 && row >= args.rows) return;

    const __half *x[N_TOKENS];
#pragma unroll
    for (int t = 0; t < N_TOKENS; t++) /* a token past the end repeats the last one and is not stored */
        x[t] = args.x + min(first_token + t, args.n_tokens - 1) * args.columns;
    const __half *w = args.w + row * args.columns;
    int64_t step = args.row_step * args.columns;

    float sums[N_TOKENS][N_ROWS] = {};
    if (VECTOR) {
#pragma unroll 4
        for (int64_t i = lane * 8; i < args.columns; i += LANES * 8) {
            float weight[N_ROWS][8];
#pragma unroll
            for (int r = 0; r < N_ROWS; r++)
                unpack8(__ldg((const uint4 *)(w + r * step + i)), weight[r]);
#pragma unroll
            for (int t = 0; t < N_TOKENS; t++) {
                float value[8];
                unpack8(__ldg((const uint4 *)(x[t] + i)), value);
#pragma unroll
                for (int r = 0; r < N_ROWS; r++) {
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        sums[t][r] = fmaf(weight[r][j], value[j], sums[t][r]);
                }
            }
        }
    } else {
        for (int64_t i = lane; i < args.columns; i += LANES) {
#pragma unroll
            for (int t = 0; t < N_TOKENS; t++) {
#pragma unroll
                for (int r = 0; r < N_ROWS; r++)
                    sums[t][r] = fmaf(__half2float(w[r * step + i]), __half2float(x[t][i]), sums[t][r]);
            }
        }
    }

#pragma unroll
    for (int t = 0; t < N_TOKENS; t++) {
#pragma unroll
        for (int r = 0; r < N_ROWS; r++)
            sums[t][r] = lanes_sum<WARP>(sums[t][r]);
    }
    if (ROW_WARPS > 1) {
        __shared__ float partial[ROW_WARPS][N_TOKENS][N_ROWS];
        if (threadIdx.x % WARP == 0) {
#pragma unroll
            for (int t = 0; t < N_TOKENS; t++) {
#pragma unroll
                for (int r = 0; r < N_ROWS; r++)
                    partial[threadIdx.x / WARP][t][r] = sums[t][r];
            }
        }
        __syncthreads();
        if (threadIdx.x != 0) return;
#pragma unroll
        for (int t = 0; t < N_TOKENS; t++) {
#pragma unroll
            for (int r = 0; r < N_ROWS; r++) {
                sums[t][r] = 0.0f;
#pragma unroll
                for (int warp = 0; warp < ROW_WARPS; warp++)
                    sums[t][r] += partial[warp][t][r];
            }
        }
    }
    if (lane != 0) return;
#pragma unroll
    for (int t = 0; t < N_TOKENS; t++) {
        if (first_token + t < args.n_tokens) epilogue(first_token + t, row, sums[t]);
    }
}

/* Launches gemv_f16_kernel in the form that fits the shape. */
template <int N_ROWS, typename epilogue_t>
static void launch_gemv(const gemv_t &args, const epilogue_t &epilogue, cudaStream_t stream) {
    constexpr int WARPS = GEMV_THREADS / WARP;
    bool vector = args.columns % 8 == 0 && (uintptr_t)args.w % 16 == 0 && (uintptr_t)args.x % 16 == 0;
    bool few_rows = args.rows <= 1024 && args.columns >= 2048;
    unsigned int n_tokens = (unsigned int)args.n_tokens, n_groups = (unsigned int)args.rows;
    dim3 narrow((n_groups + WARPS - 1) / WARPS, n_tokens), wide(n_groups, n_tokens);
    if (!vector) {
        gemv_f16_kernel<1, N_ROWS, 1, false><<<narrow, GEMV_THREADS, 0, stream>>>(args, epilogue);
    } else if (n_tokens == 1) {
        if (few_rows)
            gemv_f16_kernel<1, N_ROWS, WARPS, true><<<wide, GEMV_THREADS, 0, stream>>>(args, epilogue);
        else
            gemv_f16_kernel<1, N_ROWS, 1, true><<<narrow, GEMV_THREADS, 0, stream>>>(args, epilogue);
    } else {
        narrow.y = wide.y = (n_tokens + GEMV_TOKENS - 1) / GEMV_TOKENS;
        if (few_rows)
            gemv_f16_kernel<GEMV_TOKENS, N_ROWS, WARPS, true><<<wide, GEMV_THREADS, 0, stream>>>(args, epilogue);
        else
            gemv_f16_kernel<GEMV_TOKENS, N_ROWS, 1, true><<<narrow, GEMV_THREADS, 0, stream>>>(args, epilogue);
    }
}

#endif
