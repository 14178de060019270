#ifndef GALVANI_KERNELS_GR_H
#define GALVANI_KERNELS_GR_H

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gated residual, mixing side (transformers qwen4_exp, Qwen4ExpTextGatedResidual). With n(x, g) the one-plus RMSNorm:
 *   z[s] = n(h[s], hc_norm[s]);  a = silu(down z / S);  gate = sigmoid(up a);  u = mean over s of gate[s] * z[s]
 *   inject = 2 sigmoid(block_inject z / S)
 * Where the block before has its combining side (below) still to come, inject_before and o carry it, and h first
 * becomes what gr_inject makes of it. */
typedef struct gr_mix_args {
    int64_t n_tokens, hc_count, hidden_size;
    float rms_norm_eps;
    float *h;                   /* [n_tokens, hc_count, hidden_size]; written only with inject_before */
    const float *inject_before; /* [n_tokens, hc_count]; NULL: h is complete */
    activation_t *o;            /* [n_tokens, hidden_size], with inject_before */
    bool receives;              /* o is written: the deferred sum of parts that all ranks sent (push/push_part.cuh) */
    const float *hc_norm;       /* [hc_count * hidden_size] */
    matrix_t down;              /* input_mix_weight_down [hc_lowrank, hc_count * hidden_size] */
    matrix_t up;                /* input_mix_weight_up [hc_count * hidden_size, hc_lowrank] */
    matrix_t block_inject;      /* [hc_count, hc_count * hidden_size]; data is NULL in the final mixer */
    activation_t *u;            /* [n_tokens, hidden_size]; must not overlap o */
    float *inject;              /* [n_tokens, hc_count], other memory than inject_before; NULL in the final mixer */
    void *workspace;            /* gr_mix_workspace_bytes */
} gr_mix_args_t;

size_t gr_mix_workspace_bytes(const gr_mix_args_t *args);
status_t gr_mix_cpu(const gr_mix_args_t *args);

size_t gr_mix_cuda_workspace_bytes(const gr_mix_args_t *args);
status_t launch_gr_mix(const gr_mix_args_t *args, const device_queue_t *queue);

/* Gated residual, combining side: h[t, s] += inject[t, s] * o[t]. */
typedef struct gr_inject_args {
    int64_t n_tokens, hc_count, hidden_size;
    const float *inject;   /* [n_tokens, hc_count] */
    const activation_t *o; /* [n_tokens, hidden_size] */
    float *h;              /* [n_tokens, hc_count, hidden_size] */
} gr_inject_args_t;

status_t gr_inject_cpu(const gr_inject_args_t *args);
status_t launch_gr_inject(const gr_inject_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
