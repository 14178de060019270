#ifndef GALVANI_KERNELS_COMMON_ACTIVATION_H
#define GALVANI_KERNELS_COMMON_ACTIVATION_H

/* Elementwise functions of the CPU reference, FP32, within 3 units in the last place; a result below the smallest
 * normal number may be zero. NaN gives NaN. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = 1 / (1 + exp(-x[i])); y may be x. */
void sigmoid(const float *x, int64_t n, float *y);

/* y[i] = x[i] * sigmoid(x[i]); y may be x. */
void silu(const float *x, int64_t n, float *y);

/* y[i] = silu(gate_scale * gate[i]) * (up_scale * up[i]); y may be gate or up. */
void silu_multiply(const float *gate, float gate_scale, const float *up, float up_scale, int64_t n, float *y);

/* y[i] = exp(x[i] - max x); returns their sum, so that y / sum is the softmax. y may be x. One NaN or +Inf among x, or
 * nothing but -Inf, makes the sum NaN. */
float softmax_exp(const float *x, int64_t n, float *y);

/* log(1 + exp(x)), without overflow for any x. */
float softplus(float x);

#ifdef __cplusplus
}
#endif
#endif
