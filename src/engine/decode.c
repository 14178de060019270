/* The choice of tokens: engine_sample and engine_decode_next. */

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/heartbeat.h"
#include "engine/engine_state.h"
#include "engine/sampler.h"

status_t engine_alloc_sampling(engine_t *engine) {
    size_t vocab_size = (size_t)engine->config.vocab_size, n_ranks = (size_t)comm_tp_size(engine->comm);
    void *memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size / n_ranks, sizeof(float), &memory));
    engine->local_logits = memory;
    if (comm_tp_rank(engine->comm) != 0) return STATUS_OK;
    TRY(memory_alloc(MEMORY_WORKSPACE, n_ranks, sizeof(token_pair_t), &memory));
    engine->pairs = memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size, sizeof(float), &memory));
    engine->logits = memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size, sizeof(int32_t), &memory));
    engine->order = memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size, sizeof(double), &memory));
    engine->cumulative = memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size, sizeof(int32_t), &memory));
    engine->top_tokens = memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, vocab_size, sizeof(float), &memory));
    engine->top_logprobs = memory;
    return STATUS_OK;
}

void engine_free_sampling(engine_t *engine) {
    memory_free(engine->top_logprobs);
    memory_free(engine->top_tokens);
    memory_free(engine->cumulative);
    memory_free(engine->order);
    memory_free(engine->logits);
    memory_free(engine->pairs);
    memory_free(engine->local_logits);
}

status_t engine_check_not_ahead(const engine_t *engine) {
    if (runner_n_ahead(engine->runner) == 0) return STATUS_OK;
    return status_fail(STATUS_USAGE, "the sequence was decoded ahead of its last token; it must be reset");
}

/* Rank 0 gathers the pair of each rank. */
static status_t gather_pairs(engine_t *engine) {
    token_pair_t pair;
    TRY(engine->backend->ops->download(engine->backend, &pair, step_argmax(engine->step), sizeof pair));
    comm_gather(engine->comm, &pair, sizeof pair, engine->pairs);
    return STATUS_OK;
}

/* Rank 0 gathers the logits of each rank. */
static status_t gather_logits(engine_t *engine) {
    backend_t *backend = engine->backend;
    size_t bytes = (size_t)engine->weights->local.vocab * sizeof(float);
    return backend->ops->gather(backend, step_logits(engine->step), bytes, engine->local_logits, engine->logits);
}

/* Rank 0's choice; -1 if a logit is NaN or Inf. */
static int32_t choose(engine_t *engine, const sampling_t *sampling) {
    if (sampling->temperature == 0.0) return sampler_best_pair(engine->pairs, comm_tp_size(engine->comm)).token;
    for (int64_t i = 0; i < engine->config.vocab_size; i++) {
        if (!isfinite(engine->logits[i])) return -1;
    }
    const sampler_args_t args = {
        .logits = engine->logits,
        .n_logits = engine->n_valid_tokens,
        .temperature = sampling->temperature,
        .top_k = sampling->top_k,
        .top_p = sampling->top_p,
        .seed = sampling->seed,
        .position = (uint64_t)engine->sequence->pos,
        .order = engine->order,
        .cumulative = engine->cumulative,
    };
    return sampler_draw(&args);
}

/* Rank 0's answer. */
static void fill_sample(engine_t *engine, const sampling_t *sampling, sample_t *sample) {
    if (sampling->temperature == 0.0) sample->pairs = engine->pairs;
    if (sampling->keep_logits) sample->logits = engine->logits;
    if (sampling->n_top_logprobs > 0) {
        int n = sampling->n_top_logprobs;
        sampler_rank(engine->logits, engine->n_valid_tokens, n, engine->top_tokens);
        sampler_logprobs(engine->logits, engine->config.vocab_size, engine->top_tokens, n, engine->top_logprobs);
        sample->top_tokens = engine->top_tokens;
        sample->top_logprobs = engine->top_logprobs;
    }
}

static status_t check_sampling(const engine_t *engine, const sampling_t *sampling) {
    TRY(engine_check_not_ahead(engine));
    if (engine->sequence->pos == 0) return status_fail(STATUS_USAGE, "there is no token yet to go on from");
    if (!(sampling->temperature >= 0.0 && isfinite(sampling->temperature)))
        return status_fail(STATUS_USAGE, "the temperature must be 0 or more, not %g", sampling->temperature);
    if (!(sampling->top_p > 0.0 && sampling->top_p <= 1.0))
        return status_fail(STATUS_USAGE, "top_p must be above 0 and at most 1, not %g", sampling->top_p);
    if (sampling->top_k < 0) return status_fail(STATUS_USAGE, "top_k must be 0 or more, not %" PRId64, sampling->top_k);
    if (sampling->n_top_logprobs < 0 || sampling->n_top_logprobs > engine->n_valid_tokens)
        return status_fail(STATUS_USAGE, "log-probabilities of %d tokens are wanted; there are %" PRId64,
                           sampling->n_top_logprobs, engine->n_valid_tokens);
    return STATUS_OK;
}

