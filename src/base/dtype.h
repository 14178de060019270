#ifndef GALVANI_BASE_DTYPE_H
#define GALVANI_BASE_DTYPE_H

/* Number formats of weights: their names, sizes and values as FP32. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F8_E4M3, /* OCP E4M3FN: no infinity, 0x7F and 0xFF are NaN, largest value 448 */
    DTYPE_U8,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_Q8,   /* made at load only (linear/dense8.h): INT8 codes, a scale for each 64 of a row */
    DTYPE_QPN8, /* made at load only: E4M3 codes, a scale for each row */
    DTYPE_N
} dtype_t;

/* Bytes of one item; of one code, where there are scales. */
size_t dtype_bytes(dtype_t dtype);

/* Name as safetensors spells it: "F32", "BF16", "F16", "F8_E4M3", "U8", "I32", "I64"; and "Q8", "QPN8". */
const char *dtype_name(dtype_t dtype);

/* Inverse of dtype_name for what files may hold, so neither Q8 nor QPN8; DTYPE_N for another name. */
dtype_t dtype_from_name(const char *name);

/* Value of each E4M3FN code (0x7F and 0xFF are NaN) and of each E2M1 (FP4) code; OCP MX v1.0, section 5.3. */
extern const float e4m3_values[256];
extern const float e2m1_values[16];

/* Nearest E4M3FN code, ties to even, saturating at 448; NaN gives 0x7F. */
uint8_t e4m3_from_float(float value);

/* Nearest E2M1 code, saturating at 6; ties at 0.75, 1.75, 3.5 go up and the others down, as ModelOpt exports them. */
static inline uint8_t e2m1_from_float(float value) {
    float magnitude = value < 0 ? -value : value;
    int code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
               (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
    return (uint8_t)(code && value < 0 ? code | 8 : code);
}

/* BF16 is the upper half of an FP32 word, so widening is exact. */
static inline float bf16_to_float(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Round to nearest, ties to even; NaN stays NaN. */
uint16_t bf16_from_float(float value);

float f16_to_float(uint16_t bits);

/* Round to nearest, ties to even; overflow gives infinity. */
uint16_t f16_from_float(float value);

#ifdef __cplusplus
}
#endif
#endif
