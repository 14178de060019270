#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/heartbeat.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "engine/sampler.h"
#include "model/memory_plan.h"
#include "model/runner.h"

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

static const char *const own_route_names[N_OWN_ROUTES] = {
    [ROUTE_CUDA_GRAPH] = "cuda_graph", [ROUTE_RUN_AHEAD] = "run_ahead", [ROUTE_DENSE8] = "dense8"};

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

/* What must be equal on all ranks. */
typedef struct model_identity {
    char model_digest[HASH_SHA256_TEXT_BYTES];
    uint64_t config_hash;
    int tp_size;
    expert_format_t expert_format;
    dtype_t ple_dtype;
} model_identity_t;

/* Collective. Rank 0's shard is the measure. */
static status_t check_same_model(comm_t *comm, const shard_info_t *info, const char *directory) {
    model_identity_t own, first;
    memset(&own, 0, sizeof own);
    memcpy(own.model_digest, info->model_digest, sizeof own.model_digest);
    own.config_hash = hash_xxh3(info->config_json, strlen(info->config_json));
    own.tp_size = info->options.tp_size;
    own.expert_format = info->options.expert_format;
    own.ple_dtype = info->options.ple_dtype;
    first = own;
    comm_broadcast(comm, &first, sizeof first);
    status_t status = STATUS_OK;
    if (memcmp(&own, &first, sizeof own) != 0)
        status = status_fail(STATUS_INPUT,
                             "the shard of rank %d in %s is of another model than rank 0's (digest %.12s against %.12s)"
                             "; convert the checkpoint again with galvani shard",
                             comm_tp_rank(comm), directory, own.model_digest, first.model_digest);
    return comm_agree(comm, status);
}

static status_t take_settings(engine_t *engine, const engine_args_t *args) {
    const model_config_t *config = &engine->config;
    engine->max_context = args->max_context ? args->max_context : config->max_position_embeddings;
    if (engine->max_context < 1 || engine->max_context > config->max_position_embeddings)
        return status_fail(STATUS_USAGE,
                           "a context of %" PRId64 " tokens is wanted; the model's max_position_embeddings is %" PRId64,
                           engine->max_context, config->max_position_embeddings);
    engine->record = args->cuda_graph;
    engine->dense = args->dense;
    engine->prefill_chunk = args->prefill_chunk;
    if (engine->prefill_chunk < 0)
        return status_fail(STATUS_USAGE, "a prefill chunk must have at least 1 token, not %" PRId64,
                           engine->prefill_chunk);
    engine->n_valid_tokens = args->n_valid_tokens ? args->n_valid_tokens : config->vocab_size;
    if (engine->n_valid_tokens < 1 || engine->n_valid_tokens > config->vocab_size)
        return status_fail(STATUS_INPUT, "the tokenizer has %" PRId64 " ids, the model %" PRId64,
                           engine->n_valid_tokens, config->vocab_size);
    return STATUS_OK;
}

static sequence_args_t sequence_args(const engine_t *engine, local_shape_t local) {
    return (sequence_args_t){
        .config = &engine->config, .local = local, .backend = engine->backend, .max_context = engine->max_context};
}

static step_args_t step_args(const engine_t *engine, local_shape_t local) {
    return (step_args_t){.config = &engine->config,
                         .local = local,
                         .backend = engine->backend,
                         .trace = engine->trace,
                         .max_tokens = engine->prefill_chunk,
                         .max_context = engine->max_context,
                         .n_valid_tokens = engine->n_valid_tokens};
}

/* Every rank takes the shortest of the ranks' prefill chunks. Collective. */
static status_t agree_on_chunk(engine_t *engine, int64_t own) {
    size_t n_ranks = (size_t)comm_tp_size(engine->comm);
    void *memory = NULL;
    TRY(comm_agree(engine->comm, memory_alloc(MEMORY_OTHER, n_ranks, sizeof own, &memory)));
    int64_t *all = memory;
    comm_all_gather(engine->comm, &own, sizeof own, all);
    engine->prefill_chunk = own;
    for (size_t rank = 0; rank < n_ranks; rank++) {
        if (all[rank] < engine->prefill_chunk) engine->prefill_chunk = all[rank];
    }
    memory_free(memory);
    return STATUS_OK;
}

