#include "base/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DTYPE_N] = {
    [DTYPE_F32] = {"F32", 4},         [DTYPE_BF16] = {"BF16", 2}, [DTYPE_F16] = {"F16", 2},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_U8] = {"U8", 1},     [DTYPE_I32] = {"I32", 4},
    [DTYPE_I64] = {"I64", 8},         [DTYPE_Q8] = {"Q8", 1},     [DTYPE_QPN8] = {"QPN8", 1},
};

size_t dtype_bytes(dtype_t dtype) { return dtypes[dtype].bytes; }

const char *dtype_name(dtype_t dtype) { return dtypes[dtype].name; }

dtype_t dtype_from_name(const char *name) {
    int i = 0;
    while (i < DTYPE_Q8 && strcmp(dtypes[i].name, name) != 0)
        i++;
    return i < DTYPE_Q8 ? (dtype_t)i : DTYPE_N;
}

const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* (1 + m/8) * 2^(e-7) for exponent e > 0, m/8 * 2^-6 for e = 0, both signs, spelt by the preprocessor so that the
 * table is constant data. S is the sign, P the power of two. */
#define E4M3_NORMAL(S, P) S 8 * (P), S 9 * (P), S 10 * (P), S 11 * (P), S 12 * (P), S 13 * (P), S 14 * (P), S 15 * (P)
#define E4M3_SIGN(S)                                                                                                   \
    S 0.0f, S 0x1p-9f, S 0x2p-9f, S 0x3p-9f, S 0x4p-9f, S 0x5p-9f, S 0x6p-9f, S 0x7p-9f, E4M3_NORMAL(S, 0x1p-9f),      \
        E4M3_NORMAL(S, 0x1p-8f), E4M3_NORMAL(S, 0x1p-7f), E4M3_NORMAL(S, 0x1p-6f), E4M3_NORMAL(S, 0x1p-5f),            \
        E4M3_NORMAL(S, 0x1p-4f), E4M3_NORMAL(S, 0x1p-3f), E4M3_NORMAL(S, 0x1p-2f), E4M3_NORMAL(S, 0x1p-1f),            \
        E4M3_NORMAL(S, 0x1p0f), E4M3_NORMAL(S, 0x1p1f), E4M3_NORMAL(S, 0x1p2f), E4M3_NORMAL(S, 0x1p3f),                \
        E4M3_NORMAL(S, 0x1p4f), S 256.0f, S 288.0f, S 320.0f, S 352.0f, S 384.0f, S 416.0f, S 448.0f, NAN

const float e4m3_values[256] = {E4M3_SIGN(+), E4M3_SIGN(-)};

uint8_t e4m3_from_float(float value) {
    if (isnan(value)) return 0x7F;
    uint8_t sign = signbit(value) ? 0x80 : 0;
    float magnitude = fabsf(value);
    if (magnitude >= 448.0f) return sign | 0x7E;
    /* Codes 0x00..0x7E rise with their values: find the last one not above, then choose the nearer neighbour. */
    unsigned low = 0, high = 0x7E;
    while (low < high) {
        unsigned middle = (low + high + 1) / 2;
        if (e4m3_values[middle] <= magnitude)
            low = middle;
        else
            high = middle - 1;
    }
    float below = magnitude - e4m3_values[low];
    float above = e4m3_values[low + 1] - magnitude;
    unsigned code = (below < above || (below == above && low % 2 == 0)) ? low : low + 1;
    return (uint8_t)(sign | code);
}

uint16_t bf16_from_float(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isnan(value)) return (uint16_t)(word >> 16 | 0x40);
    return (uint16_t)((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

float f16_to_float(uint16_t bits) {
    uint32_t exponent = bits >> 10 & 0x1F;
    uint32_t mantissa = bits & 0x3FF;
    float magnitude;
    if (exponent == 0x1F)
        magnitude = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = (float)mantissa * 0x1p-24f;
    else
        magnitude = ldexpf((float)(mantissa | 0x400), (int)exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t f16_from_float(float value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float magnitude = fabsf(value);
    if (isnan(value)) return sign | 0x7E00;
    if (magnitude >= 65520.0f) return sign | 0x7C00;
    int exponent;
    frexpf(magnitude, &exponent);       /* magnitude = f * 2^exponent, 0.5 <= f < 1 */
    if (exponent < -13) exponent = -13; /* subnormals share the smallest normal's step */
    /* One unit in the last place is 2^(exponent - 11); rintf rounds to nearest even. */
    uint32_t units = (uint32_t)rintf(ldexpf(magnitude, 11 - exponent));
    /* The step above 2047 units carries into the exponent by plain addition; below 1024 the number is subnormal. */
    if (units < 1024) return (uint16_t)(sign | units);
    return (uint16_t)(sign + ((uint32_t)(exponent + 13) << 10) + units);
}
