#ifndef GALVANI_KERNELS_MOE_H
#define GALVANI_KERNELS_MOE_H

/* The MoE block of one token in three launches: what router, experts and shared_expert compute one by one, joined. */

#include <stdbool.h>

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"
#include "experts/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o = sum over the top_k experts e of weight_e * down_e(silu(gate_e u) * up_e u) + shared_gate * down(silu(gate u) * up
 * u), with the choice, the weights and the shared gate as in router/router.h. With the intermediate sizes being this
 * rank's share, o is its partial sum. */
typedef struct moe_args {
    int64_t n_experts, top_k, hidden_size, intermediate, shared_intermediate;
    bool norm_topk_prob;
    const activation_t *u;   /* [hidden_size] */
    matrix_t router;         /* [n_experts + 1, hidden_size]: the last row is the shared expert's gate */
    matrix_t shared_gate_up; /* [2*shared_intermediate, hidden_size], gate rows before up rows */
    matrix_t shared_down;    /* [hidden_size, shared_intermediate] */
    expert_weights_t expert_weights;
    float *logits; /* [n_experts + 1] */
    /* Written only where the route `router` (these three) or `shared_gate` (the last) is off: */
    int32_t *experts;   /* [top_k] */
    float *weights;     /* [top_k] */
    float *shared_gate; /* [1] */
    activation_t *o;    /* [hidden_size] */
    bool sends;         /* o is not written but sent as this rank's part of a deferred sum (push/push_part.cuh) */
    void *workspace;    /* moe_workspace_bytes */
} moe_args_t;

size_t moe_cuda_workspace_bytes(const moe_args_t *args);

/* Whether the three below can be taken instead of router, experts and shared_expert (routes `nvfp4_m1`, `router` and
 * `shared_gate`). To be asked before each moe_in; the three follow in order. */
bool moe_is_joined(const moe_args_t *args, const device_queue_t *queue);

/* Logits, and the shared expert's activation. */
status_t launch_moe_in(const moe_args_t *args, const device_queue_t *queue);

/* The choice of experts, and their activations. */
status_t launch_moe_gate_up(const moe_args_t *args, const device_queue_t *queue);

/* All down projections and their sum. */
status_t launch_moe_down(const moe_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