/* What the engine will take; chooses the prefill chunk where none is asked for. Collective. */
static status_t plan_memory(engine_t *engine, const tensor_source_t *source, local_shape_t local) {
    backend_t *backend = engine->backend;
    memory_plan_args_t args = {.config = &engine->config,
                               .dense = engine->dense,
                               .local = local,
                               .ops = backend->ops,
                               .max_context = engine->max_context,
                               .prefill_chunk = engine->prefill_chunk,
                               .record = engine->record && backend->can_record};
    memory_plan_t plan;
    args.tensors = tensor_source_tensors(source, &args.n_tensors);
    status_t status = backend->ops->available(backend, comm_local_size(engine->comm), &args.available);
    if (status == STATUS_OK) status = memory_plan_make(&args, &plan);
    TRY(comm_agree(engine->comm, status));
    TRY(agree_on_chunk(engine, plan.prefill_chunk));
    args.prefill_chunk = engine->prefill_chunk;
    status = memory_plan_make(&args, &plan);
    plan.needed[MEMORY_COMM] = 0; /* the backend has it already */
    if (status == STATUS_OK) status = backend->ops->check_memory(backend, plan.needed);
    return comm_agree(engine->comm, status);
}

static status_t alloc_sampling(engine_t *engine, local_shape_t local) {
    size_t vocab_size = (size_t)engine->config.vocab_size;
    void *memory;
    TRY(memory_alloc(MEMORY_WORKSPACE, (size_t)local.vocab, sizeof(float), &memory));
    engine->local_logits = memory;
    if (local.tp_rank != 0) return STATUS_OK;
    TRY(memory_alloc(MEMORY_WORKSPACE, (size_t)local.tp_size, sizeof(token_pair_t), &memory));
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

/* Everything but the weights. */
static status_t alloc_state(engine_t *engine, const char *config_json, local_shape_t local) {
    const sequence_args_t of_sequence = sequence_args(engine, local);
    const step_args_t of_step = step_args(engine, local);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, strlen(config_json) + 1, 1, &memory));
    engine->config_json = memory;
    memcpy(engine->config_json, config_json, strlen(config_json) + 1);
    TRY(sequence_create(&of_sequence, &engine->sequence));
    TRY(step_create(&of_step, &engine->step));
    return alloc_sampling(engine, local);
}

/* What the 8-bit forms lose, for /routes. */
static void describe_dense(engine_t *engine) {
    const weights_t *weights = engine->weights;
    size_t used = 0;
    if (!engine->dense.is_8bit) return;
    for (int role = 0; role < DENSE_N_ROLES && used < DENSE_REASON_BYTES; role++)
        used += (size_t)snprintf(engine->dense_reason + used, DENSE_REASON_BYTES - used, "%s%s %.2f %%",
                                 role                              ? ", "
                                 : engine->dense.dtype == DTYPE_Q8 ? "q8; error of the weights: "
                                                                   : "qpn8; error of the weights: ",
                                 dense_role_name((dense_role_t)role), 100.0 * weights->dense_errors[role]);
    log_info("dense    %s", engine->dense_reason);
}

/* Collective after each stage that a rank may fail in alone. */
static status_t load(engine_t *engine, const engine_args_t *args, tensor_source_t *source) {
    const shard_info_t *info = tensor_source_info(source);
    local_shape_t local = local_shape(&info->config, info->options.tp_rank, info->options.tp_size);
    engine->config = info->config;
    memcpy(engine->model_digest, info->model_digest, sizeof engine->model_digest);
    TRY(check_same_model(engine->comm, info, args->model));
    TRY(comm_agree(engine->comm, take_settings(engine, args)));
    TRY(comm_agree(engine->comm, op_trace_create(engine->backend, &engine->trace)));
    TRY(plan_memory(engine, source, local));
    TRY(comm_agree(engine->comm, alloc_state(engine, info->config_json, local)));
    TRY(weights_load(source, engine->backend, &args->dense, args->show_progress, &engine->weights));
    describe_dense(engine);
    const runner_args_t of_runner = {.backend = engine->backend,
                                     .trace = engine->trace,
                                     .step = engine->step,
                                     .weights = engine->weights,
                                     .sequence = engine->sequence};
    TRY(comm_agree(engine->comm, runner_create(&of_runner, &engine->runner)));
    engine->token = -1;
    engine->run_ahead.wanted = true;
    TRY(engine_set_route(engine, "cuda_graph", args->cuda_graph));
    return engine_set_route(engine, "dense8", true);
}

status_t engine_create(const engine_args_t *args, engine_t **engine) {
    engine_t *created = NULL;
    tensor_source_t *source = NULL;
    void *memory;
    status_t status = memory_alloc(MEMORY_OTHER, 1, sizeof(engine_t), &memory);
    if (status == STATUS_OK) {
        created = memory;
        created->comm = args->comm;
        created->backend = args->backend;
        const tensor_source_args_t source_args = {.model = args->model,
                                                  .tp_rank = comm_tp_rank(args->comm),
                                                  .tp_size = comm_tp_size(args->comm),
                                                  .seed = args->synthetic_seed};
        status = tensor_source_open(&source_args, &source);
    }
    status = comm_agree(args->comm, status);
    if (status == STATUS_OK) status = load(created, args, source);
    tensor_source_close(source);
    if (status != STATUS_OK) {
        engine_destroy(created);
        return status;
    }
    *engine = created;
    return STATUS_OK;
}

