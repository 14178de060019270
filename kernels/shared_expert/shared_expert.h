#ifndef GALVANI_KERNELS_SHARED_EXPERT_H
#define GALVANI_KERNELS_SHARED_EXPERT_H

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o[t] += shared_gate[t] * down(silu(gate u[t]) * up u[t]); this rank's slice, so o is a partial sum. */
typedef struct shared_expert_args {
    int64_t n_tokens;
    const activation_t *u;    /* [n_tokens, hidden_size] */
    const float *shared_gate; /* [n_tokens] */
    matrix_t gate_up;         /* [2*intermediate, hidden_size], gate rows before up rows */
    matrix_t down;            /* [hidden_size, intermediate] */
    activation_t *o;          /* [n_tokens, hidden_size] */
    void *workspace;          /* shared_expert_workspace_bytes */
} shared_expert_args_t;

size_t shared_expert_workspace_bytes(const shared_expert_args_t *args);
status_t shared_expert_cpu(const shared_expert_args_t *args);

size_t shared_expert_cuda_workspace_bytes(const shared_expert_args_t *args);
status_t launch_shared_expert(const shared_expert_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
