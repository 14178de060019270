#include "checkpoint/roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that shapes are made of, as functions of the config. */
typedef enum dim {
    DIM_END, /* no further dimension */
    DIM_ONE,
    DIM_VOCAB,
    DIM_HIDDEN,
    DIM_STREAMS,
    DIM_STREAM_WIDTH,
    DIM_RANK,
    DIM_GDN_CHANNELS,
    DIM_GDN_VALUES,
    DIM_GDN_VALUE_HEADS,
    DIM_GDN_VALUE_HEAD,
    DIM_GDN_KERNEL,
    DIM_QUERY_AND_GATE,
    DIM_QUERY,
    DIM_KV,
    DIM_HEAD,
    DIM_INDEX_QK,
    DIM_INDEX_HEAD,
    DIM_EXPERTS,
    DIM_SHARED,
    DIM_EXPERT,
    DIM_EXPERT_2,
    DIM_HIDDEN_CODES,
    DIM_HIDDEN_BLOCKS,
    DIM_EXPERT_CODES,
    DIM_EXPERT_BLOCKS,
    DIM_PLE,
    DIM_PLE_KERNEL,
    DIM_PLE_ROW,
    DIM_NGRAM,
    DIM_NGRAM_HEADS,
    DIM_ANY, /* not a function of the config alone */
} dim_t;

static int64_t dim_size(dim_t dim, const model_config_t *config) {
    int64_t gdn_values = config->linear_num_value_heads * config->linear_value_head_dim;
    switch (dim) {
    case DIM_END:
        break;
    case DIM_ANY:
        break;
    case DIM_ONE:
        return 1;
    case DIM_VOCAB:
        return config->vocab_size;
    case DIM_HIDDEN:
        return config->hidden_size;
    case DIM_STREAMS:
        return config->hc_count;
    case DIM_STREAM_WIDTH:
        return config->hc_count * config->hidden_size;
    case DIM_RANK:
        return config->hc_lowrank;
    case DIM_GDN_CHANNELS:
        return 2 * config->linear_num_key_heads * config->linear_key_head_dim + gdn_values;
    case DIM_GDN_VALUES:
        return gdn_values;
    case DIM_GDN_VALUE_HEADS:
        return config->linear_num_value_heads;
    case DIM_GDN_VALUE_HEAD:
        return config->linear_value_head_dim;
    case DIM_GDN_KERNEL:
        return config->linear_conv_kernel_dim;
    case DIM_QUERY_AND_GATE:
        return config->num_attention_heads * 2 * config->head_dim;
    case DIM_QUERY:
        return config->num_attention_heads * config->head_dim;
    case DIM_KV:
        return config->num_key_value_heads * config->head_dim;
    case DIM_HEAD:
        return config->head_dim;
    case DIM_INDEX_QK:
        return (config->indexer_n_heads + 1) * config->indexer_head_dim;
    case DIM_INDEX_HEAD:
        return config->indexer_head_dim;
    case DIM_EXPERTS:
        return config->num_experts;
    case DIM_SHARED:
        return config->shared_expert_intermediate_size;
    case DIM_EXPERT:
        return config->moe_intermediate_size;
    case DIM_EXPERT_2:
        return 2 * config->moe_intermediate_size;
    case DIM_HIDDEN_CODES:
        return config->hidden_size / 2;
    case DIM_HIDDEN_BLOCKS:
        return config->hidden_size / 16;
    case DIM_EXPERT_CODES:
        return config->moe_intermediate_size / 2;
    case DIM_EXPERT_BLOCKS:
        return config->moe_intermediate_size / 16;
    case DIM_PLE:
        return config->ple_embed_dim;
    case DIM_PLE_KERNEL:
        return config->ple_conv_kernel_size;
    case DIM_PLE_ROW:
        return config->ple_embed_dim / config_n_ngram_heads(config);
    case DIM_NGRAM:
        return config->ngram_size;
    case DIM_NGRAM_HEADS:
        return config_n_ngram_heads(config);
    }
    return -1;
}

typedef enum scope { SCOPE_TOP, SCOPE_LAYER, SCOPE_GDN, SCOPE_QSA, SCOPE_EXPERT, SCOPE_PLE } scope_t;

/* Types that a tensor may have, as a set of bits. */
enum {
    BF16 = 1 << DTYPE_BF16,
    F32 = 1 << DTYPE_F32,
    U8 = 1 << DTYPE_U8,
    F8 = 1 << DTYPE_F8_E4M3,
    I64 = 1 << DTYPE_I64
};

