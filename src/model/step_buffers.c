#include "model/step_buffers.h"

#include "base/arena.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static bool has_layer_type(const model_config_t *config, layer_type_t type) {
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        if (config->layer_types[layer] == type) return true;
    }
    return false;
}

/* All zeros for a model without QSA layers. */
static qsa_shape_t qsa_shape(const step_args_t *args) {
    const model_config_t *config = args->config;
    if (!has_layer_type(config, LAYER_QSA)) return (qsa_shape_t){0};
    int64_t ratio = config->indexer_compress_ratio;
    return (qsa_shape_t){
        .n_heads = args->local.n_heads,
        .n_kv_heads = args->local.n_kv_heads,
        .head_dim = config->head_dim,
        .rotary_dim = config->rotary_dim,
        .index_n_heads = config->indexer_n_heads,
        .index_dim = config->indexer_head_dim,
        .ratio = ratio,
        .n_select = smaller(config->indexer_budget / ratio, (args->max_context + ratio - 1) / ratio),
    };
}

static matrix_t shape_of(int64_t rows, int64_t columns) { return (matrix_t){.rows = rows, .columns = columns}; }

/* The largest workspace that any op asks for. */
static int64_t workspace_bytes(const step_args_t *args, const qsa_shape_t *qsa) {
    const model_config_t *config = args->config;
    const local_shape_t *local = &args->local;
    const backend_ops_t *ops = args->backend->ops;
    int64_t n_tokens = args->max_tokens, hidden_size = config->hidden_size;
    int64_t most = (int64_t)ops->gr_mix_workspace_bytes(&(gr_mix_args_t){
        .n_tokens = n_tokens,
        .hc_count = config->hc_count,
        .hidden_size = hidden_size,
        .down = shape_of(config->hc_lowrank, local->stream_width),
        .up = shape_of(local->stream_width, config->hc_lowrank),
        .block_inject = shape_of(config->hc_count, local->stream_width),
    });
    most = larger(most, (int64_t)ops->gdn_core_workspace_bytes(&(gdn_core_args_t){
                            .n_tokens = n_tokens,
                            .n_key_heads = local->n_key_heads,
                            .n_value_heads = local->n_value_heads,
                            .key_dim = config->linear_key_head_dim,
                            .value_dim = config->linear_value_head_dim,
                            .conv_kernel = config->linear_conv_kernel_dim,
                        }));
    most = larger(most, (int64_t)ops->experts_workspace_bytes(&(experts_args_t){
                            .n_tokens = n_tokens,
                            .n_experts = config->num_experts,
                            .top_k = config->num_experts_per_tok,
                            .hidden_size = hidden_size,
                            .intermediate = local->moe_intermediate,
                        }));
    most = larger(most, (int64_t)ops->shared_expert_workspace_bytes(&(shared_expert_args_t){
                            .n_tokens = n_tokens,
                            .gate_up = shape_of(2 * local->shared_intermediate, hidden_size),
                            .down = shape_of(hidden_size, local->shared_intermediate),
                        }));
    if (ops->moe_workspace_bytes)
        most = larger(most, (int64_t)ops->moe_workspace_bytes(&(moe_args_t){
                                .top_k = config->num_experts_per_tok,
                                .hidden_size = hidden_size,
                                .intermediate = local->moe_intermediate,
                                .shared_intermediate = local->shared_intermediate,
                            }));
    if (config->n_ple_layers)
        most = larger(most, (int64_t)ops->ple_mix_workspace_bytes(&(ple_mix_args_t){
                                .n_tokens = n_tokens,
                                .hc_count = config->hc_count,
                                .hidden_size = hidden_size,
                                .conv_kernel = config->ple_conv_kernel_size,
                                .dilation = config->ngram_size,
                            }));
    if (qsa->ratio) {
        qsa_cache_t cache = {.capacity = (args->max_context + qsa->ratio - 1) / qsa->ratio * qsa->ratio};
        most = larger(most, (int64_t)ops->qsa_select_workspace_bytes(
                                &(qsa_select_args_t){.shape = *qsa, .n_tokens = n_tokens, .cache = cache}));
        most = larger(most, (int64_t)ops->qsa_attend_workspace_bytes(
                                &(qsa_attend_args_t){.shape = *qsa, .n_tokens = n_tokens, .cache = cache}));
    }
    return most;
}

