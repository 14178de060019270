#include "engine/engine_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/heartbeat.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "model/memory_plan.h"

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
    return engine_alloc_sampling(engine);
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
    engine_free_sampling(engine);
    runner_destroy(engine->runner);
    step_destroy(engine->step);
    sequence_destroy(engine->sequence);
    weights_destroy(engine->weights);
    op_trace_destroy(engine->trace);
    memory_free(engine->config_json);
    memory_free(engine);
}

status_t engine_reset(engine_t *engine) {
    runner_drop(engine->runner);
    engine->token = -1;
    return sequence_reset(engine->sequence);
}

/* Between the chunks of a prompt. The device is done with those before: so a signal does not wait behind work that was
 * queued long ago, and the watcher sees that a long prompt makes progress. */
static status_t check_chunk(engine_t *engine) {
    status_t status = engine->backend->ops->synchronize(engine->backend);
    return comm_agree(engine->comm, status == STATUS_OK ? interrupt_check() : status);
}

status_t engine_forward(engine_t *engine, const int32_t *tokens, size_t n_tokens) {
    int64_t n = (int64_t)n_tokens, pos = engine->sequence->pos;
    TRY(engine_check_not_ahead(engine));
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
        args.routes_taken[i] = routes[i].wanted && !routes[i].refusal;
    cost_build(&args, cost);
}

int64_t engine_position(const engine_t *engine) { return engine->sequence->pos; }

op_trace_t *engine_trace(engine_t *engine) { return engine->trace; }

void engine_observe_layers(engine_t *engine, engine_layer_observer_t observer, void *context) {
    step_observe(engine->step, observer, context);
}