void engine_destroy(engine_t *engine) {
    if (!engine) return;
    memory_free(engine->top_logprobs);
    memory_free(engine->top_tokens);
    memory_free(engine->cumulative);
    memory_free(engine->order);
    memory_free(engine->logits);
    memory_free(engine->pairs);
    memory_free(engine->local_logits);
    runner_destroy(engine->runner);
    step_destroy(engine->step);
    sequence_destroy(engine->sequence);
    weights_destroy(engine->weights);
    op_trace_destroy(engine->trace);
    memory_free(engine->config_json);
    memory_free(engine);
}

static const char *route_name(int route) {
    return route < N_OWN_ROUTES ? own_route_names[route] : kernel_route_name((kernel_route_t)(route - N_OWN_ROUTES));
}

static int find_route(const char *name) {
    int route = 0;
    while (route < N_ROUTES && strcmp(name, route_name(route)) != 0)
        route++;
    return route;
}

/* A route that calls take one by one was taken or not by those so far. */
static engine_route_t tell_route(engine_t *engine, int route, const route_state_t *state) {
    engine_route_t told = {.name = route_name(route), .on = state->wanted && state->n_launches > 0};
    if (told.on) {
        snprintf(engine->route_reasons[route], REASON_BYTES, "%" PRId64 " %s", state->n_launches,
                 route == ROUTE_RUN_AHEAD ? "steps" : "launches");
        told.reason = engine->route_reasons[route];
    } else if (!state->wanted) {
        told.reason = "switched off";
    } else {
        told.reason = state->refusal ? state->refusal : "not asked for yet";
    }
    return told;
}

const engine_route_t *engine_routes(engine_t *engine, size_t *n_routes) {
    const backend_ops_t *ops = engine->backend->ops;
    const route_state_t general = {.wanted = true, .refusal = "the backend has the general form alone"};
    const route_state_t *states = ops->routes ? ops->routes(engine->backend) : NULL;
    engine->routes[ROUTE_RUN_AHEAD] = tell_route(engine, ROUTE_RUN_AHEAD, &engine->run_ahead);
    for (int route = N_OWN_ROUTES; route < N_ROUTES; route++)
        engine->routes[route] = tell_route(engine, route, states ? &states[route - N_OWN_ROUTES] : &general);
    *n_routes = N_ROUTES;
    return engine->routes;
}