static void place(step_t *step, arena_t *arena) {
    const model_config_t *config = step->args.config;
    const local_shape_t *local = &step->args.local;
    int64_t n_tokens = step->args.max_tokens, hidden_size = config->hidden_size;
    int64_t widest = larger(local->gdn_projected, local->qsa_projected);
    if (config->n_ple_layers) widest = larger(widest, local->stream_width + hidden_size);

    size_t activation_bytes = step->args.backend->ops->activation_bytes;
    step->input = arena_take(arena, (int64_t)step_input_bytes(n_tokens), 1);
    step->h = arena_floats(arena, n_tokens * local->stream_width);
    step->u = arena_take(arena, n_tokens * hidden_size, activation_bytes);
    step->o = arena_take(arena, n_tokens * hidden_size, activation_bytes);
    for (int i = 0; i < 2; i++)
        step->inject[i] = arena_floats(arena, n_tokens * config->hc_count);
    step->projected = arena_take(arena, n_tokens * widest, activation_bytes);
    step->mixed = arena_take(arena, n_tokens * larger(local->value_width, local->attention_width), activation_bytes);
    step->experts = arena_take(arena, n_tokens * config->num_experts_per_tok, sizeof(int32_t));
    step->expert_weights = arena_floats(arena, n_tokens * config->num_experts_per_tok);
    step->shared_gate = arena_floats(arena, n_tokens);
    step->router_logits = arena_floats(arena, n_tokens * router_rows(config->num_experts));
    step->logits = arena_floats(arena, local->vocab);
    step->pair = arena_take(arena, 1, sizeof(token_pair_t));
    step->head_state = arena_take(arena, LM_HEAD_STATE, sizeof(uint64_t));
    if (step->qsa.ratio) {
        step->q = arena_take(arena, n_tokens * local->attention_width, activation_bytes);
        step->gate = arena_take(arena, n_tokens * local->attention_width, activation_bytes);
        step->index_q = arena_take(arena, n_tokens * step->qsa.index_n_heads * step->qsa.index_dim, activation_bytes);
        step->blocks = arena_take(arena, n_tokens * step->qsa.n_select, sizeof(int32_t));
        step->n_blocks = arena_take(arena, n_tokens, sizeof(int32_t));
    }
    if (config->n_ple_layers) {
        step->rows = arena_take(arena, n_tokens * config_n_ngram_heads(config), sizeof(int64_t));
        step->e = arena_take(arena, n_tokens * config->ple_embed_dim, activation_bytes);
    }
    step->workspace = arena_take(arena, workspace_bytes(&step->args, &step->qsa), 1);
}

void step_count(const step_args_t *args, size_t needed[MEMORY_N_LABELS]) {
    step_t counted = {.args = *args, .qsa = qsa_shape(args)};
    arena_t arena = {0};
    place(&counted, &arena);
    needed[MEMORY_WORKSPACE] += arena.used;
}

status_t step_create(const step_args_t *args, step_t **step) {
    backend_t *backend = args->backend;
    void *memory;
    status_t status;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(step_t), &memory));
    step_t *created = memory;
    created->args = *args;
    created->qsa = qsa_shape(args);
    TRY_GOTO(memory_alloc(MEMORY_OTHER, step_input_bytes(args->max_tokens), 1, &memory), failed);
    created->input_host = memory;
    size_t needed[MEMORY_N_LABELS] = {0};
    step_count(args, needed);
    TRY_GOTO(backend->ops->alloc(backend, MEMORY_WORKSPACE, needed[MEMORY_WORKSPACE], &created->block), failed);
    arena_t arena = {.base = created->block};
    place(created, &arena);
    *step = created;
    return STATUS_OK;

failed:
    step_destroy(created);
    return status;
}

void step_destroy(step_t *step) {
    if (!step) return;
    step->args.backend->ops->free(step->args.backend, step->block);
    memory_free(step->input_host);
    memory_free(step);
}
