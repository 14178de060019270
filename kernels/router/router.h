#ifndef GALVANI_KERNELS_ROUTER_H
#define GALVANI_KERNELS_ROUTER_H

#include <stdbool.h>

#include "base/matrix.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Softmax over all experts in FP32, the top_k most probable (equal ones in favour of the lower id, written in falling
 * order of probability), renormalised to sum 1 if asked. The row behind the experts' is the shared expert's gate logit:
 * shared_gate = sigmoid of it. */
typedef struct router_args {
    int64_t n_tokens, n_experts, top_k;
    bool norm_topk_prob;
    const float *logits; /* [n_tokens, n_experts + 1] */
    int32_t *experts;    /* [n_tokens, top_k] */
    float *weights;      /* [n_tokens, top_k] */
    float *shared_gate;  /* [n_tokens] */
} router_args_t;

status_t router_cpu(const router_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
