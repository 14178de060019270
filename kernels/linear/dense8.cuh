#ifndef GALVANI_KERNELS_LINEAR_DENSE8_CUH
#define GALVANI_KERNELS_LINEAR_DENSE8_CUH

/* Codes of linear/dense8.h to FP16, exact, or FP32; still without their scale. The same values on every architecture.
 */

#include <cuda_fp16.h>
#include <stdint.h>

#include "linear/dense8.h"

static __device__ __forceinline__ __half2 half2_of_bits(uint32_t bits) { return *(const __half2 *)&bits; }
static __device__ __forceinline__ uint32_t bits_of_half2(__half2 pair) { return *(const uint32_t *)&pair; }

/* Four INT8 codes as FP16 pairs. A byte c + 128 under 0x64 is the FP16 number 1024 + 128 + c; the difference is exact.
 */
static __device__ __forceinline__ void q8_halves4(uint32_t codes, uint32_t pairs[2]) {
    uint32_t biased = codes ^ 0x80808080u;
    __half2 offset = half2_of_bits(0x64806480u); /* 1152 */
    pairs[0] = bits_of_half2(__hsub2(half2_of_bits(__byte_perm(biased, 0x64646464u, 0x4140)), offset));
    pairs[1] = bits_of_half2(__hsub2(half2_of_bits(__byte_perm(biased, 0x64646464u, 0x4342)), offset));
}

/* Two E4M3 codes, in the low 16 bits. No code is NaN. */
static __device__ __forceinline__ uint32_t qpn8_halves2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t bits;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"((unsigned short)codes));
    return bits;
#else
    /* Sign, exponent and mantissa where FP16 has them make code * 2^-8, exact also where it is subnormal. */
    uint32_t high = __byte_perm(codes, 0, 0x1404);
    uint32_t bits = (high & 0x80008000u) | ((high & 0x7F007F00u) >> 1);
    return bits_of_half2(__hmul2(half2_of_bits(bits), half2_of_bits(0x5C005C00u)));
#endif
}

template <dtype_t DTYPE> static __device__ __forceinline__ void dense8_halves4(uint32_t codes, uint32_t pairs[2]) {
    if (DTYPE == DTYPE_Q8) {
        q8_halves4(codes, pairs);
    } else {
        pairs[0] = qpn8_halves2(codes & 0xFFFFu);
        pairs[1] = qpn8_halves2(codes >> 16);
    }
}

template <dtype_t DTYPE> static __device__ __forceinline__ void dense8_unpack4(uint32_t codes, float values[4]) {
    uint32_t pairs[2];
    dense8_halves4<DTYPE>(codes, pairs);
    float2 low = __half22float2(half2_of_bits(pairs[0])), high = __half22float2(half2_of_bits(pairs[1]));
    values[0] = low.x;
    values[1] = low.y;
    values[2] = high.x;
    values[3] = high.y;
}

/* The sixteen codes of one 16-byte word. */
template <dtype_t DTYPE> static __device__ __forceinline__ void dense8_unpack16(uint4 codes, float values[16]) {
    dense8_unpack4<DTYPE>(codes.x, values);
    dense8_unpack4<DTYPE>(codes.y, values + 4);
    dense8_unpack4<DTYPE>(codes.z, values + 8);
    dense8_unpack4<DTYPE>(codes.w, values + 12);
}

#endif
