#ifndef GALVANI_MODEL_RUNNER_H
#define GALVANI_MODEL_RUNNER_H

/* How the steps of one sequence are run: op by op, or as a recording that is made once; each on tokens that the host
 * gives, or, in greedy decode on a device, on the token that the device itself chose behind the step before. Such a
 * step is queued before the host has seen its token, and what was chosen is awaited later, in order. */

#include "model/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct runner runner_t;

typedef struct runner_args {
    backend_t *backend; /* borrowed, as are the others */
    op_trace_t *trace;
    step_t *step;
    const weights_t *weights;
    sequence_t *sequence;
} runner_args_t;

/* STATUS_MEMORY. The caller ends it with runner_destroy. */
status_t runner_create(const runner_args_t *args, runner_t **runner);
void runner_destroy(runner_t *runner); /* waits for what is queued; NULL is allowed */

/* Whether decode steps are recorded from here on, where the backend can. */
void runner_set_record(runner_t *runner, bool record);

/* What was recorded no longer holds: the next decode steps are recorded anew. */
void runner_forget_recordings(runner_t *runner);

/* Kernels that the recorded decode step launches; 0 while there is none. */
size_t runner_n_launches(const runner_t *runner);

/* Computes the next n_tokens of the sequence, as step_upload and step_compute have it, and moves it on. Nothing is
 * queued ahead. */
status_t runner_run(runner_t *runner, const int32_t *tokens, int64_t n_tokens, bool want_logits);

/* A token that was chosen on the device. */
typedef struct choice {
    int32_t token;             /* -1: a logit is NaN or Inf */
    const token_pair_t *pairs; /* [tp_size], the runner's, until the next call */
    int64_t end_ns; /* when it was chosen, on this rank's clock; the time from one choice to the next is the device's */
} choice_t;

/* Queues the greedy choice behind the step that runner_run computed, logits included. For a backend whose
 * advance_refusal is NULL, as is what follows. Collective. */
status_t runner_queue_choice(runner_t *runner);

/* Whether the device holds the token of the choice that was queued last as the next of the sequence. */
bool runner_has_token(const runner_t *runner);

/* Queues the step on that token, and the choice behind it. It must fit the sequence, and stamps that the choices queued
 * before make must have been read (runner_await). Collective. */
status_t runner_queue_step(runner_t *runner);

/* Whether runner_queue_step may be called now and returns at once: what is queued makes no stamps, and the step is
 * recorded. The same on every rank. */
bool runner_can_queue_step(const runner_t *runner);

/* Choices that are queued and not awaited. */
int runner_n_ahead(const runner_t *runner);

/* Waits for the oldest of them, moves the sequence on by the token that its step computed (`token`; none for that of
 * runner_queue_choice), and adds the step's times to the trace. */
status_t runner_await(runner_t *runner, int32_t token, choice_t *choice);

/* Forgets what is queued: the sequence must be reset. */
void runner_drop(runner_t *runner);

#ifdef __cplusplus
}
#endif
#endif
