#ifndef GALVANI_MODEL_STEP_BUFFERS_H
#define GALVANI_MODEL_STEP_BUFFERS_H

/* A step from within: its ops are in step.c, its memory (step_count, step_create, step_destroy) in step_buffers.c. */

#include <stddef.h>

#include "model/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a step reads of its sequence, uploaded before its first op. It lies in backend memory at a fixed place, so that
 * a recorded step can be run again for another token. */
typedef struct step_input {
    int64_t start_pos;
    int32_t context[CONFIG_MAX_NGRAM_SIZE]; /* the ngram_size - 1 tokens before, as in sequence_t */
    int32_t tokens[];                       /* [max_tokens] */
} step_input_t;

struct step {
    step_args_t args;
    step_observer_t observer;
    void *observer_context;
    qsa_shape_t qsa;
    void *block;              /* what the buffers below point into */
    step_input_t *input_host; /* filled, then uploaded to `input` */

    /* Of the call that runs. */
    int64_t n_tokens;
    int32_t layer;         /* -1 outside the layers */
    const float *injected; /* the inject that the last gr_mix gave */
    bool is_pending;       /* h still lacks injected * o, which the next gr_mix adds */
    bool is_deferred;      /* and o is still to be summed over the ranks, by that gr_mix too */

    /* Buffers for C = max_tokens tokens, in backend memory. */
    step_input_t *input;
    float *h;                /* [C, S, H]: the residual streams */
    activation_t *u;         /* [C, H]: what GR gives to a block */
    activation_t *o;         /* [C, H]: what the block gives back */
    float *inject[2];        /* [C, S]: of the last gr_mix and of the one before, in turn */
    activation_t *projected; /* [C, widest stacked projection] */
    activation_t *mixed;     /* [C, max(value_width, attention_width)]: heads before the output projection */
    activation_t *q, *gate;  /* [C, attention_width] */
    activation_t *index_q;   /* [C, Ih * Id] */
    float *router_logits;    /* [C, router_rows(E)] */
    int32_t *blocks;         /* [C, n_select] */
    int32_t *n_blocks;       /* [C] */
    int32_t *experts;        /* [C, K] */
    float *expert_weights;   /* [C, K] */
    float *shared_gate;      /* [C] */
    int64_t *rows;           /* [C, n_ngram_heads] */
    activation_t *e;         /* [C, ple_embed_dim] */
    float *logits;           /* [vocab_size / T] */
    token_pair_t *pair;      /* their argmax */
    uint64_t *head_state;    /* of lm_head, zero between steps */
    void *workspace;         /* of the op that runs */
};

static inline size_t step_input_bytes(int64_t n_tokens) {
    return offsetof(step_input_t, tokens) + (size_t)n_tokens * sizeof(int32_t);
}

#ifdef __cplusplus
}
#endif
#endif
