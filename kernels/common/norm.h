#ifndef GALVANI_KERNELS_COMMON_NORM_H
#define GALVANI_KERNELS_COMMON_NORM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The one-plus RMSNorm of the model: y = x / sqrt(mean(x^2) + eps) * (1 + weight) over n values (transformers
 * qwen4_exp, Qwen4ExpTextRMSNorm). The sum is dot_f32's. y may be x. */
void rmsnorm_one_plus(const float *x, const float *weight, int64_t n, float eps, float *y);

/* x *= factor / sqrt(sum(x^2) + 1e-6): eps is within the sum, not the mean. */
void l2norm(float *x, int64_t n, float factor);

#ifdef __cplusplus
}
#endif
#endif
