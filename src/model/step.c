#include "model/step.h"

#include <string.h>

#include "model/step_buffers.h"

/* One op, timed under its group. */
#define RUN(step, group, name, call)                                                                                   \
    do {                                                                                                               \
        op_trace_begin((step)->args.trace);                                                                            \
        TRY(call);                                                                                                     \
        op_trace_end((step)->args.trace, group, (step)->layer, name);                                                  \
    } while (0)

const float *step_logits(const step_t *step) { return step->logits; }

void step_observe(step_t *step, step_observer_t observer, void *context) {
    step->observer = observer;
    step->observer_context = context;
}

bool step_is_observed(const step_t *step) { return step->observer != NULL; }

static status_t linear(step_t *step, op_group_t group, const char *name, matrix_t weight, const activation_t *x,
                       activation_t *y) {
    backend_t *backend = step->args.backend;
    const linear_args_t args = {.n_tokens = step->n_tokens, .weight = weight, .x = x, .y = y};
    RUN(step, group, name, backend->ops->linear(backend, &args));
    return STATUS_OK;
}

/* The same with its result in FP32. */
static status_t linear_f32(step_t *step, op_group_t group, const char *name, matrix_t weight, const activation_t *x,
                           float *y) {
    backend_t *backend = step->args.backend;
    const linear_args_t args = {.n_tokens = step->n_tokens, .weight = weight, .x = x, .y_f32 = y};
    RUN(step, group, name, backend->ops->linear(backend, &args));
    return STATUS_OK;
}

/* Makes the partial sums of all ranks one. */
static status_t all_reduce(step_t *step, const char *name, activation_t *data, int64_t width) {
    backend_t *backend = step->args.backend;
    RUN(step, OP_GROUP_COMM, name, backend->ops->all_reduce(backend, data, (size_t)(step->n_tokens * width)));
    return STATUS_OK;
}

/* (u, inject) = GR(h), for the tokens from first_token on; what is pending of them is added to h. */
static gr_mix_args_t gr_mix_args(const step_t *step, const gr_weights_t *weights, int64_t first_token) {
    const model_config_t *config = step->args.config;
    int64_t S = config->hc_count, hidden_size = config->hidden_size;
    size_t o_offset = (size_t)(first_token * hidden_size) * step->args.backend->ops->activation_bytes;
    float *inject = step->injected == step->inject[0] ? step->inject[1] : step->inject[0];
    return (gr_mix_args_t){
        .n_tokens = step->n_tokens,
        .hc_count = S,
        .hidden_size = hidden_size,
        .rms_norm_eps = (float)config->rms_norm_eps,
        .h = step->h + first_token * S * hidden_size,
        .inject_before = step->is_pending ? step->injected + first_token * S : NULL,
        .o = (void *)((char *)step->o + o_offset),
        .receives = step->is_deferred,
        .hc_norm = weights->hc_norm,
        .down = weights->down,
        .up = weights->up,
        .block_inject = weights->block_inject,
        .u = step->u,
        .inject = weights->block_inject.data ? inject : NULL,
        .workspace = step->workspace,
    };
}

static status_t gr_mix(step_t *step, const gr_weights_t *weights, int64_t first_token) {
    backend_t *backend = step->args.backend;
    const gr_mix_args_t args = gr_mix_args(step, weights, first_token);
    RUN(step, OP_GROUP_GR, "gr_mix", backend->ops->gr_mix(backend, &args));
    step->injected = step->injected == step->inject[0] ? step->inject[1] : step->inject[0];
    step->is_pending = step->is_deferred = false;
    return STATUS_OK;
}

/* Whether the sum over ranks of o, which `producer` makes (NULL: the joined MoE), is left to `next`, the mixer that
 * follows; NULL where something else reads o first. */
static bool defers_sum(const step_t *step, const linear_args_t *producer, const gr_weights_t *next) {
    backend_t *backend = step->args.backend;
    if (step->n_tokens != 1 || !next || !backend->ops->defers_sum) return false;
    const gr_mix_args_t args = gr_mix_args(step, next, 0);
    return backend->ops->defers_sum(backend, producer, &args);
}

