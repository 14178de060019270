#ifndef GALVANI_KERNELS_LM_HEAD_H
#define GALVANI_KERNELS_LM_HEAD_H

#include "argmax/argmax.h"
#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* logits = weight u, and this rank's best of them, as argmax_args_t has it. */
typedef struct lm_head_args {
    matrix_t weight;       /* [n_logits, hidden_size], as linear_args_t takes it */
    const activation_t *u; /* [hidden_size] */
    int64_t first_token;   /* global id of logits[0] */
    int64_t n_valid;       /* global ids from here on are padding and never chosen */
    float *logits;         /* [n_logits] */
    token_pair_t *pair;
    uint64_t *state; /* [LM_HEAD_STATE], zero before the first call and again after each */
} lm_head_args_t;

enum { LM_HEAD_STATE = 2 };

status_t lm_head_cpu(const lm_head_args_t *args);
status_t launch_lm_head(const lm_head_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
