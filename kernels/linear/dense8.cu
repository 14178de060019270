#include "device/device.cuh"
#include "linear/dense8.cuh"
#include "linear/dense8.h"

namespace {

enum { THREADS = 256 };

__device__ __forceinline__ float largest_of(float most, __half value) {
    float magnitude = fabsf(__half2float(value));
    return isfinite(magnitude) ? fmaxf(most, magnitude) : INFINITY;
}

/* One warp a group of 64 columns, two values a lane; any size. Reads 2 and writes 1 + 1/32 bytes a value. */
__global__ void __launch_bounds__(THREADS)
    dense8_quantize_q8_kernel(matrix_t source, int8_t *codes, __half *scales, int64_t n_scales) {
    int64_t group = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (group >= source.rows * n_scales) return;
    int64_t row = group / n_scales, column = group % n_scales * DENSE8_GROUP + threadIdx.x % WARP * 2;
    int64_t n = min((int64_t)2, source.columns - column), at = row * source.columns + column;
    const __half *values = (const __half *)source.data + at;
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++)
        most = largest_of(most, values[i]);
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    __half scale = __float2half_rn(isfinite(most) ? most / 127.0f : NAN);
    float rounded = __half2float(scale);
    if (threadIdx.x % WARP == 0) scales[group] = scale;
    for (int64_t i = 0; i < n; i++) {
        float code = rounded > 0.0f ? rintf(__half2float(values[i]) / rounded) : 0.0f;
        codes[at + i] = (int8_t)fminf(fmaxf(code, -127.0f), 127.0f);
    }
}

/* Nearest E4M3 code, ties to even, of a value of at most 448 but for rounding. */
__device__ __forceinline__ uint8_t e4m3_of(float value) {
    uint32_t bits = __float_as_uint(value), sign = bits >> 24 & 0x80u;
    float magnitude = fminf(fabsf(value), 448.0f);
    if (magnitude < 0x1p-6f) return (uint8_t)(sign | (uint32_t)rintf(magnitude * 512.0f)); /* steps of 2^-9 */
    bits = __float_as_uint(magnitude);
    bits += 0x7FFFFu + (bits >> 20 & 1u); /* to three bits of mantissa */
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

/* One block a row; any size. */
__global__ void __launch_bounds__(THREADS) dense8_quantize_qpn8_kernel(matrix_t source, uint8_t *codes, float *scales) {
    __shared__ float warps[THREADS / WARP];
    const __half *values = (const __half *)source.data + blockIdx.x * source.columns;
    codes += blockIdx.x * source.columns;
    float most = 0.0f;
    for (int64_t i = threadIdx.x; i < source.columns; i += THREADS)
        most = largest_of(most, values[i]);
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = most;
    __syncthreads();
    for (int warp = 0; warp < THREADS / WARP; warp++)
        most = fmaxf(most, warps[warp]);
    float scale = isfinite(most) ? most / 448.0f : NAN;
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (int64_t i = threadIdx.x; i < source.columns; i += THREADS)
        codes[i] = scale > 0.0f ? e4m3_of(__half2float(values[i]) / scale) : 0;
}

/* Each block takes every 256th row; what a thread adds of one row is short enough for FP32. */
template <dtype_t DTYPE>
__global__ void __launch_bounds__(THREADS)
    dense8_errors_kernel(matrix_t source, matrix_t target, int64_t n_scales, double *errors) {
    __shared__ double sums[2][THREADS];
    double error = 0.0, norm = 0.0;
    for (int64_t row = blockIdx.x; row < source.rows; row += gridDim.x) {
        const __half *values = (const __half *)source.data + row * source.columns;
        const uint8_t *codes = (const uint8_t *)target.data + row * source.columns;
        float row_error = 0.0f, row_norm = 0.0f;
        for (int64_t i = threadIdx.x; i < source.columns; i += THREADS) {
            float decoded[4], value = __half2float(values[i]);
            dense8_unpack4<DTYPE>(codes[i], decoded);
            float scale = DTYPE == DTYPE_Q8
                              ? __half2float(((const __half *)target.scales)[row * n_scales + i / DENSE8_GROUP])
                              : ((const float *)target.scales)[row];
            float difference = value - decoded[0] * scale;
            row_error = fmaf(difference, difference, row_error);
            row_norm = fmaf(value, value, row_norm);
        }
        error += (double)row_error;
        norm += (double)row_norm;
    }
    sums[0][threadIdx.x] = error;
    sums[1][threadIdx.x] = norm;
    __syncthreads();
    if (threadIdx.x >= 2) return;
    double sum = 0.0;
    for (int i = 0; i < THREADS; i++)
        sum += sums[threadIdx.x][i];
    errors[2 + 2 * blockIdx.x + threadIdx.x] = sum;
}

/* One block of two threads. */
__global__ void dense8_add_errors_kernel(double *errors) {
    for (int i = 0; i < DENSE8_ERROR_BLOCKS; i++)
        errors[threadIdx.x] += errors[2 + 2 * i + threadIdx.x];
}

template <dtype_t DTYPE> status_t launch_errors(const dense8_args_t *args, int64_t n_scales, cudaStream_t stream) {
    dense8_errors_kernel<DTYPE>
        <<<DENSE8_ERROR_BLOCKS, THREADS, 0, stream>>>(args->source, args->target, n_scales, args->errors);
    dense8_add_errors_kernel<<<1, 2, 0, stream>>>(args->errors);
    return queue_check_launch("dense8_quantize");
}

/* One block a row; four columns a thread with VECTOR (columns a multiple of 4, aligned to 8 bytes), else one. Any size.
 * Reads 1 + 1/32 and writes 2 bytes a value. */
template <dtype_t DTYPE, bool VECTOR>
__global__ void __launch_bounds__(THREADS) dense8_dequantize_kernel(matrix_t source, int64_t n_scales, __half *target) {
    constexpr int N = VECTOR ? 4 : 1;
    int64_t row = blockIdx.x, columns = source.columns;
    const uint8_t *codes = (const uint8_t *)source.data + row * columns;
    const __half *group_scales = (const __half *)source.scales + row * n_scales;
    target += row * columns;
    for (int64_t i = threadIdx.x * N; i < columns; i += THREADS * N) {
        float scale =
            DTYPE == DTYPE_Q8 ? __half2float(group_scales[i / DENSE8_GROUP]) : ((const float *)source.scales)[row];
        float values[4];
        dense8_unpack4<DTYPE>(VECTOR ? *(const uint32_t *)(codes + i) : codes[i], values);
        __align__(8) __half rounded[4];
#pragma unroll
        for (int j = 0; j < N; j++)
            rounded[j] = __float2half_rn(values[j] * scale);
        if (VECTOR)
            *(uint2 *)(target + i) = *(const uint2 *)rounded;
        else
            target[i] = rounded[0];
    }
}

template <dtype_t DTYPE> void launch_dequantize(const matrix_t &source, __half *target, cudaStream_t stream) {
    int64_t n_scales = dense8_row_scales(DTYPE, source.columns);
    bool vector = source.columns % 4 == 0 && (uintptr_t)source.data % 4 == 0 && (uintptr_t)target % 8 == 0;
    if (vector)
        dense8_dequantize_kernel<DTYPE, true>
            <<<(unsigned int)source.rows, THREADS, 0, stream>>>(source, n_scales, target);
    else
        dense8_dequantize_kernel<DTYPE, false>
            <<<(unsigned int)source.rows, THREADS, 0, stream>>>(source, n_scales, target);
}

} // namespace