status_t engine_check_route(const char *name) {
    char names[512] = "";
    size_t used = 0;
    if (find_route(name) < N_ROUTES) return STATUS_OK;
    for (int route = 0; route < N_ROUTES && used < sizeof names; route++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", route ? ", " : "", route_name(route));
    return status_fail(STATUS_USAGE, "there is no route \"%s\"; there are: %s", name, names);
}

static void set_cuda_graph(engine_t *engine, bool on) {
    bool can_record = engine->backend->can_record;
    engine->record = on;
    runner_set_record(engine->runner, on);
    engine->routes[ROUTE_CUDA_GRAPH] =
        (engine_route_t){.name = "cuda_graph",
                         .on = on && can_record,
                         .reason = !on          ? "switched off"
                                   : can_record ? ""
                                                : "the backend, or what carries its sums, cannot record a step"};
}

/* Without both forms in memory there is nothing to switch. */
static void set_dense8(engine_t *engine, bool on) {
    engine_route_t *route = &engine->routes[ROUTE_DENSE8];
    bool is_on = engine->dense.is_8bit && (on || !engine->dense.keep_f16);
    *route = (engine_route_t){.name = "dense8", .on = is_on, .reason = "switched off"};
    if (is_on) route->reason = on ? engine->dense_reason : "the FP16 weights were not kept";
    if (on && !is_on)
        route->reason =
            engine->backend->ops->takes_dense8 ? "the weights were loaded as FP16" : "the CUDA backend alone has it";
    weights_use_dense8(engine->weights, is_on);
    runner_forget_recordings(engine->runner);
}

status_t engine_set_route(engine_t *engine, const char *name, bool on) {
    TRY(engine_check_route(name));
    int route = find_route(name);
    if (route == ROUTE_CUDA_GRAPH) {
        set_cuda_graph(engine, on);
    } else if (route == ROUTE_RUN_AHEAD) {
        engine->run_ahead = (route_state_t){.wanted = on};
    } else if (route == ROUTE_DENSE8) {
        set_dense8(engine, on);
    } else if (engine->backend->ops->routes) {
        engine->backend->ops->routes(engine->backend)[route - N_OWN_ROUTES] = (route_state_t){.wanted = on};
        runner_forget_recordings(engine->runner);
    }
    return STATUS_OK;
}

status_t engine_reset(engine_t *engine) {
    runner_drop(engine->runner);
    engine->token = -1;
    return sequence_reset(engine->sequence);
}

/* A step that was queued ahead has moved the sequence on by a token that nobody has seen. */
static status_t check_not_ahead(const engine_t *engine) {
    if (runner_n_ahead(engine->runner) == 0) return STATUS_OK;
    return status_fail(STATUS_USAGE, "the sequence was decoded ahead of its last token; it must be reset");
}

/* Between the chunks of a prompt. The device is done with those before: so a signal does not wait behind work that was
 * queued long ago, and the watcher sees that a long prompt makes progress. */
static status_t check_chunk(engine_t *engine) {
    status_t status = engine->backend->ops->synchronize(engine->backend);
    return comm_agree(engine->comm, status == STATUS_OK ? interrupt_check() : status);
}

status_t engine_forward(engine_t *engine, const int32_t *tokens, size_t n_tokens) {
    int64_t n = (int64_t)n_tokens, pos = engine->sequence->pos;
    TRY(check_not_ahead(engine));
    if (n < 1) return status_fail(STATUS_USAGE, "a step needs at least one token");
    if (n > engine->max_context - pos)
        return status_fail(STATUS_USAGE, "%" PRId64 " tokens after %" PRId64 " do not fit a context of %" PRId64, n,
                           pos, engine->max_context);
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= engine->config.vocab_size)
            return status_fail(STATUS_USAGE, "token %" PRId32 " does not lie in 0..%" PRId64, tokens[i],
                               engine->config.vocab_size - 1);
    }
    status_t status = STATUS_OK;
    heartbeat_set_busy(true);
    engine->is_decode = n == 1;
    engine->token = -1;
    for (int64_t done = 0; status == STATUS_OK && done < n;) {
        int64_t chunk = n - done < engine->prefill_chunk ? n - done : engine->prefill_chunk;
        status = done > 0 ? check_chunk(engine) : STATUS_OK;
        if (status == STATUS_OK) status = runner_run(engine->runner, tokens + done, chunk, done + chunk == n);
        done += chunk;
    }
    heartbeat_set_busy(false);
    return status;
}

/* Rank 0 gathers the pair of each rank. */
static status_t gather_pairs(engine_t *engine) {
    const token_pair_t *chosen;
    token_pair_t pair;
    TRY(step_argmax(engine->step, &chosen));
    TRY(engine->backend->ops->download(engine->backend, &pair, chosen, sizeof pair));
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
    TRY(check_not_ahead(engine));
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
    *sample = (sample_t){.token = choice.token, .wall_ns = choice.wall_ns, .pairs = is_root ? choice.pairs : NULL};
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

engine_info_t engine_get_info(const engine_t *engine) {
    return (engine_info_t){
        .vocab_size = engine->config.vocab_size,
        .max_context = engine->max_context,
        .n_layers = engine->config.num_hidden_layers,
        .eos_token_id = engine->config.eos_token_id,
        .model_digest = engine->model_digest,
        .config_json = engine->config_json,
    };
}

size_t engine_n_launches(const engine_t *engine) { return engine->record ? runner_n_launches(engine->runner) : 0; }

void engine_cost(const engine_t *engine, int64_t context, cost_t *cost) {
    backend_t *backend = engine->backend;
    const weights_t *weights = engine->weights;
    const layer_weights_t *layer = &weights->layers[0];
    cost_args_t args = {.config = &engine->config,
                        .local = weights->local,
                        .dense = layer->attn_hc.down.dtype,
                        .activation_bytes = backend->ops->activation_bytes,
                        .expert_format = layer->moe.experts.gate_up_codes ? EXPERTS_NVFP4 : EXPERTS_F16,
                        .ple_dtype = engine->config.n_ple_layers ? weights->ple[0].table.dtype : DTYPE_F8_E4M3,
                        .context = context,
                        .runs_ahead = engine->run_ahead.n_launches > 0};
    const route_state_t *routes = backend->ops->routes ? backend->ops->routes(backend) : NULL;
    for (int i = 0; routes && i < N_KERNEL_ROUTES; i++)
        args.routes_taken[i] = routes[i].n_launches > 0;
    cost_build(&args, cost);
}

int64_t engine_position(const engine_t *engine) { return engine->sequence->pos; }

op_trace_t *engine_trace(engine_t *engine) { return engine->trace; }

void engine_observe_layers(engine_t *engine, engine_layer_observer_t observer, void *context) {
    step_observe(engine->step, observer, context);
}
