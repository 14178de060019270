#ifndef GALVANI_MODEL_STEP_H
#define GALVANI_MODEL_STEP_H

/* The ordered ops of one step: a chunk of a prompt, or one token of decode. */

#include "backend/backend.h"
#include "model/op_trace.h"
#include "model/sequence.h"
#include "model/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct step step_t;

typedef struct step_args {
    const model_config_t *config; /* borrowed for the step's life, as are backend and trace */
    local_shape_t local;
    backend_t *backend;
    op_trace_t *trace;
    int64_t max_tokens;     /* tokens of one step at most */
    int64_t max_context;    /* tokens of one sequence at most */
    int64_t n_valid_tokens; /* ids from here on are padding and never chosen */
} step_args_t;

/* Adds the workspace that step_create will allocate to `needed`. */
void step_count(const step_args_t *args, size_t needed[MEMORY_N_LABELS]);

/* STATUS_MEMORY. The caller ends it with step_destroy. */
status_t step_create(const step_args_t *args, step_t **step);
void step_destroy(step_t *step); /* NULL is allowed */

/* Gives the step the next n_tokens (1 ... max_tokens) of the sequence, each in [0, vocab_size). */
status_t step_upload(step_t *step, const sequence_t *sequence, const int32_t *tokens, int64_t n_tokens);

/* Computes the n_tokens that the step was given. With `want_logits` the logits of the last one are ready afterwards.
 * Depends on nothing else that changes from step to step, so it may be recorded. The sequence's count of tokens is the
 * caller's to move on. Collective. */
status_t step_compute(step_t *step, const weights_t *weights, sequence_t *sequence, int64_t n_tokens, bool want_logits);

/* This rank's logits, [vocab_size / T], in backend memory; the first is of token tp_rank * vocab_size / T. */
const float *step_logits(const step_t *step);

/* This rank's argmax of those logits, in backend memory. */
const token_pair_t *step_argmax(const step_t *step);

/* Behind step_argmax: completes `args` (whose members of this step are not set) and gives the step the token that all
 * ranks' pairs lead to, as the next of the sequence. `n_tokens`: of the step before. Collective. */
status_t step_advance(step_t *step, const advance_args_t *args, int64_t n_tokens);

/* Called after each layer with the residual streams [n_tokens, hc_count, hidden_size] in backend memory. */
typedef void (*step_observer_t)(void *context, int64_t layer, const float *h, int64_t n_tokens);
void step_observe(step_t *step, step_observer_t observer, void *context);
bool step_is_observed(const step_t *step);

#ifdef __cplusplus
}
#endif
#endif
