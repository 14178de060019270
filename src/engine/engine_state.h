#ifndef GALVANI_ENGINE_ENGINE_STATE_H
#define GALVANI_ENGINE_ENGINE_STATE_H

/* What the files of this room share. */

#include "base/hash.h"
#include "engine/engine.h"
#include "model/runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The engine's own routes; behind them come the backend's (device/route.h). */
enum {
    ROUTE_CUDA_GRAPH,
    ROUTE_RUN_AHEAD,
    ROUTE_DENSE8,
    N_OWN_ROUTES,
    N_ROUTES = N_OWN_ROUTES + N_KERNEL_ROUTES,
    REASON_BYTES = 48,
    DENSE_REASON_BYTES = 256
};

struct engine {
    comm_t *comm;
    backend_t *backend;
    model_config_t config;
    char model_digest[HASH_SHA256_TEXT_BYTES];
    char *config_json;
    int64_t max_context, prefill_chunk;
    bool record; /* what the route cuda_graph is asked to be */
    engine_route_t routes[N_ROUTES];
    dense_form_t dense;
    char route_reasons[N_ROUTES][REASON_BYTES]; /* what some of them point to */
    char dense_reason[DENSE_REASON_BYTES];
    bool is_decode; /* the last step had one token */
    int64_t n_valid_tokens;

    op_trace_t *trace;
    weights_t *weights;
    sequence_t *sequence;
    step_t *step;
    runner_t *runner;

    /* Of engine_decode_next. */
    int32_t token; /* of the last call; -1: none since engine_forward */
    route_state_t run_ahead;

    /* Of engine_sample. */
    float *local_logits; /* [vocab_size / T], host */
    token_pair_t *pairs; /* [T]; this and what follows on rank 0 only */
    float *logits;       /* [vocab_size] */
    int32_t *order;      /* [vocab_size]: scratch of the draw */
    double *cumulative;  /* [vocab_size]: scratch of the draw */
    int32_t *top_tokens; /* [vocab_size] */
    float *top_logprobs; /* [vocab_size] */
};

/* What engine_sample needs of host memory. STATUS_MEMORY; engine_free_sampling also ends what was begun. */
status_t engine_alloc_sampling(engine_t *engine);
void engine_free_sampling(engine_t *engine);

/* STATUS_USAGE behind a step that was queued ahead: it has moved the sequence on by a token that nobody has seen. */
status_t engine_check_not_ahead(const engine_t *engine);

#ifdef __cplusplus
}
#endif
#endif
