#ifndef GALVANI_KERNELS_ROUTER_H
#define GALVANI_KERNELS_ROUTER_H

#include <stdbool.h>

#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The top_k experts of each token: those with the largest logits, hence the most probable, in falling order, equal
 * logits in favour of the lower id (-0 equals +0). Their weights are the softmax over all experts in FP32, renormalised
 * to sum 1 if asked. The column behind the experts' is the shared expert's gate logit: shared_gate = sigmoid of it
 * (transformers qwen4_exp, Qwen4ExpTextTopKRouter).
 *
 * An expert may be chosen with weight 0, also at logit -Inf. One NaN or +Inf among a token's logits, or nothing but
 * -Inf, leaves no distribution: its experts are then 0 ... top_k-1 and its weights all NaN. Ids are always valid. */
typedef struct router_args {
    int64_t n_tokens, n_experts, top_k;
    bool norm_topk_prob;
    const float *logits; /* [n_tokens, logits_stride], the first n_experts + 1 of a row */
    int64_t logits_stride;
    int32_t *experts;   /* [n_tokens, top_k] */
    float *weights;     /* [n_tokens, top_k] */
    float *shared_gate; /* [n_tokens] */
} router_args_t;

/* Rows of a router's matrix: the experts', the shared expert's gate, and zeros up to a multiple of 8, as cuBLAS is
 * several times slower at others. Hence the logits' stride of many tokens. */
static inline int64_t router_rows(int64_t n_experts) { return (n_experts + 8) / 8 * 8; }

status_t router_cpu(const router_args_t *args);
status_t launch_router(const router_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
