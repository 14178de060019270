#ifndef GALVANI_KERNELS_SHARED_EXPERT_H
#define GALVANI_KERNELS_SHARED_EXPERT_H

#include "base/matrix.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o[t] += shared_gate[t] * down(silu(gate u[t]) * up u[t]); this rank's slice, so o is a partial sum. */
typedef struct shared_expert_args {
    int64_t n_tokens;
    const float *u;           /* [n_tokens, hidden_size] */
    const float *shared_gate; /* [n_tokens] */
    matrix_t gate_up;         /* [2*intermediate, hidden_size], gate rows before up rows */
    matrix_t down;            /* [hidden_size, intermediate] */
    float *o;                 /* [n_tokens, hidden_size] */
    void *workspace;          /* shared_expert_workspace_bytes */
} shared_expert_args_t;

size_t shared_expert_workspace_bytes(const shared_expert_args_t *args);
status_t shared_expert_cpu(const shared_expert_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
