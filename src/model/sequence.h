#ifndef GALVANI_MODEL_SEQUENCE_H
#define GALVANI_MODEL_SEQUENCE_H

/* Everything that belongs to one sequence of tokens: nothing of it lives in the weights or in the step, so that two
 * sequences of one model never see each other. */

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One layer's state in backend memory; what the layer does not have is NULL. */
typedef struct layer_state {
    activation_t *gdn_conv; /* [Cw - 1, conv_channels] */
    float *gdn;             /* [Vh/T, Dk, Dv] */
    qsa_cache_t cache;      /* of `capacity` tokens; tokens beyond the sequence's position are never read */
    float *ple_conv;        /* [(ple_conv_kernel_size - 1) * ngram_size, S*H] */
} layer_state_t;

typedef struct sequence {
    int64_t max_context;                    /* tokens that fit */
    int64_t pos;                            /* tokens so far */
    int32_t context[CONFIG_MAX_NGRAM_SIZE]; /* the last ngram_size - 1 tokens, oldest first; EOS before the first */
    layer_state_t *layers;                  /* [num_hidden_layers] */

    const model_config_t *config; /* borrowed */
    backend_t *backend;           /* borrowed */
    void *states, *caches;        /* the blocks that `layers` points into */
    size_t state_bytes;
} sequence_t;

typedef struct sequence_args {
    const model_config_t *config; /* borrowed for the sequence's life */
    local_shape_t local;
    backend_t *backend; /* borrowed */
    int64_t max_context;
} sequence_args_t;

/* Adds what sequence_create will allocate to `needed`. */
void sequence_count(const sequence_args_t *args, size_t needed[MEMORY_N_LABELS]);

/* An empty sequence. STATUS_MEMORY. The caller ends it with sequence_destroy. */
status_t sequence_create(const sequence_args_t *args, sequence_t **sequence);
void sequence_destroy(sequence_t *sequence); /* NULL is allowed */

/* Empties it: what follows equals what a new sequence gives. */
status_t sequence_reset(sequence_t *sequence);

/* Moves on by `tokens`, after the step that computed them. */
void sequence_advance(sequence_t *sequence, const int32_t *tokens, int64_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