/* o = sum over ranks of weight x: now, or by `next`. */
static status_t output_proj(step_t *step, const char *name, matrix_t weight, const gr_weights_t *next) {
    backend_t *backend = step->args.backend;
    linear_args_t args = {.n_tokens = step->n_tokens, .weight = weight, .x = step->mixed, .y = step->o};
    step->is_deferred = args.sends = defers_sum(step, &args, next);
    RUN(step, OP_GROUP_PROJECTIONS, name, backend->ops->linear(backend, &args));
    if (step->is_deferred) return STATUS_OK;
    return all_reduce(step, "attention_all_reduce", step->o, step->args.config->hidden_size);
}

/* h[s] += inject[s] * o now, if that is pending: for what reads h and is no gr_mix. */
static status_t gr_inject(step_t *step) {
    if (!step->is_pending) return STATUS_OK;
    backend_t *backend = step->args.backend;
    const gr_inject_args_t args = {
        .n_tokens = step->n_tokens,
        .hc_count = step->args.config->hc_count,
        .hidden_size = step->args.config->hidden_size,
        .inject = step->injected,
        .o = step->o,
        .h = step->h,
    };
    RUN(step, OP_GROUP_GR, "gr_inject", backend->ops->gr_inject(backend, &args));
    step->is_pending = false;
    return STATUS_OK;
}

/* h += PLE(h, tokens) */
static status_t ple(step_t *step, const ple_weights_t *weights, layer_state_t *state) {
    backend_t *backend = step->args.backend;
    const model_config_t *config = step->args.config;
    int64_t n_heads = weights->ngram.n_heads;
    const ngram_rows_args_t rows = {
        .n_tokens = step->n_tokens,
        .n_heads = n_heads,
        .ngram_size = weights->ngram.ngram_size,
        .heads_per_ngram = weights->ngram.heads_per_ngram,
        .eos_token_id = weights->ngram.eos_token_id,
        .multipliers = weights->multipliers,
        .head_sizes = weights->head_sizes,
        .head_offsets = weights->head_offsets,
        .context = step->input->context,
        .tokens = step->input->tokens,
        .rows = step->rows,
    };
    const ple_gather_args_t gather = {
        .n_tokens = step->n_tokens,
        .n_heads = n_heads,
        .rows = step->rows,
        .table = weights->table,
        .table_scale = weights->table_scale,
        .first_row = weights->first_row,
        .e = step->e,
    };
    const ple_mix_args_t mix = {
        .n_tokens = step->n_tokens,
        .hc_count = config->hc_count,
        .hidden_size = config->hidden_size,
        .conv_kernel = config->ple_conv_kernel_size,
        .dilation = config->ngram_size,
        .rms_norm_eps = (float)config->rms_norm_eps,
        .projected = step->projected,
        .norm_key = weights->norm_key,
        .norm_query = weights->norm_query,
        .norm_conv = weights->norm_conv,
        .conv = weights->conv,
        .conv_state = state->ple_conv,
        .h = step->h,
        .workspace = step->workspace,
    };
    RUN(step, OP_GROUP_PLE, "ngram_rows", backend->ops->ngram_rows(backend, &rows));
    RUN(step, OP_GROUP_PLE, "ple_gather", backend->ops->ple_gather(backend, &gather));
    TRY(all_reduce(step, "ple_all_reduce", step->e, config->ple_embed_dim));
    TRY(linear(step, OP_GROUP_PLE, "ple_kv_proj", weights->kv_proj, step->e, step->projected));
    RUN(step, OP_GROUP_PLE, "ple_mix", backend->ops->ple_mix(backend, &mix));
    return STATUS_OK;
}

