#ifndef GALVANI_ENGINE_ENGINE_H
#define GALVANI_ENGINE_ENGINE_H

/* One model on one tensor-parallel group, one sequence at a time: prefill, decode, and the choice of the next token.
 * Collective throughout. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "model/cost.h"
#include "model/dense.h"
#include "model/op_trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct engine engine_t;

typedef struct engine_args {
    const char *model;       /* a directory of shards, or synthetic:NAME */
    uint64_t synthetic_seed; /* of a synthetic model's weights */
    comm_t *comm;            /* borrowed */
    backend_t *backend;      /* borrowed */
    int64_t
        max_context; /* tokens that prompt and generation together may have; 0: max_position_embeddings of the config */
    int64_t prefill_chunk;  /* tokens computed at once in prefill; 0: the default */
    dense_form_t dense;     /* of the dense projections; 8 bits need a backend that takes them */
    int32_t n_valid_tokens; /* ids from here on are padding and never chosen; 0: none */
    bool cuda_graph;        /* record the decode step once and replay it, where the backend can */
    bool show_progress;     /* of loading; the same on all ranks */
} engine_args_t;

/* Loads the rank's shard; all ranks must hold one model. STATUS_INPUT, STATUS_MEMORY ... agreed on by all ranks. */
status_t engine_create(const engine_args_t *args, engine_t **engine);
void engine_destroy(engine_t *engine); /* NULL is allowed */

/* Forgets the sequence. What follows equals what a fresh process computes. */
status_t engine_reset(engine_t *engine);

/* Runs `n_tokens` more tokens of the sequence; afterwards the logits of the last one are ready for engine_sample.
 * Decode is the case n_tokens = 1. A signal that comes during a long prefill ends it between chunks, with
 * STATUS_INTERRUPTED on every rank. A call that would pass max_context fails with STATUS_USAGE and changes nothing. */
status_t engine_forward(engine_t *engine, const int32_t *tokens, size_t n_tokens);

/* How the next token is chosen from the logits. */
typedef struct sampling {
    double temperature; /* 0: greedy */
    double top_p;       /* (0, 1] */
    int64_t top_k;      /* 0: all */
    uint64_t seed;
    bool keep_logits; /* gather the full logits even if greedy */
    int n_top_logprobs;
} sampling_t;

/* The chosen token and what it was chosen from; pointers are the engine's, valid until the next call, NULL where not
 * asked for or not on rank 0. */
typedef struct sample {
    int32_t token;             /* on every rank */
    int64_t end_ns;            /* when it was chosen, on this rank's clock (base/clock.h) */
    const token_pair_t *pairs; /* [tp_size], greedy */
    const float *logits;       /* [vocab_size] */
    const int32_t *top_tokens; /* [n_top_logprobs], falling */
    const float *top_logprobs; /* [n_top_logprobs], natural logarithm of the softmax at temperature 1 */
} sample_t;

/* Greedy: rank 0 gathers each rank's argmax pair, takes the largest value and the lowest id among equals, broadcasts.
 * Else: gathered logits, padding ids excluded, temperature, top-k, top-p, then one draw that depends on seed and
 * position alone, so the same on any tp_size whose logits agree. STATUS_NUMERICS on every rank if a logit is NaN or
 * Inf. `outside` is rank 0's own status (a run file that cannot be written, a signal): all ranks return it instead of
 * sampling. */
status_t engine_sample(engine_t *engine, const sampling_t *sampling, status_t outside, sample_t *sample);

typedef struct decode_args {
    const sampling_t *sampling; /* the same from the sequence's first token to its last */
    status_t outside;           /* rank 0's own, as in engine_sample */
    bool is_last;               /* no token behind this one will be asked for */
} decode_args_t;

/* The next token of the sequence: what engine_sample chooses, after the token of the call before, if there was one
 * since engine_forward, went through the model as by engine_forward.
 *
 * Where the token can stay on the device (greedy, nothing kept but pairs, recorded steps, route run_ahead) the step on
 * it is queued before this call has seen it, and works while the caller handles it. A caller that stops before is_last
 * leaves such a step behind: then only engine_reset may follow, and the step is thrown away. Either way the tokens are
 * the same. */
status_t engine_decode_next(engine_t *engine, const decode_args_t *args, sample_t *sample);

/* Facts of the loaded model. */
typedef struct engine_info {
    int64_t vocab_size, max_context, n_layers;
    int32_t eos_token_id;
    const char *model_digest, *config_json; /* the engine's */
} engine_info_t;
engine_info_t engine_get_info(const engine_t *engine);

/* Kernels that a decode step launches, where it was recorded and replayed; else 0. */
size_t engine_n_launches(const engine_t *engine);

/* What a decode step behind `context` tokens costs, with the weights in use and the routes that are wanted and were not
 * refused so far. */
void engine_cost(const engine_t *engine, int64_t context, cost_t *cost);

/* Tokens of the sequence so far. */
int64_t engine_position(const engine_t *engine);

/* A fast path that can be switched off: whether it is taken, and why it is not. */
typedef struct engine_route {
    const char *name;
    bool on;
    const char *reason; /* "" where there is nothing to say */
} engine_route_t;

/* All of them, as the steps since they were last set took them; the engine's, until the next call. */
const engine_route_t *engine_routes(engine_t *engine, size_t *n_routes);

/* STATUS_USAGE for a name that no route has. */
status_t engine_check_route(const char *name);

/* Asks for a route or switches it off, between steps; one that the backend does not have stays off. STATUS_USAGE as
 * engine_check_route has it. */
status_t engine_set_route(engine_t *engine, const char *name, bool on);

/* Times of the ops since the last op_trace_reset. */
op_trace_t *engine_trace(engine_t *engine);

/* Called after each layer with the residual streams h [n_tokens, hc_count, hidden_size] in backend memory; for tests.
 */
typedef void (*engine_layer_observer_t)(void *context, int64_t layer, const float *h, int64_t n_tokens);
void engine_observe_layers(engine_t *engine, engine_layer_observer_t observer, void *context);

#ifdef __cplusplus
}
#endif
#endif
