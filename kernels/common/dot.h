#ifndef GALVANI_KERNELS_COMMON_DOT_H
#define GALVANI_KERNELS_COMMON_DOT_H

/* Dot products of weight rows with activations, FP32: what every projection of the CPU reference is made of.
 *
 * Order of summation: partial sum j, j < 16, takes the products of columns j, j + 16, j + 32 ... in that order; the 16
 * partial sums are added as a tree. It depends on the number of columns alone, so a token's result does not depend on
 * the tokens computed with it, on the number of threads, or on the machine. */

#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weight rows, row-major [rows, columns]. F32, BF16 and F16 widen exactly. U8 is NVFP4 without its last factor: two
 * E2M1 codes a byte, the even column in the low nibble, times the E4M3 scale of each 16 columns, which is exact in
 * FP32; columns is then a multiple of 16. */
typedef struct dot_weights {
    const void *data;
    const uint8_t *scales; /* [rows, columns / 16] for U8, else NULL */
    dtype_t dtype;
    int64_t columns;
} dot_weights_t;

/* y[t][r] = weights[first_row + r] . x[t] for r < n_rows, t < n_x. x and y are arrays of n_x pointers, to `columns` and
 * `n_rows` values each. */
void dot_rows(const dot_weights_t *weights, int64_t first_row, int64_t n_rows, const float *const *x, int64_t n_x,
              float *const *y);

/* a . b over n values. */
float dot_f32(const float *a, const float *b, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
