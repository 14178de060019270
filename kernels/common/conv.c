#include "common/conv.h"

#include <stddef.h>
#include <string.h>

#include "common/activation.h"
#include "common/parallel.h"

int64_t conv_state_rows(const conv_t *conv) { return (conv->kernel - 1) * conv->dilation; }

void conv_transpose(const float *weight, int64_t n_channels, int64_t kernel, float *taps) {
    for (int64_t c = 0; c < n_channels; c++) {
        for (int64_t j = 0; j < kernel; j++)
            taps[j * n_channels + c] = weight[c * kernel + j];
    }
}

void conv_silu(const conv_t *conv, int64_t n_tokens, float *y) {
    int64_t n = conv->n_channels;
#pragma omp parallel for if (n_tokens * n * conv->kernel >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        float *out = y + t * n;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t j = 0; j < conv->kernel; j++) {
            const float *in = conv->window + (t + j * conv->dilation) * n;
            const float *taps = conv->taps + j * n;
            for (int64_t c = 0; c < n; c++)
                out[c] += taps[c] * in[c];
        }
        silu(out, n, out);
    }
}

void conv_load_state(const conv_t *conv, const float *state) {
    memcpy(conv->window, state, (size_t)(conv_state_rows(conv) * conv->n_channels) * sizeof *state);
}

void conv_save_state(const conv_t *conv, int64_t n_tokens, float *state) {
    const float *last = conv->window + n_tokens * conv->n_channels;
    memcpy(state, last, (size_t)(conv_state_rows(conv) * conv->n_channels) * sizeof *state);
}