static status_t fail_numerics(const engine_t *engine) {
    return status_fail(STATUS_NUMERICS,
                       "logits after token %" PRId64 " are NaN or Inf; check the model with galvani inspect --verify",
                       engine->sequence->pos);
}

static status_t sample_token(engine_t *engine, const sampling_t *sampling, status_t outside, sample_t *sample) {
    bool greedy = sampling->temperature == 0.0;
    bool is_root = comm_tp_rank(engine->comm) == 0;
    sample_t chosen = {0};
    struct {
        int32_t token, outside;
    } outcome = {.outside = (int32_t)outside};

    TRY(check_sampling(engine, sampling));
    op_trace_begin(engine->trace);
    if (greedy) TRY(gather_pairs(engine));
    if (!greedy || sampling->keep_logits || sampling->n_top_logprobs > 0) TRY(gather_logits(engine));
    if (is_root) outcome.token = choose(engine, sampling);
    comm_broadcast(engine->comm, &outcome, sizeof outcome);
    if (outcome.outside != STATUS_OK) return comm_agree(engine->comm, is_root ? outside : STATUS_OK);
    if (outcome.token < 0) return fail_numerics(engine);
    if (is_root) fill_sample(engine, sampling, &chosen);
    chosen.token = outcome.token;
    op_trace_end_host(engine->trace, OP_GROUP_SAMPLING, "sample");
    TRY(op_trace_collect(engine->trace, engine->is_decode));
    chosen.end_ns = clock_now_ns();
    *sample = chosen;
    return STATUS_OK;
}

status_t engine_sample(engine_t *engine, const sampling_t *sampling, status_t outside, sample_t *sample) {
    heartbeat_set_busy(true);
    status_t status = sample_token(engine, sampling, outside, sample);
    heartbeat_set_busy(false);
    return status;
}

/* Whether this call's token stays on the device. */
static bool takes_run_ahead(engine_t *engine, const sampling_t *sampling) {
    route_state_t *route = &engine->run_ahead;
    const char *refusal = engine->backend->advance_refusal;
    if (!route->wanted) return false;
    if (!refusal && !engine->routes[ROUTE_CUDA_GRAPH].on) refusal = "needs cuda_graph";
    if (!refusal && (sampling->temperature != 0.0 || sampling->keep_logits || sampling->n_top_logprobs > 0))
        refusal = "needs greedy decoding, without logits or log-probabilities";
    if (refusal && !route->refusal) route->refusal = refusal;
    return !refusal;
}

static status_t queue_step(engine_t *engine) {
    engine->run_ahead.n_launches++;
    return runner_queue_step(engine->runner);
}

/* What ranks agree on is agreed on while the device works on the next step. */
static status_t decode_ahead(engine_t *engine, const decode_args_t *args, sample_t *sample) {
    runner_t *runner = engine->runner;
    choice_t choice;
    if (runner_n_ahead(runner) == 0) TRY(engine->token >= 0 ? queue_step(engine) : runner_queue_choice(runner));
    int64_t next_pos = engine->sequence->pos + (engine->token >= 0);
    bool has_next = !args->is_last && next_pos < engine->max_context;
    if (has_next && runner_can_queue_step(runner)) TRY(queue_step(engine));
    TRY(runner_await(runner, engine->token, &choice));
    if (has_next && runner_n_ahead(runner) == 0 && runner_can_queue_step(runner)) TRY(queue_step(engine));

    bool is_root = comm_tp_rank(engine->comm) == 0;
    int32_t outside = (int32_t)args->outside;
    comm_broadcast(engine->comm, &outside, sizeof outside);
    if (outside != STATUS_OK) return comm_agree(engine->comm, is_root ? args->outside : STATUS_OK);
    if (choice.token < 0) return fail_numerics(engine);
    engine->token = choice.token;
    *sample = (sample_t){.token = choice.token, .end_ns = choice.end_ns, .pairs = is_root ? choice.pairs : NULL};
    return STATUS_OK;
}

status_t engine_decode_next(engine_t *engine, const decode_args_t *args, sample_t *sample) {
    bool is_ahead = takes_run_ahead(engine, args->sampling) || runner_n_ahead(engine->runner) > 0;
    if (runner_n_ahead(engine->runner) == 0) {
        int32_t token = engine->token;
        bool has_token = is_ahead && runner_has_token(engine->runner) && engine->sequence->pos < engine->max_context;
        TRY(check_sampling(engine, args->sampling));
        if (token >= 0 && !has_token) TRY(engine_forward(engine, &token, 1));
    }
    if (!is_ahead) {
        TRY(engine_sample(engine, args->sampling, args->outside, sample));
        engine->token = sample->token;
        return STATUS_OK;
    }
    heartbeat_set_busy(true);
    status_t status = decode_ahead(engine, args, sample);
    heartbeat_set_busy(false);
    return status;
}
