#ifndef GALVANI_KERNELS_EXPERTS_NVFP4_CUH
#define GALVANI_KERNELS_EXPERTS_NVFP4_CUH

/* NVFP4 in registers, by shifts alone: no table, nothing that only newer devices have.
 *
 * An E2M1 code s ee m put at FP16's sign, lowest two exponent bits and highest mantissa bit is the same number times
 * 2^-14, subnormals included. An E4M3 scale s eeee mmm put the same way is itself times 2^-8. Both are exact, so a
 * product of the two needs the factor 2^22, which is folded into scale_2. */

#include "device/device.cuh"

enum { NVFP4_BLOCK_VALUES = 16 };
#define NVFP4_FACTOR 4194304.0f /* 2^22 */

static __device__ __forceinline__ float e4m3_to_scaled_float(uint8_t code) {
    unsigned short bits = (unsigned short)((code & 0x80u) << 8 | (code & 0x7Fu) << 7);
    return __half2float(__ushort_as_half(bits));
}

/* Codes 0 ... 7 of one word (code 0 in the lowest bits) as pairs (0, 4), (1, 5), (2, 6), (3, 7), each times 2^-14. */
static __device__ __forceinline__ void e2m1_to_scaled_pairs(uint32_t codes, __half2 pairs[4]) {
    uint32_t *bits = (uint32_t *)pairs;
    bits[0] = (codes << 12 & 0x80008000u) | (codes << 9 & 0x0E000E00u);
    bits[1] = (codes << 8 & 0x80008000u) | (codes << 5 & 0x0E000E00u);
    bits[2] = (codes << 4 & 0x80008000u) | (codes << 1 & 0x0E000E00u);
    bits[3] = (codes & 0x80008000u) | (codes >> 3 & 0x0E000E00u);
}

/* Sum of one block's 16 codes, times 2^-14, with 16 activations. */
static __device__ __forceinline__ float nvfp4_block_dot(uint2 codes, const float x[16]) {
    float sum = 0.0f;
#pragma unroll
    for (int word = 0; word < 2; word++) {
        __half2 pairs[4];
        e2m1_to_scaled_pairs(word ? codes.y : codes.x, pairs);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 pair = __half22float2(pairs[i]);
            sum = fmaf(pair.x, x[word * 8 + i], sum);
            sum = fmaf(pair.y, x[word * 8 + i + 4], sum);
        }
    }
    return sum;
}

#endif
