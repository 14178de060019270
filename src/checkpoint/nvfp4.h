#ifndef GALVANI_CHECKPOINT_NVFP4_H
#define GALVANI_CHECKPOINT_NVFP4_H

/* NVFP4 as ModelOpt exports it: 4-bit E2M1 codes, two to a byte with the even index in the low nibble; one E4M3 scale
 * per block of 16 consecutive values; one FP32 scale_2 per matrix. value = code * scale * scale_2. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NVFP4_BLOCK = 16 };

/* Largest magnitude of `n` BF16 values; NaN if one of them is NaN, infinity if one is infinite. */
float nvfp4_amax(const uint16_t *values, size_t n);

/* scale_2 of a matrix with that largest magnitude: amax / (6 * 448), or 1 for a matrix of zeros. */
float nvfp4_scale_2(float amax);

/* Quantises `n` finite BF16 values, n a multiple of 16. codes: [n/2], scales: [n/16] E4M3. A block of zeros has scale
 * 1; a block whose scale underflows to 0 becomes zero. */
void nvfp4_quantize(const uint16_t *values, size_t n, float scale_2, uint8_t *codes, uint8_t *scales);

/* The inverse, in FP32: code * scale is exact, the product with scale_2 is rounded once. values: [n]. */
void nvfp4_dequantize(const uint8_t *codes, const uint8_t *scales, float scale_2, size_t n, float *values);

#ifdef __cplusplus
}
#endif
#endif
