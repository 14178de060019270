#ifndef GALVANI_KERNELS_EXPERTS_H
#define GALVANI_KERNELS_EXPERTS_H

#include "base/activation.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All experts of one layer, this rank's slice. NVFP4: value = e2m1(code) * e4m3(scale) * scale_2, codes two a byte with
 * the even column in the low nibble, a scale for each 16 columns. Gate rows stand before up rows. FP16: codes are NULL.
 */
typedef struct expert_weights {
    const uint8_t *gate_up_codes;  /* [n_experts, 2*intermediate, hidden_size/2] */
    const uint8_t *gate_up_scales; /* [n_experts, 2*intermediate, hidden_size/16] */
    const float *gate_up_scale_2;  /* [n_experts, 2]: gate's, up's */
    const uint8_t *down_codes;     /* [n_experts, hidden_size, intermediate/2] */
    const uint8_t *down_scales;    /* [n_experts, hidden_size, intermediate/16] */
    const float *down_scale_2;     /* [n_experts] */
    const uint16_t *gate_up_f16;   /* [n_experts, 2*intermediate, hidden_size] */
    const uint16_t *down_f16;      /* [n_experts, hidden_size, intermediate] */
} expert_weights_t;

/* o[t] = sum over k, in that order, of weights[t, k] * down_e(silu(gate_e u) * up_e u), e = experts[t, k]. With
 * intermediate being this rank's share, o is this rank's partial sum. NVFP4: hidden_size and intermediate are multiples
 * of 16. */
typedef struct experts_args {
    int64_t n_tokens, n_experts, top_k, hidden_size, intermediate;
    const activation_t *u;  /* [n_tokens, hidden_size] */
    const int32_t *experts; /* [n_tokens, top_k] */
    const float *weights;   /* [n_tokens, top_k] */
    expert_weights_t expert_weights;
    activation_t *o; /* [n_tokens, hidden_size] */
    void *workspace; /* experts_workspace_bytes */
} experts_args_t;

size_t experts_workspace_bytes(const experts_args_t *args);
status_t experts_cpu(const experts_args_t *args);

size_t experts_cuda_workspace_bytes(const experts_args_t *args);
status_t launch_experts(const experts_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
