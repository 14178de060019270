#ifndef GALVANI_KERNELS_ARGMAX_H
#define GALVANI_KERNELS_ARGMAX_H

#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's best token. A NaN or Inf among the logits of real tokens gives token -1 and the first such value: it must
 * never pass for a token. A rank that holds padding ids only gives -INFINITY and token INT32_MAX, which loses against
 * every real token. */
typedef struct token_pair {
    float value;
    int32_t token;
} token_pair_t;

/* The largest of this rank's logits, the lowest id among equals; -0 equals +0. */
typedef struct argmax_args {
    int64_t n_logits;    /* vocab_size / tp_size */
    int64_t first_token; /* global id of logits[0] */
    int64_t n_valid;     /* global ids from here on are padding and never chosen */
    const float *logits; /* [n_logits] */
    token_pair_t *pair;
} argmax_args_t;

status_t argmax_cpu(const argmax_args_t *args);
status_t launch_argmax(const argmax_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
