#ifndef GALVANI_KERNELS_DEVICE_DEVICE_CUH
#define GALVANI_KERNELS_DEVICE_DEVICE_CUH

/* Small pieces that several kernels share. */

#include <cuda_fp16.h>
#include <stdint.h>

enum { WARP = 32 };

static __device__ __forceinline__ float sigmoidf(float x) { return 1.0f / (1.0f + __expf(-x)); }
static __device__ __forceinline__ float siluf(float x) { return x / (1.0f + __expf(-x)); }

/* Sum over the LANES neighbouring lanes of a group, in every lane; the order is fixed. */
template <int LANES> static __device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Sum over a block of whole warps, in every thread. `scratch` holds 32 floats; the block is synchronized before return,
 * so that scratch may be used again after one more __syncthreads. */
static __device__ __forceinline__ float block_sum(float value, float *scratch) {
    value = lanes_sum<WARP>(value);
    int n_warps = (int)blockDim.x / WARP;
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < n_warps; warp++)
        sum += scratch[warp];
    return sum;
}

/* Eight FP16 values of one 16-byte word as FP32. */
static __device__ __forceinline__ void unpack8(uint4 word, float values[8]) {
    const __half2 *pairs = (const __half2 *)&word;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = __half22float2(pairs[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
    }
}

static inline unsigned int blocks_for(int64_t n, int64_t per_block) {
    return (unsigned int)((n + per_block - 1) / per_block);
}

#endif