/* o = GDN(u); `next` as in output_proj */
static status_t gdn(step_t *step, const gdn_weights_t *weights, layer_state_t *state, const gr_weights_t *next) {
    backend_t *backend = step->args.backend;
    const model_config_t *config = step->args.config;
    const gdn_core_args_t core = {
        .n_tokens = step->n_tokens,
        .n_key_heads = step->args.local.n_key_heads,
        .n_value_heads = step->args.local.n_value_heads,
        .key_dim = config->linear_key_head_dim,
        .value_dim = config->linear_value_head_dim,
        .conv_kernel = config->linear_conv_kernel_dim,
        .rms_norm_eps = (float)config->rms_norm_eps,
        .silu_gate = config->output_gate_type == GATE_SILU,
        .projected = step->projected,
        .projected_stride = weights->in_proj.rows,
        .conv = weights->conv,
        .A_log = weights->A_log,
        .dt_bias = weights->dt_bias,
        .norm = weights->norm,
        .conv_state = state->gdn_conv,
        .state = state->gdn,
        .y = step->mixed,
        .workspace = step->workspace,
    };
    TRY(linear(step, OP_GROUP_PROJECTIONS, "gdn_in_proj", weights->in_proj, step->u, step->projected));
    RUN(step, OP_GROUP_GDN_CORE, "gdn_core", backend->ops->gdn_core(backend, &core));
    return output_proj(step, "gdn_out_proj", weights->out_proj, next);
}

/* o = QSA(u); `next` as in output_proj */
static status_t qsa(step_t *step, const qsa_weights_t *weights, layer_state_t *state, const gr_weights_t *next) {
    backend_t *backend = step->args.backend;
    const model_config_t *config = step->args.config;
    const qsa_prepare_args_t prepare = {
        .shape = step->qsa,
        .n_tokens = step->n_tokens,
        .start_pos = &step->input->start_pos,
        .rms_norm_eps = (float)config->rms_norm_eps,
        .rope_theta = config->rope_theta,
        .projected = step->projected,
        .projected_stride = weights->in_proj.rows,
        .q_norm = weights->q_norm,
        .k_norm = weights->k_norm,
        .index_q_norm = weights->index_q_norm,
        .index_k_norm = weights->index_k_norm,
        .cache = state->cache,
        .q = step->q,
        .gate = step->gate,
        .index_q = step->index_q,
    };
    const qsa_select_args_t select = {
        .shape = step->qsa,
        .n_tokens = step->n_tokens,
        .start_pos = &step->input->start_pos,
        .index_q = step->index_q,
        .cache = state->cache,
        .blocks = step->blocks,
        .n_blocks = step->n_blocks,
        .workspace = step->workspace,
    };
    const qsa_attend_args_t attend = {
        .shape = step->qsa,
        .n_tokens = step->n_tokens,
        .start_pos = &step->input->start_pos,
        .q = step->q,
        .gate = step->gate,
        .cache = state->cache,
        .blocks = step->blocks,
        .n_blocks = step->n_blocks,
        .y = step->mixed,
        .workspace = step->workspace,
    };
    TRY(linear(step, OP_GROUP_PROJECTIONS, "qsa_in_proj", weights->in_proj, step->u, step->projected));
    if (step->n_tokens == 1) { /* may take fewer launches than three ops would */
        const qsa_core_args_t core = {.prepare = prepare, .select = select, .attend = attend};
        RUN(step, OP_GROUP_QSA, "qsa_core", backend->ops->qsa_core(backend, &core));
    } else {
        RUN(step, OP_GROUP_QSA, "qsa_prepare", backend->ops->qsa_prepare(backend, &prepare));
        RUN(step, OP_GROUP_QSA, "qsa_select", backend->ops->qsa_select(backend, &select));
        RUN(step, OP_GROUP_QSA, "qsa_attend", backend->ops->qsa_attend(backend, &attend));
    }
    return output_proj(step, "qsa_o_proj", weights->o_proj, next);
}

/* moe for one token, where the backend has it joined; `joined` says whether it was done. The shared expert's time goes
 * to router and experts. */
