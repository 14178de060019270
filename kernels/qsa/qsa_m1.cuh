#ifndef GALVANI_KERNELS_QSA_M1_CUH
#define GALVANI_KERNELS_QSA_M1_CUH

/* What the kernels of route `qsa` share. */

#include "device/device.cuh"
#include "device/launch.cuh"

enum { QSA_RATIO = 4, QSA_MAX_SELECT = 512, QSA_INDEX_HEADS = 4 };

/* Of four values, that which sums4 leaves in this lane. */
template <int LANES> static __device__ __forceinline__ int sums4_index() {
    int lane = threadIdx.x % LANES;
    return lane / (LANES / 4);
}

/* Sums of four values over LANES neighbouring lanes: a lane gets the one that sums4_index names. */
template <int LANES> static __device__ __forceinline__ float sums4(const float values[4]) {
    bool upper = threadIdx.x & LANES / 2, odd = threadIdx.x & LANES / 4;
    float low = upper ? values[2] : values[0], high = upper ? values[3] : values[1];
    low += __shfl_xor_sync(0xffffffffu, upper ? values[0] : values[2], LANES / 2);
    high += __shfl_xor_sync(0xffffffffu, upper ? values[1] : values[3], LANES / 2);
    float sum = odd ? high : low;
    sum += __shfl_xor_sync(0xffffffffu, odd ? low : high, LANES / 4);
#pragma unroll
    for (int offset = LANES / 8; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

#endif
