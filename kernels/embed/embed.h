#ifndef GALVANI_KERNELS_EMBED_H
#define GALVANI_KERNELS_EMBED_H

#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* h[t, s] = embed[tokens[t]] for each of the hc_count residual streams. */
typedef struct embed_args {
    int64_t n_tokens, hc_count;
    const int32_t *tokens; /* [n_tokens], each in [0, embed.rows) */
    matrix_t embed;        /* [vocab_size, hidden_size] */
    float *h;              /* [n_tokens, hc_count, hidden_size] */
} embed_args_t;

status_t embed_cpu(const embed_args_t *args);
status_t launch_embed(const embed_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
