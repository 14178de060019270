#ifndef GALVANI_KERNELS_GDN_H
#define GALVANI_KERNELS_GDN_H

#include <stdbool.h>

#include "base/activation.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gated DeltaNet between its projections (transformers qwen4_exp, Qwen4ExpTextGatedDeltaNet). Heads are this rank's.
 *   q, k, v = silu(conv(projected q, k, v));  q, k *= 1 / sqrt(sum of squares + 1e-6), per head;  q /= sqrt(key_dim)
 *   beta = sigmoid(b);  g = -exp(A_log) softplus(a + dt_bias)
 *   S *= exp(g);  d = (v - S^T k) beta;  S += k d^T;  o = S^T q
 *   y = o / sqrt(mean(o^2) + rms_norm_eps) * norm * gate(z), per head, gate being sigmoid or SiLU
 * conv is depthwise and causal. Value head i uses key head i / (n_value_heads / n_key_heads). Both states are updated
 * in place and carry over calls: tokens in any chunks give the same. */
typedef struct gdn_core_args {
    int64_t n_tokens, n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel;
    float rms_norm_eps;
    bool silu_gate;                /* output gate is SiLU(z) instead of sigmoid(z) */
    const activation_t *projected; /* [n_tokens, projected_stride]: q | k | v (convolved channels), z, b, a */
    int64_t projected_stride;      /* >= 2*n_key_heads*key_dim + 2*n_value_heads*value_dim + 2*n_value_heads */
    const float *conv;             /* [n_channels, conv_kernel]; the last tap is the current token's */
    const float *A_log;            /* [n_value_heads] */
    const float *dt_bias;          /* [n_value_heads] */
    const float *norm;             /* [value_dim], plain weight */
    activation_t *conv_state;      /* [conv_kernel - 1, n_channels], oldest first: inputs before the convolution */
    float *state;                  /* [n_value_heads, key_dim, value_dim] */
    activation_t *y;               /* [n_tokens, n_value_heads * value_dim] */
    void *workspace;               /* gdn_core_workspace_bytes */
} gdn_core_args_t;

size_t gdn_core_workspace_bytes(const gdn_core_args_t *args);
status_t gdn_core_cpu(const gdn_core_args_t *args);

size_t gdn_core_cuda_workspace_bytes(const gdn_core_args_t *args);
status_t launch_gdn_core(const gdn_core_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
