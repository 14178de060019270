#ifndef GALVANI_KERNELS_COMMON_ROPE_H
#define GALVANI_KERNELS_COMMON_ROPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rotates the first rotary_dim values of each of n_vectors vectors, `stride` values apart, to `position`: values i and
 * i + rotary_dim/2 by the angle position * theta^(-2i / rotary_dim) (transformers qwen4_exp, apply_rotary_pos_emb).
 * Angles and their sines are FP64: at position 262143 an FP32 angle is wrong by up to 0.016. */
void rope_rotate(float *x, int64_t n_vectors, int64_t stride, int64_t rotary_dim, double theta, int64_t position);

#ifdef __cplusplus
}
#endif
#endif
