#ifndef GALVANI_KERNELS_COMMON_CONV_H
#define GALVANI_KERNELS_COMMON_CONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A causal depthwise convolution over consecutive tokens, with its state. */
typedef struct conv {
    int64_t n_channels, kernel, dilation;
    const float *taps; /* [kernel, n_channels], from conv_transpose */
    float *window;     /* [conv_state_rows + n_tokens, n_channels]: the state, then the inputs of new tokens */
} conv_t;

/* Tokens before the first one that a convolution reaches back to: (kernel - 1) * dilation. */
int64_t conv_state_rows(const conv_t *conv);

/* Weights as stored [n_channels, kernel] to taps [kernel, n_channels], so that channels can be vectors. */
void conv_transpose(const float *weight, int64_t n_channels, int64_t kernel, float *taps);

/* y[t] = silu(sum over j of taps[j] * window[t + j * dilation]), j from the oldest input to the token's own; taps are
 * added in that order. y is [n_tokens, n_channels]. */
void conv_silu(const conv_t *conv, int64_t n_tokens, float *y);

/* state: [conv_state_rows, n_channels]. Load it in front of the window; save what the next tokens need. */
void conv_load_state(const conv_t *conv, const float *state);
void conv_save_state(const conv_t *conv, int64_t n_tokens, float *state);

#ifdef __cplusplus
}
#endif
#endif