status_t launch_dense8_quantize(const dense8_args_t *args, const device_queue_t *queue) {
    const matrix_t *source = &args->source, *target = &args->target;
    int64_t n_scales = dense8_row_scales(target->dtype, source->columns), n_groups = source->rows * n_scales;
    if (source->rows * source->columns == 0) return STATUS_OK;
    uint8_t *codes = (uint8_t *)(uintptr_t)target->data;
    void *scales = (void *)(uintptr_t)target->scales;
    if (target->dtype == DTYPE_Q8)
        dense8_quantize_q8_kernel<<<blocks_for(n_groups, THREADS / WARP), THREADS, 0, queue->stream>>>(
            *source, (int8_t *)codes, (__half *)scales, n_scales);
    else
        dense8_quantize_qpn8_kernel<<<(unsigned int)source->rows, THREADS, 0, queue->stream>>>(*source, codes,
                                                                                               (float *)scales);
    TRY(queue_check_launch("dense8_quantize"));
    if (!args->errors) return STATUS_OK;
    return target->dtype == DTYPE_Q8 ? launch_errors<DTYPE_Q8>(args, n_scales, queue->stream)
                                     : launch_errors<DTYPE_QPN8>(args, n_scales, queue->stream);
}

status_t launch_dense8_dequantize(const dense8_args_t *args, const device_queue_t *queue) {
    const matrix_t *source = &args->source;
    if (source->rows * source->columns == 0) return STATUS_OK;
    __half *target = (__half *)(uintptr_t)args->target.data;
    if (source->dtype == DTYPE_Q8)
        launch_dequantize<DTYPE_Q8>(*source, target, queue->stream);
    else
        launch_dequantize<DTYPE_QPN8>(*source, target, queue->stream);
    return queue_check_launch("dense8_dequantize");
}