/* A name is the scope's prefix and this suffix; "#" stands for the expert or shard number. */
static const struct role_entry {
    scope_t scope;
    const char *suffix;
    unsigned dtypes;
    dim_t shape[ROLE_MAX_DIMS];
} role_table[ROLE_N] = {
    [ROLE_EMBED] = {SCOPE_TOP, "model.language_model.embed_tokens.weight", BF16, {DIM_VOCAB, DIM_HIDDEN}},
    [ROLE_LM_HEAD] = {SCOPE_TOP, "lm_head.weight", BF16, {DIM_VOCAB, DIM_HIDDEN}},
#define FINAL_HC "model.language_model.hyper_connection_mixer."
    [ROLE_FINAL_HC_NORM] = {SCOPE_TOP, FINAL_HC "hc_norm.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_FINAL_HC_DOWN] = {SCOPE_TOP, FINAL_HC "input_mix_weight_down.weight", BF16, {DIM_RANK, DIM_STREAM_WIDTH}},
    [ROLE_FINAL_HC_UP] = {SCOPE_TOP, FINAL_HC "input_mix_weight_up.weight", BF16, {DIM_STREAM_WIDTH, DIM_RANK}},
#define ATTN_HC "attn_hyper_connection."
    [ROLE_ATTN_HC_NORM] = {SCOPE_LAYER, ATTN_HC "hc_norm.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_ATTN_HC_DOWN] = {SCOPE_LAYER, ATTN_HC "input_mix_weight_down.weight", BF16, {DIM_RANK, DIM_STREAM_WIDTH}},
    [ROLE_ATTN_HC_UP] = {SCOPE_LAYER, ATTN_HC "input_mix_weight_up.weight", BF16, {DIM_STREAM_WIDTH, DIM_RANK}},
    [ROLE_ATTN_HC_INJECT] = {SCOPE_LAYER, ATTN_HC "block_inject_weight.weight", BF16, {DIM_STREAMS, DIM_STREAM_WIDTH}},
#define MLP_HC "mlp_hyper_connection."
    [ROLE_MLP_HC_NORM] = {SCOPE_LAYER, MLP_HC "hc_norm.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_MLP_HC_DOWN] = {SCOPE_LAYER, MLP_HC "input_mix_weight_down.weight", BF16, {DIM_RANK, DIM_STREAM_WIDTH}},
    [ROLE_MLP_HC_UP] = {SCOPE_LAYER, MLP_HC "input_mix_weight_up.weight", BF16, {DIM_STREAM_WIDTH, DIM_RANK}},
    [ROLE_MLP_HC_INJECT] = {SCOPE_LAYER, MLP_HC "block_inject_weight.weight", BF16, {DIM_STREAMS, DIM_STREAM_WIDTH}},
    [ROLE_ROUTER] = {SCOPE_LAYER, "mlp.gate.weight", BF16, {DIM_EXPERTS, DIM_HIDDEN}},
    [ROLE_SHARED_GATE_PROJ] = {SCOPE_LAYER, "mlp.shared_expert.gate_proj.weight", BF16, {DIM_SHARED, DIM_HIDDEN}},
    [ROLE_SHARED_UP_PROJ] = {SCOPE_LAYER, "mlp.shared_expert.up_proj.weight", BF16, {DIM_SHARED, DIM_HIDDEN}},
    [ROLE_SHARED_DOWN_PROJ] = {SCOPE_LAYER, "mlp.shared_expert.down_proj.weight", BF16, {DIM_HIDDEN, DIM_SHARED}},
    [ROLE_SHARED_EXPERT_GATE] = {SCOPE_LAYER, "mlp.shared_expert_gate.weight", BF16, {DIM_ONE, DIM_HIDDEN}},
    [ROLE_GDN_IN_PROJ_QKV] = {SCOPE_GDN, "linear_attn.in_proj_qkv.weight", BF16, {DIM_GDN_CHANNELS, DIM_HIDDEN}},
    [ROLE_GDN_IN_PROJ_Z] = {SCOPE_GDN, "linear_attn.in_proj_z.weight", BF16, {DIM_GDN_VALUES, DIM_HIDDEN}},
    [ROLE_GDN_IN_PROJ_B] = {SCOPE_GDN, "linear_attn.in_proj_b.weight", BF16, {DIM_GDN_VALUE_HEADS, DIM_HIDDEN}},
    [ROLE_GDN_IN_PROJ_A] = {SCOPE_GDN, "linear_attn.in_proj_a.weight", BF16, {DIM_GDN_VALUE_HEADS, DIM_HIDDEN}},
    [ROLE_GDN_CONV1D] = {SCOPE_GDN, "linear_attn.conv1d.weight", BF16, {DIM_GDN_CHANNELS, DIM_ONE, DIM_GDN_KERNEL}},
    [ROLE_GDN_A_LOG] = {SCOPE_GDN, "linear_attn.A_log", BF16 | F32, {DIM_GDN_VALUE_HEADS}},
    [ROLE_GDN_DT_BIAS] = {SCOPE_GDN, "linear_attn.dt_bias", BF16 | F32, {DIM_GDN_VALUE_HEADS}},
    [ROLE_GDN_NORM] = {SCOPE_GDN, "linear_attn.norm.weight", BF16, {DIM_GDN_VALUE_HEAD}},
    [ROLE_GDN_OUT_PROJ] = {SCOPE_GDN, "linear_attn.out_proj.weight", BF16, {DIM_HIDDEN, DIM_GDN_VALUES}},
    [ROLE_QSA_Q_PROJ] = {SCOPE_QSA, "self_attn.q_proj.weight", BF16, {DIM_QUERY_AND_GATE, DIM_HIDDEN}},
    [ROLE_QSA_K_PROJ] = {SCOPE_QSA, "self_attn.k_proj.weight", BF16, {DIM_KV, DIM_HIDDEN}},
    [ROLE_QSA_V_PROJ] = {SCOPE_QSA, "self_attn.v_proj.weight", BF16, {DIM_KV, DIM_HIDDEN}},
    [ROLE_QSA_O_PROJ] = {SCOPE_QSA, "self_attn.o_proj.weight", BF16, {DIM_HIDDEN, DIM_QUERY}},
    [ROLE_QSA_Q_NORM] = {SCOPE_QSA, "self_attn.q_norm.weight", BF16, {DIM_HEAD}},
    [ROLE_QSA_K_NORM] = {SCOPE_QSA, "self_attn.k_norm.weight", BF16, {DIM_HEAD}},
    [ROLE_QSA_INDEX_QK_PROJ] = {SCOPE_QSA, "self_attn.indexer.index_qk_proj.weight", BF16, {DIM_INDEX_QK, DIM_HIDDEN}},
    [ROLE_QSA_INDEX_Q_NORM] = {SCOPE_QSA, "self_attn.indexer.q_layernorm.weight", BF16, {DIM_INDEX_HEAD}},
    [ROLE_QSA_INDEX_K_NORM] = {SCOPE_QSA, "self_attn.indexer.k_layernorm.weight", BF16, {DIM_INDEX_HEAD}},
    [ROLE_EXPERT_GATE] = {SCOPE_EXPERT, "gate_proj.weight", U8, {DIM_EXPERT, DIM_HIDDEN_CODES}},
    [ROLE_EXPERT_GATE_SCALE] = {SCOPE_EXPERT, "gate_proj.weight_scale", F8, {DIM_EXPERT, DIM_HIDDEN_BLOCKS}},
    [ROLE_EXPERT_GATE_SCALE_2] = {SCOPE_EXPERT, "gate_proj.weight_scale_2", F32, {DIM_END}},
    [ROLE_EXPERT_GATE_INPUT_SCALE] = {SCOPE_EXPERT, "gate_proj.input_scale", F32, {DIM_END}},
    [ROLE_EXPERT_UP] = {SCOPE_EXPERT, "up_proj.weight", U8, {DIM_EXPERT, DIM_HIDDEN_CODES}},
    [ROLE_EXPERT_UP_SCALE] = {SCOPE_EXPERT, "up_proj.weight_scale", F8, {DIM_EXPERT, DIM_HIDDEN_BLOCKS}},
    [ROLE_EXPERT_UP_SCALE_2] = {SCOPE_EXPERT, "up_proj.weight_scale_2", F32, {DIM_END}},
    [ROLE_EXPERT_UP_INPUT_SCALE] = {SCOPE_EXPERT, "up_proj.input_scale", F32, {DIM_END}},
    [ROLE_EXPERT_DOWN] = {SCOPE_EXPERT, "down_proj.weight", U8, {DIM_HIDDEN, DIM_EXPERT_CODES}},
    [ROLE_EXPERT_DOWN_SCALE] = {SCOPE_EXPERT, "down_proj.weight_scale", F8, {DIM_HIDDEN, DIM_EXPERT_BLOCKS}},
    [ROLE_EXPERT_DOWN_SCALE_2] = {SCOPE_EXPERT, "down_proj.weight_scale_2", F32, {DIM_END}},
    [ROLE_EXPERT_DOWN_INPUT_SCALE] = {SCOPE_EXPERT, "down_proj.input_scale", F32, {DIM_END}},
    [ROLE_EXPERTS_GATE_UP] = {SCOPE_LAYER, "mlp.experts.gate_up_proj", BF16, {DIM_EXPERTS, DIM_EXPERT_2, DIM_HIDDEN}},
    [ROLE_EXPERTS_DOWN] = {SCOPE_LAYER, "mlp.experts.down_proj", BF16, {DIM_EXPERTS, DIM_HIDDEN, DIM_EXPERT}},
    [ROLE_PLE_KEY_PROJ] = {SCOPE_PLE, "key_proj.weight", BF16, {DIM_STREAM_WIDTH, DIM_PLE}},
    [ROLE_PLE_VALUE_PROJ] = {SCOPE_PLE, "value_proj.weight", BF16, {DIM_HIDDEN, DIM_PLE}},
    [ROLE_PLE_NORM_KEY] = {SCOPE_PLE, "norm_key.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_PLE_NORM_QUERY] = {SCOPE_PLE, "norm_query.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_PLE_NORM_CONV] = {SCOPE_PLE, "norm_conv.weight", BF16, {DIM_STREAM_WIDTH}},
    [ROLE_PLE_CONV1D] = {SCOPE_PLE, "conv1d.weight", BF16, {DIM_STREAM_WIDTH, DIM_ONE, DIM_PLE_KERNEL}},
#define NGRAM "ple_embedding."
    [ROLE_PLE_MULTIPLIERS] = {SCOPE_PLE, NGRAM "layer_multipliers", I64, {DIM_NGRAM}},
    [ROLE_PLE_HEAD_SIZES] = {SCOPE_PLE, NGRAM "ngram_heads_vocab_sizes", I64, {DIM_NGRAM_HEADS}},
    [ROLE_PLE_HEAD_OFFSETS] = {SCOPE_PLE, NGRAM "ngram_heads_offsets", I64, {DIM_NGRAM_HEADS}},
    [ROLE_PLE_TABLE_SHARD] = {SCOPE_PLE, NGRAM "ngram_embedding.shard_#.weight", F8 | BF16, {DIM_ANY, DIM_PLE_ROW}},
    [ROLE_PLE_TABLE] = {SCOPE_PLE, NGRAM "ngram_embedding.weight", F8 | BF16, {DIM_ANY, DIM_PLE_ROW}},
    [ROLE_PLE_TABLE_SCALE] = {SCOPE_PLE, NGRAM "ngram_embedding.weight_scale", BF16 | F32, {DIM_ONE}},
};

static const char layer_prefix[] = "model.language_model.layers.";

/* Reads a decimal number as role_name writes it: no sign, no leading zeros. */
static bool take_number(const char **text, int64_t *number) {
    const char *start = *text;
    char *end;
    if (*start < '0' || *start > '9' || (start[0] == '0' && start[1] >= '0' && start[1] <= '9')) return false;
    *number = strtoll(start, &end, 10);
    *text = end;
    return end - start <= 9;
}

static bool take_text(const char **text, const char *expected) {
    size_t length = strlen(expected);
    if (strncmp(*text, expected, length) != 0) return false;
    *text += length;
    return true;
}

/* Matches all of `text` with a suffix of the table. */
static bool match_suffix(const char *text, const char *suffix, int64_t *item) {
    const char *hash = strchr(suffix, '#');
    if (!hash) return strcmp(text, suffix) == 0;
    size_t length = (size_t)(hash - suffix);
    if (strncmp(text, suffix, length) != 0) return false;
    text += length;
    return take_number(&text, item) && strcmp(text, hash + 1) == 0;
}

static role_place_t find_role(const char *text, unsigned scopes, role_place_t place) {
    for (int role = 0; role < ROLE_N; role++) {
        if (!(scopes >> role_table[role].scope & 1)) continue;
        if (match_suffix(text, role_table[role].suffix, &place.item)) {
            place.role = (role_t)role;
            return place;
        }
    }
    return (role_place_t){ROLE_UNKNOWN, 0, 0};
}

role_place_t role_parse(const char *name) {
    role_place_t place = {ROLE_UNKNOWN, 0, 0};
    if (strncmp(name, "mtp.", 4) == 0) return (role_place_t){ROLE_MTP, 0, 0};
    if (strncmp(name, "model.visual.", 13) == 0) return (role_place_t){ROLE_VISUAL, 0, 0};
    if (!take_text(&name, layer_prefix)) return find_role(name, 1u << SCOPE_TOP, place);
    if (!take_number(&name, &place.layer) || !take_text(&name, ".")) return place;
    const char *inner = name;
    if (take_text(&inner, "mlp.experts.") && take_number(&inner, &place.item) && take_text(&inner, "."))
        return find_role(inner, 1u << SCOPE_EXPERT, place);
    place.item = 0;
    if (take_text(&name, "ple.")) return find_role(name, 1u << SCOPE_PLE, place);
    return find_role(name, 1u << SCOPE_LAYER | 1u << SCOPE_GDN | 1u << SCOPE_QSA, place);
}

void role_name(role_place_t place, char name[ROLE_NAME_BYTES]) {
    const struct role_entry *entry = &role_table[place.role];
    int used = 0;
    if (entry->scope != SCOPE_TOP) used = snprintf(name, ROLE_NAME_BYTES, "%s%" PRId64 ".", layer_prefix, place.layer);
    char *rest = name + used;
    size_t room = ROLE_NAME_BYTES - (size_t)used;
    const char *hash = strchr(entry->suffix, '#');
    if (entry->scope == SCOPE_EXPERT)
        snprintf(rest, room, "mlp.experts.%" PRId64 ".%s", place.item, entry->suffix);
    else if (hash)
        snprintf(rest, room, "ple.%.*s%" PRId64 "%s", (int)(hash - entry->suffix), entry->suffix, place.item, hash + 1);
    else
        snprintf(rest, room, "%s%s", entry->scope == SCOPE_PLE ? "ple." : "", entry->suffix);
}

const checkpoint_tensor_t *role_find(const checkpoint_t *checkpoint, role_place_t place) {
    char name[ROLE_NAME_BYTES];
    role_name(place, name);
    return checkpoint_find(checkpoint, name);
}

/* Whether a role belongs to another way of storing the experts. */
static bool is_other_storage(role_t role, expert_storage_t storage) {
    if (role == ROLE_EXPERTS_GATE_UP || role == ROLE_EXPERTS_DOWN) return storage != STORED_BF16_FUSED;
    if (role_table[role].scope != SCOPE_EXPERT) return false;
    if (role == ROLE_EXPERT_GATE || role == ROLE_EXPERT_UP || role == ROLE_EXPERT_DOWN)
        return storage == STORED_BF16_FUSED;
    return storage != STORED_NVFP4;
}

bool role_exists(role_place_t place, const model_config_t *config, expert_storage_t storage) {
    if (place.role >= ROLE_N || is_other_storage(place.role, storage)) return false;
    int64_t ple_index;
    switch (role_table[place.role].scope) {
    case SCOPE_TOP:
        return true;
    case SCOPE_LAYER:
        return place.layer < config->num_hidden_layers;
    case SCOPE_GDN:
        return place.layer < config->num_hidden_layers && config->layer_types[place.layer] == LAYER_GDN;
    case SCOPE_QSA:
        return place.layer < config->num_hidden_layers && config->layer_types[place.layer] == LAYER_QSA;
    case SCOPE_EXPERT:
        return place.layer < config->num_hidden_layers && place.item < config->num_experts;
    case SCOPE_PLE:
        return config_ple_index(config, place.layer, &ple_index);
    }
    return false;
}

role_expectation_t role_expect(role_t role, const model_config_t *config, expert_storage_t storage) {
    const struct role_entry *entry = &role_table[role];
    role_expectation_t expectation = {.dtypes = entry->dtypes};
    while (expectation.n_dims < ROLE_MAX_DIMS && entry->shape[expectation.n_dims] != DIM_END) {
        expectation.shape[expectation.n_dims] = dim_size(entry->shape[expectation.n_dims], config);
        expectation.n_dims++;
    }
    /* The same names hold codes, two to a byte, or plain BF16 rows. */
    if (storage == STORED_BF16 && entry->scope == SCOPE_EXPERT) {
        expectation.dtypes = BF16;
        expectation.shape[1] = role == ROLE_EXPERT_DOWN ? config->moe_intermediate_size : config->hidden_size;
    }
    return expectation;
}

int64_t role_n_layers(role_t role, const model_config_t *config) {
    return role_table[role].scope == SCOPE_TOP ? 1 : config->num_hidden_layers;
}

int64_t role_n_items(role_t role, const model_config_t *config) {
    return role_table[role].scope == SCOPE_EXPERT ? config->num_experts : 1;
}
