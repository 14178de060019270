#ifndef GALVANI_KERNELS_GR_M1_CHUNK_CUH
#define GALVANI_KERNELS_GR_M1_CHUNK_CUH

/* Products of 16 bytes of weights with as many values, for gr_m1.cu. The values are an operand: FP32 for FP16 and QPN8
 * weights; for Q8 integers of 16 bits, so that one instruction makes four products and no code becomes a float. Their
 * scale is the largest of sixteen values over 32767: finer than FP16 for all that is above a 32nd of that one. */

#include "device/device.cuh"
#include "linear/dense8.cuh"

/* Loads of what no kernel writes, which the compiler leaves where they stand: before previous_wait. */
static __device__ __forceinline__ uint4 load_early(const uint4 *from) {
    uint4 word;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from));
    return word;
}

static __device__ __forceinline__ unsigned short load_early(const unsigned short *from) {
    unsigned short half;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(half) : "l"(from));
    return half;
}

static __device__ __forceinline__ float load_early(const float *from) {
    float value;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
    return value;
}

/* 16 bytes of a row of COLUMNS weights, from a column that is a multiple of VALUES. */
template <dtype_t DTYPE, int COLUMNS> struct gr_chunk;

/* 1.5 * 2^23: an FP32 number of this size has the value of its integer part in its last 22 bits. */
static constexpr float INTEGERS = 12582912.0f;

template <int N> struct float_operand {
    float x[N];
    __device__ __forceinline__ void set(const float values[N]) {
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] = values[j];
    }
};

/* PLACES operands in shared memory, in words that neighbouring lanes read together. */
template <int N, int PLACES> struct float_operands {
    float4 words[N / 4][PLACES];
    __device__ __forceinline__ void put(int at, float value) {
        if (at < N * PLACES) ((float *)&words[at % N / 4][at / N])[at % 4] = value;
    }
    __device__ __forceinline__ void get(int place, float_operand<N> *operand) const {
#pragma unroll
        for (int j = 0; j < N; j += 4)
            *(float4 *)(operand->x + j) = words[j / 4][place];
    }
};

template <int COLUMNS> struct gr_chunk<DTYPE_F16, COLUMNS> {
    enum { VALUES = 8 };
    typedef float_operand<VALUES> operand;
    template <int PLACES> using operands = float_operands<VALUES, PLACES>;
    uint4 word;

    __device__ __forceinline__ void load(const matrix_t &matrix, int row, int column) {
        word = load_early((const uint4 *)((const __half *)matrix.data + (int64_t)row * COLUMNS + column));
    }
    __device__ __forceinline__ float dot(const operand &operand) const {
        float weight[VALUES], sum = 0.0f;
        unpack8(word, weight);
#pragma unroll
        for (int j = 0; j < VALUES; j++)
            sum = fmaf(weight[j], operand.x[j], sum);
        return sum;
    }
};

template <int COLUMNS> struct gr_chunk<DTYPE_QPN8, COLUMNS> {
    enum { VALUES = 16 };
    typedef float_operand<VALUES> operand;
    template <int PLACES> using operands = float_operands<VALUES, PLACES>;
    uint4 word;
    float scale;

    __device__ __forceinline__ void load(const matrix_t &matrix, int row, int column) {
        word = load_early((const uint4 *)((const uint8_t *)matrix.data + (int64_t)row * COLUMNS + column));
        scale = load_early((const float *)matrix.scales + row);
    }
    __device__ __forceinline__ float dot(const operand &operand) const {
        float code[VALUES], sum = 0.0f;
        dense8_unpack16<DTYPE_QPN8>(word, code);
#pragma unroll
        for (int j = 0; j < VALUES; j++)
            sum = fmaf(code[j], operand.x[j], sum);
        return sum * scale;
    }
};

/* Sixteen values as (256 * upper + lower) * scale, upper signed and lower unsigned bytes. A NaN becomes any number:
 * down has it in its norm too. */
struct q8_operand {
    uint4 upper, lower;
    float scale;

    __device__ __forceinline__ void set(const float values[16]) {
        float most = 0.0f;
#pragma unroll
        for (int j = 0; j < 16; j++)
            most = fmaxf(most, fabsf(values[j]));
        float inverse = most > 0.0f ? __fdividef(32767.0f, most) : 0.0f;
        uint32_t uppers[4], lowers[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t bits[4];
#pragma unroll
            for (int j = 0; j < 4; j++) /* a sum's last bits are the rounded integer */
                bits[j] = __float_as_uint(fmaf(values[4 * i + j], inverse, INTEGERS));
            uint32_t low = __byte_perm(bits[0], bits[1], 0x5410), high = __byte_perm(bits[2], bits[3], 0x5410);
            lowers[i] = __byte_perm(low, high, 0x6420);
            uppers[i] = __byte_perm(low, high, 0x7531);
        }
        upper = make_uint4(uppers[0], uppers[1], uppers[2], uppers[3]);
        lower = make_uint4(lowers[0], lowers[1], lowers[2], lowers[3]);
        scale = most * (1.0f / 32767.0f);
    }
};

template <int PLACES> struct q8_operands {
    uint4 upper[PLACES], lower[PLACES];
    float scale[PLACES];

    /* Called by whole warps. A NaN makes the scale NaN. */
    __device__ __forceinline__ void put(int at, float value) {
        unsigned int most = __float_as_uint(value) & 0x7FFFFFFFu; /* NaN is the largest */
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
        float largest = __uint_as_float(most);
        uint32_t bits = __float_as_uint(fmaf(value, largest > 0.0f ? __fdividef(32767.0f, largest) : 0.0f, INTEGERS));
        if (at >= 16 * PLACES) return;
        ((uint8_t *)lower)[at] = (uint8_t)bits;
        ((uint8_t *)upper)[at] = (uint8_t)(bits >> 8);
        if (at % 16 == 0) scale[at / 16] = largest * (1.0f / 32767.0f);
    }
    __device__ __forceinline__ void get(int place, q8_operand *operand) const {
        operand->upper = upper[place];
        operand->lower = lower[place];
        operand->scale = scale[place];
    }
};

template <int COLUMNS> struct gr_chunk<DTYPE_Q8, COLUMNS> {
    enum { VALUES = 16, GROUPS = (COLUMNS + DENSE8_GROUP - 1) / DENSE8_GROUP };
    typedef q8_operand operand;
    template <int PLACES> using operands = q8_operands<PLACES>;
    uint4 word;
    unsigned short scale;

    __device__ __forceinline__ void load(const matrix_t &matrix, int row, int column) {
        word = load_early((const uint4 *)((const int8_t *)matrix.data + (int64_t)row * COLUMNS + column));
        scale = load_early((const unsigned short *)matrix.scales + (int64_t)row * GROUPS + column / DENSE8_GROUP);
    }
    __device__ __forceinline__ float dot(const operand &operand) const {
        const uint32_t w[4] = {word.x, word.y, word.z, word.w};
        const uint32_t upper[4] = {operand.upper.x, operand.upper.y, operand.upper.z, operand.upper.w};
        const uint32_t lower[4] = {operand.lower.x, operand.lower.y, operand.lower.z, operand.lower.w};
        int uppers = __float_as_int(INTEGERS), lowers = uppers; /* the sums stay below 2^22 */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(uppers) : "r"(w[i]), "r"(upper[i]));
            asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(lowers) : "r"(w[i]), "r"(lower[i]));
        }
        float sum = fmaf(__int_as_float(uppers) - INTEGERS, 256.0f, __int_as_float(lowers) - INTEGERS);
        return sum * (operand.scale * __half2float(__ushort_as_half(scale)));
    }
};

#endif
