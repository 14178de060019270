#ifndef GALVANI_KERNELS_LINEAR_H
#define GALVANI_KERNELS_LINEAR_H

#include "base/matrix.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t] = weight x[t]; weight is F32, BF16 or F16. Each output is summed in an order that depends on weight.columns
 * alone, so a token's result does not depend on the tokens computed with it: prefill in any chunks and decode agree to
 * the bit on one backend. */
typedef struct linear_args {
    int64_t n_tokens;
    matrix_t weight; /* [n_outputs, n_inputs] */
    const float *x;  /* [n_tokens, n_inputs] */
    float *y;        /* [n_tokens, n_outputs]; must not overlap x */
} linear_args_t;

status_t linear_cpu(const linear_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