static status_t joined_moe(step_t *step, const moe_weights_t *weights, const gr_weights_t *next, bool *joined) {
    backend_t *backend = step->args.backend;
    const model_config_t *config = step->args.config;
    moe_args_t args = {
        .n_experts = config->num_experts,
        .top_k = config->num_experts_per_tok,
        .hidden_size = config->hidden_size,
        .intermediate = step->args.local.moe_intermediate,
        .shared_intermediate = step->args.local.shared_intermediate,
        .norm_topk_prob = config->norm_topk_prob,
        .u = step->u,
        .router = weights->router,
        .shared_gate_up = weights->shared_gate_up,
        .shared_down = weights->shared_down,
        .expert_weights = weights->experts,
        .logits = step->router_logits,
        .experts = step->experts,
        .weights = step->expert_weights,
        .shared_gate = step->shared_gate,
        .o = step->o,
        .workspace = step->workspace,
    };
    *joined = step->n_tokens == 1 && backend->ops->moe_is_joined && backend->ops->moe_is_joined(backend, &args);
    if (!*joined) return STATUS_OK;
    step->is_deferred = args.sends = defers_sum(step, NULL, next);
    RUN(step, OP_GROUP_ROUTER, "moe_in", backend->ops->moe_in(backend, &args));
    RUN(step, OP_GROUP_EXPERTS, "moe_gate_up", backend->ops->moe_gate_up(backend, &args));
    RUN(step, OP_GROUP_EXPERTS, "moe_down", backend->ops->moe_down(backend, &args));
    return STATUS_OK;
}

/* o = this rank's part of MoE(u), routed and shared experts together; the sum is left to `next` where is_deferred */
static status_t moe(step_t *step, const moe_weights_t *weights, const gr_weights_t *next) {
    backend_t *backend = step->args.backend;
    const model_config_t *config = step->args.config;
    bool joined;
    TRY(joined_moe(step, weights, next, &joined));
    if (joined) return STATUS_OK;
    const router_args_t router = {
        .n_tokens = step->n_tokens,
        .n_experts = config->num_experts,
        .top_k = config->num_experts_per_tok,
        .norm_topk_prob = config->norm_topk_prob,
        .logits = step->router_logits,
        .logits_stride = weights->router.rows,
        .experts = step->experts,
        .weights = step->expert_weights,
        .shared_gate = step->shared_gate,
    };
    const experts_args_t experts = {
        .n_tokens = step->n_tokens,
        .n_experts = config->num_experts,
        .top_k = config->num_experts_per_tok,
        .hidden_size = config->hidden_size,
        .intermediate = step->args.local.moe_intermediate,
        .u = step->u,
        .experts = step->experts,
        .weights = step->expert_weights,
        .expert_weights = weights->experts,
        .o = step->o,
        .workspace = step->workspace,
    };
    const shared_expert_args_t shared = {
        .n_tokens = step->n_tokens,
        .u = step->u,
        .shared_gate = step->shared_gate,
        .gate_up = weights->shared_gate_up,
        .down = weights->shared_down,
        .o = step->o,
        .workspace = step->workspace,
    };
    TRY(linear_f32(step, OP_GROUP_ROUTER, "router_proj", weights->router, step->u, step->router_logits));
    RUN(step, OP_GROUP_ROUTER, "router", backend->ops->router(backend, &router));
    RUN(step, OP_GROUP_EXPERTS, "experts", backend->ops->experts(backend, &experts));
    RUN(step, OP_GROUP_SHARED_EXPERT, "shared_expert", backend->ops->shared_expert(backend, &shared));
    return STATUS_OK;
}

