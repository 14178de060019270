#include "shard/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/ngram.h"

/* Which sources a dataset has. */
typedef enum form {
    FORM_WHOLE,          /* one tensor, one run of all its rows */
    FORM_VECTOR,         /* one tensor, one row (replicated vectors) */
    FORM_ITEMS,          /* one tensor of one dimension, a row per item */
    FORM_QKV,            /* one tensor, the runs q, k and v */
    FORM_KV,             /* one tensor, cut by KV heads, which ranks may share */
    FORM_EXPERTS,        /* a tensor per expert */
    FORM_EXPERT_PAIRS,   /* gate and up of each expert */
    FORM_EXPERT_SCALARS, /* as the two above, one number each */
    FORM_EXPERT_SCALAR_PAIRS,
    FORM_TABLE,      /* the row blocks of the PLE table */
    FORM_TABLE_SCALE /* its scale, or the constant 1 */
} form_t;

/* `path` is the dataset's path without its layer: "gdn/norm" for /layers/NN/gdn/norm, "ple/table" for /ple/NN/table. */
static const struct rule {
    const char *path;
    role_t role; /* of the tensor, or of the first of a pair */
    form_t form;
    slice_t slice;
    conversion_t conversion;
} rules[] = {
    {"embed", ROLE_EMBED, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"lm_head", ROLE_LM_HEAD, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"final_hc/hc_norm", ROLE_FINAL_HC_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"final_hc/input_mix_weight_down", ROLE_FINAL_HC_DOWN, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"final_hc/input_mix_weight_up", ROLE_FINAL_HC_UP, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"attn_hc/hc_norm", ROLE_ATTN_HC_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"attn_hc/input_mix_weight_down", ROLE_ATTN_HC_DOWN, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"attn_hc/input_mix_weight_up", ROLE_ATTN_HC_UP, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"attn_hc/block_inject_weight", ROLE_ATTN_HC_INJECT, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"mlp_hc/hc_norm", ROLE_MLP_HC_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"mlp_hc/input_mix_weight_down", ROLE_MLP_HC_DOWN, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"mlp_hc/input_mix_weight_up", ROLE_MLP_HC_UP, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"mlp_hc/block_inject_weight", ROLE_MLP_HC_INJECT, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"gdn/in_proj_qkv", ROLE_GDN_IN_PROJ_QKV, FORM_QKV, SLICE_ROWS, CONVERT_COPY},
    {"gdn/in_proj_z", ROLE_GDN_IN_PROJ_Z, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"gdn/in_proj_b", ROLE_GDN_IN_PROJ_B, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"gdn/in_proj_a", ROLE_GDN_IN_PROJ_A, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"gdn/conv1d", ROLE_GDN_CONV1D, FORM_QKV, SLICE_ROWS, CONVERT_COPY},
    {"gdn/A_log", ROLE_GDN_A_LOG, FORM_ITEMS, SLICE_ROWS, CONVERT_TO_F32},
    {"gdn/dt_bias", ROLE_GDN_DT_BIAS, FORM_ITEMS, SLICE_ROWS, CONVERT_TO_F32},
    {"gdn/norm", ROLE_GDN_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"gdn/out_proj", ROLE_GDN_OUT_PROJ, FORM_WHOLE, SLICE_COLUMNS, CONVERT_COPY},
    {"qsa/q_proj", ROLE_QSA_Q_PROJ, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"qsa/k_proj", ROLE_QSA_K_PROJ, FORM_KV, SLICE_ROWS, CONVERT_COPY},
    {"qsa/v_proj", ROLE_QSA_V_PROJ, FORM_KV, SLICE_ROWS, CONVERT_COPY},
    {"qsa/o_proj", ROLE_QSA_O_PROJ, FORM_WHOLE, SLICE_COLUMNS, CONVERT_COPY},
    {"qsa/q_norm", ROLE_QSA_Q_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"qsa/k_norm", ROLE_QSA_K_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"qsa/index_qk_proj", ROLE_QSA_INDEX_QK_PROJ, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"qsa/index_q_norm", ROLE_QSA_INDEX_Q_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"qsa/index_k_norm", ROLE_QSA_INDEX_K_NORM, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"moe/router", ROLE_ROUTER, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"moe/shared_gate_proj", ROLE_SHARED_GATE_PROJ, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"moe/shared_up_proj", ROLE_SHARED_UP_PROJ, FORM_WHOLE, SLICE_ROWS, CONVERT_COPY},
    {"moe/shared_down_proj", ROLE_SHARED_DOWN_PROJ, FORM_WHOLE, SLICE_COLUMNS, CONVERT_COPY},
    {"moe/shared_expert_gate", ROLE_SHARED_EXPERT_GATE, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"moe/gate_up_codes", ROLE_EXPERT_GATE, FORM_EXPERT_PAIRS, SLICE_ROWS, CONVERT_COPY},
    {"moe/gate_up_scales", ROLE_EXPERT_GATE_SCALE, FORM_EXPERT_PAIRS, SLICE_ROWS, CONVERT_COPY},
    {"moe/gate_up_scale_2", ROLE_EXPERT_GATE_SCALE_2, FORM_EXPERT_SCALAR_PAIRS, SLICE_NONE, CONVERT_COPY},
    {"moe/down_codes", ROLE_EXPERT_DOWN, FORM_EXPERTS, SLICE_COLUMNS, CONVERT_COPY},
    {"moe/down_scales", ROLE_EXPERT_DOWN_SCALE, FORM_EXPERTS, SLICE_COLUMNS, CONVERT_COPY},
    {"moe/down_scale_2", ROLE_EXPERT_DOWN_SCALE_2, FORM_EXPERT_SCALARS, SLICE_NONE, CONVERT_COPY},
    {"moe/gate_up", ROLE_EXPERT_GATE, FORM_EXPERT_PAIRS, SLICE_ROWS, CONVERT_TO_F16},
    {"moe/down", ROLE_EXPERT_DOWN, FORM_EXPERTS, SLICE_COLUMNS, CONVERT_TO_F16},
    {"ple/table", ROLE_PLE_TABLE, FORM_TABLE, SLICE_ROWS, CONVERT_COPY},
    {"ple/table_scale", ROLE_PLE_TABLE_SCALE, FORM_TABLE_SCALE, SLICE_NONE, CONVERT_TO_F32},
    {"ple/key_proj", ROLE_PLE_KEY_PROJ, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"ple/value_proj", ROLE_PLE_VALUE_PROJ, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
    {"ple/norm_key", ROLE_PLE_NORM_KEY, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"ple/norm_query", ROLE_PLE_NORM_QUERY, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"ple/norm_conv", ROLE_PLE_NORM_CONV, FORM_VECTOR, SLICE_NONE, CONVERT_COPY},
    {"ple/conv1d", ROLE_PLE_CONV1D, FORM_WHOLE, SLICE_NONE, CONVERT_COPY},
};

enum { N_RULES = sizeof rules / sizeof *rules };

/* The path without its layer, and the layer. */
static const char *split_path(const char *path, char plain[SCHEMA_PATH_BYTES], int64_t *layer) {
    *layer = 0;
    bool in_ple = strncmp(path, "/ple/", 5) == 0;
    if (!in_ple && strncmp(path, "/layers/", 8) != 0) return path + 1;
    char *rest;
    *layer = strtoll(path + (in_ple ? 5 : 8), &rest, 10);
    snprintf(plain, SCHEMA_PATH_BYTES, "%s%s", in_ple ? "ple/" : "", rest + (*rest == '/'));
    return plain;
}

static bool is_expert_form(form_t form) { return form >= FORM_EXPERTS && form <= FORM_EXPERT_SCALAR_PAIRS; }

static int64_t count_sources(const model_config_t *config, const plan_options_t *options, const struct rule *rule,
                             int64_t layer) {
    int64_t ple_index = 0;
    config_ple_index(config, layer, &ple_index);
    switch (rule->form) {
    case FORM_QKV:
        return 3;
    case FORM_EXPERTS:
    case FORM_EXPERT_SCALARS:
        return config->num_experts;
    case FORM_EXPERT_PAIRS:
    case FORM_EXPERT_SCALAR_PAIRS:
        return 2 * config->num_experts;
    case FORM_TABLE: {
        int64_t n_shards = options->inventory.n_table_shards[ple_index];
        return n_shards ? n_shards : 1;
    }
    case FORM_TABLE_SCALE:
        return options->inventory.ple_dtype == DTYPE_F8_E4M3 ? 1 : 0;
    default:
        return 1;
    }
}

status_t plan_dataset(const model_config_t *config, const plan_options_t *options, const char *path,
                      plan_dataset_t *dataset) {
    char plain[SCHEMA_PATH_BYTES];
    int64_t layer;
    const char *wanted = split_path(path, plain, &layer);
    int index = 0;
    while (index < N_RULES && strcmp(rules[index].path, wanted) != 0)
        index++;
    if (index == N_RULES) return status_fail(STATUS_INPUT, "no rule makes the dataset %s", path);
    const struct rule *rule = &rules[index];
    plan_dataset_t made = {.slice = rule->slice, .conversion = rule->conversion, .rule = index, .layer = layer};
    made.n_sources = count_sources(config, options, rule, layer);
    made.n_groups = is_expert_form(rule->form) ? config->num_experts : 1;
    if (is_expert_form(rule->form) && options->expert_format == EXPERTS_NVFP4 &&
        options->inventory.expert_storage != STORED_NVFP4)
        made.conversion = CONVERT_TO_NVFP4;
    made.n_parts = rule->slice == SLICE_NONE ? 1 : options->tp_size;
    if (rule->form == FORM_KV && made.n_parts > config->num_key_value_heads)
        made.n_parts = (int)config->num_key_value_heads;
    *dataset = made;
    return STATUS_OK;
}

/* Rows and row length of a whole tensor, its leading dimensions taken together. */
static void set_whole(const role_expectation_t *shape, plan_source_t *source) {
    source->n_rows = 1;
    for (int i = 0; i + 1 < shape->n_dims; i++)
        source->n_rows *= shape->shape[i];
    source->row_items = shape->n_dims ? shape->shape[shape->n_dims - 1] : 1;
}

/* Expert `expert`'s gate (0), up (1) or down (2), in its own tensor or within the fused one. */
static void set_expert(const model_config_t *config, expert_storage_t storage, role_t role, int64_t expert,
                       int64_t projection, plan_source_t *source) {
    if (storage != STORED_BF16_FUSED) {
        source->place.role = role;
        source->place.item = expert;
        role_expectation_t shape = role_expect(role, config, storage);
        set_whole(&shape, source);
        return;
    }
    int64_t width = config->moe_intermediate_size, hidden = config->hidden_size;
    bool is_down = projection == 2;
    source->place.role = is_down ? ROLE_EXPERTS_DOWN : ROLE_EXPERTS_GATE_UP;
    source->n_rows = is_down ? hidden : width;
    source->row_items = is_down ? width : hidden;
    source->first_row = is_down ? expert * hidden : (2 * expert + projection) * width;
}

static void set_qkv(const model_config_t *config, const role_expectation_t *shape, int64_t index,
                    plan_source_t *source) {
    int64_t key_rows = config->linear_num_key_heads * config->linear_key_head_dim;
    source->first_row = index * key_rows;
    source->n_rows = index < 2 ? key_rows : shape->shape[0] - 2 * key_rows;
    source->row_items = shape->shape[shape->n_dims - 1];
}

static void set_table(const model_config_t *config, const plan_options_t *options, int64_t shard,
                      plan_source_t *source) {
    int64_t ple_index = 0;
    config_ple_index(config, source->place.layer, &ple_index);
    ngram_constants_t constants;
    ngram_derive(config, ple_index, &constants);
    int64_t n_shards = options->inventory.n_table_shards[ple_index];
    source->row_items = config->ple_embed_dim / constants.n_heads;
    source->extent_rows = constants.n_rows;
    source->n_rows = constants.n_rows;
    if (n_shards == 0) return;
    source->place.role = ROLE_PLE_TABLE_SHARD;
    source->place.item = shard;
    source->n_rows = inventory_shard_rows(constants.n_rows, n_shards, shard);
    source->extent_first = shard * inventory_shard_rows(constants.n_rows, n_shards, 0);
}

void plan_source(const model_config_t *config, const plan_options_t *options, const plan_dataset_t *dataset,
                 int64_t index, plan_source_t *source) {
    const struct rule *rule = &rules[dataset->rule];
    expert_storage_t storage = options->inventory.expert_storage;
    plan_source_t made = {.place = {rule->role, dataset->layer, 0}};
    role_expectation_t shape = role_expect(rule->role, config, storage);
    /* Projections of one expert follow one another in the role table with the same step. */
    const int projection_step = ROLE_EXPERT_UP - ROLE_EXPERT_GATE;
    switch (rule->form) {
    case FORM_WHOLE:
    case FORM_KV:
        set_whole(&shape, &made);
        break;
    case FORM_VECTOR:
    case FORM_TABLE_SCALE:
        made.n_rows = 1, made.row_items = shape.shape[0];
        break;
    case FORM_ITEMS:
        made.n_rows = shape.shape[0], made.row_items = 1;
        break;
    case FORM_QKV:
        set_qkv(config, &shape, index, &made);
        break;
    case FORM_EXPERTS:
    case FORM_EXPERT_SCALARS:
        set_expert(config, storage, rule->role, index, 2, &made);
        break;
    case FORM_EXPERT_PAIRS:
    case FORM_EXPERT_SCALAR_PAIRS: {
        role_t role = (role_t)((int)rule->role + (index % 2 ? projection_step : 0));
        set_expert(config, storage, role, index / 2, index % 2, &made);
        break;
    }
    case FORM_TABLE:
        set_table(config, options, index, &made);
        break;
    }
    if (made.extent_rows == 0) made.extent_rows = made.n_rows;
    *source = made;
}

static int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

plan_piece_t plan_piece(const plan_dataset_t *dataset, const plan_source_t *source, int tp_rank, int tp_size) {
    plan_piece_t piece = {source->first_row, source->n_rows, 0, source->row_items};
    int64_t part = tp_rank / (tp_size / dataset->n_parts);
    if (dataset->slice == SLICE_COLUMNS) {
        piece.n_items = source->row_items / dataset->n_parts;
        piece.first_item = part * piece.n_items;
    } else if (dataset->slice == SLICE_ROWS) {
        int64_t block = source->extent_rows / dataset->n_parts;
        int64_t first = maximum(part * block - source->extent_first, 0);
        int64_t last = minimum((part + 1) * block - source->extent_first, source->n_rows);
        piece.first_row = source->first_row + first;
        piece.n_rows = maximum(last - first, 0);
    }
    return piece;
}

void plan_slice_text(const plan_dataset_t *dataset, int tp_rank, int tp_size, char *text, size_t text_bytes) {
    if (dataset->slice == SLICE_NONE) {
        snprintf(text, text_bytes, "replicated");
        return;
    }
    snprintf(text, text_bytes, "%s %d/%d", dataset->slice == SLICE_ROWS ? "rows" : "columns",
             tp_rank / (tp_size / dataset->n_parts), dataset->n_parts);
}
