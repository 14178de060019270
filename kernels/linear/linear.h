#ifndef GALVANI_KERNELS_LINEAR_H
#define GALVANI_KERNELS_LINEAR_H

#include <stdbool.h>

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[t] = weight x[t]; weight is F32, BF16 or F16 on the CPU; F16, Q8 or QPN8 on CUDA. On the CPU each output is summed
 * in an order that depends on weight.columns alone, so a token's result does not depend on the tokens computed with it:
 * prefill in any chunks and decode agree to the bit. On CUDA one token (route gemv_m1), up to
 * LINEAR_MAX_GEMV_TOKENS and more (a GEMM, as for 8 bits and more than one) each have an order of their own. */
typedef struct linear_args {
    int64_t n_tokens;
    matrix_t weight;       /* [n_outputs, n_inputs] */
    const activation_t *x; /* [n_tokens, n_inputs] */
    activation_t *y;       /* [n_tokens, n_outputs]; must not overlap x */
    float *y_f32;          /* instead of y, where the result is wanted in FP32; one of the two is NULL */
    bool sends;            /* y is not written but sent as this rank's part of a deferred sum (push/push_part.cuh) */
} linear_args_t;

enum { LINEAR_MAX_GEMV_TOKENS = 8 };

status_t linear_cpu(const linear_args_t *args);
status_t launch_linear(const linear_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