/* `next` is the mixer behind the layer; NULL where something else reads o first. */
static status_t run_layer(step_t *step, const layer_weights_t *weights, layer_state_t *state,
                          const gr_weights_t *next) {
    if (weights->ple) {
        TRY(gr_inject(step));
        TRY(ple(step, weights->ple, state));
    }

    TRY(gr_mix(step, &weights->attn_hc, 0));
    if (step->args.config->layer_types[step->layer] == LAYER_GDN)
        TRY(gdn(step, &weights->gdn, state, &weights->mlp_hc));
    else
        TRY(qsa(step, &weights->qsa, state, &weights->mlp_hc));
    step->is_pending = true;

    TRY(gr_mix(step, &weights->mlp_hc, 0));
    TRY(moe(step, &weights->moe, next));
    if (!step->is_deferred) TRY(all_reduce(step, "moe_all_reduce", step->o, step->args.config->hidden_size));
    step->is_pending = true;
    return STATUS_OK;
}

static status_t embed(step_t *step, matrix_t weight) {
    backend_t *backend = step->args.backend;
    const embed_args_t args = {
        .n_tokens = step->n_tokens,
        .hc_count = step->args.config->hc_count,
        .tokens = step->input->tokens,
        .embed = weight,
        .h = step->h,
    };
    RUN(step, OP_GROUP_OTHER, "embed", backend->ops->embed(backend, &args));
    return STATUS_OK;
}

/* Only the last token's logits are ever asked for. */
static status_t head(step_t *step, const weights_t *weights) {
    int64_t last = step->n_tokens - 1;
    step->n_tokens = 1;
    TRY(gr_mix(step, &weights->final_hc, last));
    const lm_head_args_t args = {
        .weight = weights->lm_head,
        .u = step->u,
        .first_token = step->args.local.tp_rank * step->args.local.vocab,
        .n_valid = step->args.n_valid_tokens,
        .logits = step->logits,
        .pair = step->pair,
        .state = step->head_state,
    };
    RUN(step, OP_GROUP_LM_HEAD, "lm_head", step->args.backend->ops->lm_head(step->args.backend, &args));
    return STATUS_OK;
}

status_t step_compute(step_t *step, const weights_t *weights, sequence_t *sequence, int64_t n_tokens,
                      bool want_logits) {
    step->n_tokens = n_tokens;
    step->layer = -1;
    step->is_pending = step->is_deferred = false;
    TRY(embed(step, weights->embed));
    for (int64_t layer = 0; layer < step->args.config->num_hidden_layers; layer++) {
        step->layer = (int32_t)layer;
        const gr_weights_t *next = &weights->final_hc;
        if (layer + 1 < step->args.config->num_hidden_layers)
            next = weights->layers[layer + 1].ple ? NULL : &weights->layers[layer + 1].attn_hc;
        TRY(run_layer(step, &weights->layers[layer], &sequence->layers[layer],
                      step->observer || (next == &weights->final_hc && !want_logits) ? NULL : next));
        if (!step->observer) continue;
        TRY(gr_inject(step));
        step->observer(step->observer_context, layer, step->h, n_tokens);
    }
    step->layer = -1;
    return want_logits ? head(step, weights) : STATUS_OK;
}

const token_pair_t *step_argmax(const step_t *step) { return step->pair; }

status_t step_advance(step_t *step, const advance_args_t *args, int64_t n_tokens) {
    advance_args_t advance = *args;
    advance.n_tokens = n_tokens;
    advance.n_context = step->args.config->ngram_size - 1;
    advance.pair = step->pair;
    advance.start_pos = &step->input->start_pos;
    advance.context = step->input->context;
    advance.tokens = step->input->tokens;
    TRY(step->args.backend->ops->advance(step->args.backend, &advance));
    op_trace_stamp(step->args.trace, OP_GROUP_SAMPLING, "advance");
    return STATUS_OK;
}

status_t step_upload(step_t *step, const sequence_t *sequence, const int32_t *tokens, int64_t n_tokens) {
    backend_t *backend = step->args.backend;
    step_input_t *input = step->input_host;
    input->start_pos = sequence->pos;
    memcpy(input->context, sequence->context, sizeof input->context);
    memcpy(input->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    return backend->ops->upload(backend, step->input, input, step_input_bytes(n_tokens));
}
