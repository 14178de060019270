#ifndef GALVANI_KERNELS_LINEAR_H
#define GALVANI_KERNELS_LINEAR_H

#include "base/matrix.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t] = weight x[t]. Each output is summed in an order that depends on weight.columns alone, so a token's result does
 * not depend on the tokens computed with it: prefill in any chunks and decode agree to the bit on one backend. */
typedef struct linear_args {
    int64_t n_tokens;
    matrix_t weight; /* [n_outputs, n_inputs] */
    const float *x;  /* [n_tokens, n_inputs] */
    float *y;        /* [n_tokens, n_outputs]; must not overlap x */
} linear_args_t;

status_t linear_cpu(const linear_args_t *args);

/* The dot product that every CPU op uses: sum of weight[i] * x[i] over n, in FP32. */
float dot_bf16(const uint16_t *weight, const float *x, int64_t n);
float dot_f16(const uint16_t *weight, const float *x, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
