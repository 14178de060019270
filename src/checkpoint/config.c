#include "checkpoint/config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Where a whole-number field goes and what it may be. The upper bounds are far above any model of this family; they
 * keep products of two or three fields inside 64 bits. */
typedef struct int_field {
    const char *key;
    size_t offset;
    int64_t minimum, maximum;
} int_field_t;

#define FIELD(key, minimum, maximum)                                                                                   \
    { #key, offsetof(model_config_t, key), minimum, maximum }

static const int_field_t common_fields[] = {
    FIELD(vocab_size, 1, INT32_MAX),
    FIELD(hidden_size, 1, 1 << 20),
    FIELD(num_hidden_layers, 1, CONFIG_MAX_LAYERS),
    FIELD(max_position_embeddings, 1, INT32_MAX),
    FIELD(hc_count, 2, 64),
    FIELD(hc_lowrank, 1, 1 << 20),
    FIELD(linear_num_key_heads, 1, 4096),
    FIELD(linear_num_value_heads, 1, 4096),
    FIELD(linear_key_head_dim, 1, 4096),
    FIELD(linear_value_head_dim, 1, 4096),
    FIELD(linear_conv_kernel_dim, 2, 64),
    FIELD(num_attention_heads, 1, 4096),
    FIELD(num_key_value_heads, 1, 4096),
    FIELD(head_dim, 2, 4096),
    FIELD(num_experts, 1, 65536),
    FIELD(num_experts_per_tok, 1, 65536),
    FIELD(moe_intermediate_size, 1, 1 << 20),
    FIELD(shared_expert_intermediate_size, 1, 1 << 20),
};

static const int_field_t qsa_fields[] = {
    FIELD(indexer_n_heads, 1, 4096),
    FIELD(indexer_head_dim, 2, 4096),
    FIELD(indexer_budget, 1, INT32_MAX),
    FIELD(indexer_compress_ratio, 1, 4096),
};

static const int_field_t ple_fields[] = {
    FIELD(ple_conv_kernel_size, 2, 64),
    FIELD(ngram_size, 2, CONFIG_MAX_NGRAM_SIZE),
    FIELD(heads_per_ngram, 1, CONFIG_MAX_NGRAM_HEADS),
    FIELD(ngram_vocab_size_base, 1, INT32_MAX),
    FIELD(make_ngram_vocab_size_divisible_by, 1, 1 << 20),
    FIELD(split_ngram_parts, 1, 65536),
};

static status_t read_fields(const json_reader_t *reader, const int_field_t *fields, size_t n_fields,
                            model_config_t *config) {
    for (size_t i = 0; i < n_fields; i++) {
        int64_t *value = (int64_t *)(void *)((char *)config + fields[i].offset);
        TRY(json_get_int(reader, fields[i].key, fields[i].minimum, fields[i].maximum, value));
    }
    return STATUS_OK;
}

#define READ_FIELDS(reader, fields, config) read_fields(reader, fields, sizeof(fields) / sizeof((fields)[0]), config)

static status_t check_divides(const json_reader_t *reader, const char *key, int64_t value, const char *divisor_key,
                              int64_t divisor) {
    if (value % divisor != 0)
        return status_fail(reader->fault, "%s: \"%s\" (%" PRId64 ") is not a multiple of \"%s\" (%" PRId64 ")",
                           reader->where, key, value, divisor_key, divisor);
    return STATUS_OK;
}

/* Features that would change the arithmetic and that galvani does not compute: refused unless absent, null or off. */
static status_t check_unsupported(const json_reader_t *reader) {
    static const char *const switches[] = {
        "attention_bias",
        "tie_word_embeddings",
        "use_sliding_window",
        "mlp_bias",
    };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        if (!json_has(reader, switches[i])) continue;
        bool on;
        TRY(json_get_bool(reader, switches[i], &on));
        if (on) return status_fail(reader->fault, "%s: \"%s\" is not supported", reader->where, switches[i]);
    }
    static const char *const values[] = {
        "sliding_window", "rope_scaling", "attn_logit_softcapping", "final_logit_softcapping", "routed_scaling_factor",
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (json_has(reader, values[i]))
            return status_fail(reader->fault, "%s: \"%s\" is not supported", reader->where, values[i]);
    }
    static const struct { const char *key, *only; } words[] = {{"hidden_act", "silu"}, {"mamba_ssm_dtype", "float32"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!json_has(reader, words[i].key)) continue;
        const char *word;
        TRY(json_get_string(reader, words[i].key, &word));
        if (strcmp(word, words[i].only) != 0)
            return status_fail(reader->fault, "%s: \"%s\" is \"%s\"; only \"%s\" is supported", reader->where,
                               words[i].key, word, words[i].only);
    }
    if (json_has(reader, "attn_output_gate")) {
        bool gated;
        TRY(json_get_bool(reader, "attn_output_gate", &gated));
        if (!gated)
            return status_fail(reader->fault, "%s: attention without an output gate is not supported", reader->where);
    }
    const json_t *dense_layers = json_object_get(reader->object, "mlp_only_layers");
    if (json_array_size(dense_layers))
        return status_fail(reader->fault, "%s: \"mlp_only_layers\" is not supported", reader->where);
    return STATUS_OK;
}

static status_t read_layer_types(const json_reader_t *reader, model_config_t *config, int64_t *n_qsa) {
    int64_t interval = 4; /* the reference's default */
    const json_t *list = NULL;
    if (json_has(reader, "layer_types")) {
        TRY(json_get_array(reader, "layer_types", &list));
        if (json_array_size(list) != (size_t)config->num_hidden_layers)
            return status_fail(reader->fault, "%s: \"layer_types\" has %zu entries for %" PRId64 " layers",
                               reader->where, json_array_size(list), config->num_hidden_layers);
    } else if (json_has(reader, "full_attention_interval")) {
        TRY(json_get_int(reader, "full_attention_interval", 1, CONFIG_MAX_LAYERS, &interval));
    }
    *n_qsa = 0;
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        layer_type_t type = (i + 1) % interval == 0 ? LAYER_QSA : LAYER_GDN;
        if (list) {
            const char *name = json_string_value(json_array_get(list, (size_t)i));
            if (!name) name = "";
            if (strcmp(name, "linear_attention") == 0)
                type = LAYER_GDN;
            else if (strcmp(name, "full_attention") == 0 || strcmp(name, "indexed_attention") == 0)
                type = LAYER_QSA;
            else
                return status_fail(reader->fault, "%s: \"layer_types\" has an unknown entry \"%s\" for layer %" PRId64,
                                   reader->where, name, i);
        }
        config->layer_types[i] = type;
        if (type == LAYER_QSA) (*n_qsa)++;
    }
    return STATUS_OK;
}

/* "output_gate_type", or else "hidden_act", which is silu (check_unsupported). */
static status_t read_gate_type(const json_reader_t *reader, model_config_t *config) {
    config->output_gate_type = GATE_SILU;
    if (!json_has(reader, "output_gate_type")) return STATUS_OK;
    const char *name;
    TRY(json_get_string(reader, "output_gate_type", &name));
    if (strcmp(name, "sigmoid") == 0)
        config->output_gate_type = GATE_SIGMOID;
    else if (strcmp(name, "silu") != 0)
        return status_fail(reader->fault, "%s: \"output_gate_type\" is \"%s\"; \"sigmoid\" and \"silu\" are known",
                           reader->where, name);
    return STATUS_OK;
}

/* partial_rotary_factor stands inside rope_parameters, beside it, or in both places. */
static status_t read_rope(const json_reader_t *reader, model_config_t *config) {
    const json_t *object;
    TRY(json_get_object(reader, "rope_parameters", &object));
    char where[512];
    snprintf(where, sizeof where, "%s: rope_parameters", reader->where);
    const json_reader_t rope = {object, where, reader->fault};
    if (json_has(&rope, "rope_type")) {
        const char *type;
        TRY(json_get_string(&rope, "rope_type", &type));
        if (strcmp(type, "default") != 0)
            return status_fail(reader->fault, "%s: rope type \"%s\" is not supported", reader->where, type);
    }
    TRY(json_get_number(&rope, "rope_theta", &config->rope_theta));
    if (!(config->rope_theta > 1.0 && config->rope_theta < 1e18))
        return status_fail(reader->fault, "%s: \"rope_theta\" is %g", reader->where, config->rope_theta);

    double factor = 1.0, outer;
    bool inside = json_has(&rope, "partial_rotary_factor");
    if (inside) TRY(json_get_number(&rope, "partial_rotary_factor", &factor));
    if (json_has(reader, "partial_rotary_factor")) {
        TRY(json_get_number(reader, "partial_rotary_factor", &outer));
        if (inside && outer != factor)
            return status_fail(reader->fault, "%s: \"partial_rotary_factor\" is %g, but %g inside rope_parameters",
                               reader->where, outer, factor);
        factor = outer;
    }
    if (!(factor > 0.0 && factor <= 1.0))
        return status_fail(reader->fault, "%s: \"partial_rotary_factor\" is %g", reader->where, factor);
    config->rotary_dim = (int64_t)((double)config->head_dim * factor);
    if (config->rotary_dim == 0 || config->rotary_dim % 2 != 0)
        return status_fail(reader->fault, "%s: %g of \"head_dim\" (%" PRId64 ") is not an even number of dimensions",
                           reader->where, factor, config->head_dim);
    return STATUS_OK;
}

static status_t read_qsa(const json_reader_t *reader, model_config_t *config) {
    int64_t indexer_kv_heads;
    TRY(READ_FIELDS(reader, qsa_fields, config));
    TRY(json_get_int(reader, "indexer_kv_heads", 1, 1, &indexer_kv_heads));
    TRY(check_divides(reader, "indexer_budget", config->indexer_budget, "indexer_compress_ratio",
                      config->indexer_compress_ratio));
    if (config->rotary_dim > config->indexer_head_dim)
        return status_fail(reader->fault,
                           "%s: %" PRId64 " rotary dimensions do not fit \"indexer_head_dim\" (%" PRId64 ")",
                           reader->where, config->rotary_dim, config->indexer_head_dim);
    return STATUS_OK;
}

static int compare_int64(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The reference sorts the ids and drops repetitions. */
static status_t read_ple_layers(const json_reader_t *reader, model_config_t *config) {
    config->n_ple_layers = 0;
    if (!json_has(reader, "ple_layer_ids")) return STATUS_OK;
    const json_t *list;
    TRY(json_get_array(reader, "ple_layer_ids", &list));
    size_t n = json_array_size(list);
    if (n > CONFIG_MAX_PLE_LAYERS)
        return status_fail(reader->fault, "%s: %zu PLE layers; at most %d are supported", reader->where, n,
                           CONFIG_MAX_PLE_LAYERS);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        int64_t layer = json_is_integer(id) ? (int64_t)json_integer_value(id) : 0;
        if (layer < 1 || layer > config->num_hidden_layers)
            return status_fail(reader->fault, "%s: \"ple_layer_ids\" must hold layer numbers from 1 to %" PRId64,
                               reader->where, config->num_hidden_layers);
        if (config->layer_types[layer - 1] != LAYER_GDN)
            return status_fail(reader->fault,
                               "%s: PLE on layer %" PRId64 ", which is not a linear_attention layer, is not supported",
                               reader->where, layer - 1);
        config->ple_layers[i] = layer - 1;
    }
    qsort(config->ple_layers, n, sizeof *config->ple_layers, compare_int64);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || config->ple_layers[i] != config->ple_layers[i - 1])
            config->ple_layers[config->n_ple_layers++] = config->ple_layers[i];
    }
    return STATUS_OK;
}

static status_t read_ple(const json_reader_t *reader, model_config_t *config) {
    TRY(READ_FIELDS(reader, ple_fields, config));
    config->ple_embed_dim = config->hidden_size;
    if (json_has(reader, "ple_embed_dim"))
        TRY(json_get_int(reader, "ple_embed_dim", 1, 1 << 20, &config->ple_embed_dim));
    int64_t n_heads = config_n_ngram_heads(config);
    if (n_heads > CONFIG_MAX_NGRAM_HEADS)
        return status_fail(reader->fault, "%s: %" PRId64 " n-gram heads; at most %d are supported", reader->where,
                           n_heads, CONFIG_MAX_NGRAM_HEADS);
    return check_divides(reader, "ple_embed_dim", config->ple_embed_dim, "heads_per_ngram * (ngram_size - 1)", n_heads);
}

/* A number, or a list whose first entry the n-gram hash takes. -1 without one, which PLE does not allow. */
static status_t read_eos(const json_reader_t *reader, model_config_t *config) {
    config->eos_token_id = -1;
    const json_t *eos = json_object_get(reader->object, "eos_token_id");
    if (json_is_array(eos)) eos = json_array_get(eos, 0);
    if (!eos || json_is_null(eos)) {
        if (config->n_ple_layers)
            return status_fail(reader->fault, "%s: \"eos_token_id\" is missing, which PLE needs", reader->where);
        return STATUS_OK;
    }
    if (!json_is_integer(eos) || json_integer_value(eos) < 0 || json_integer_value(eos) >= config->vocab_size)
        return status_fail(reader->fault, "%s: \"eos_token_id\" must be a token id below \"vocab_size\"",
                           reader->where);
    config->eos_token_id = (int32_t)json_integer_value(eos);
    return STATUS_OK;
}

static status_t parse_text_config(const json_reader_t *reader, model_config_t *config) {
    TRY(check_unsupported(reader));
    TRY(READ_FIELDS(reader, common_fields, config));
    int64_t n_qsa;
    TRY(read_layer_types(reader, config, &n_qsa));
    TRY(read_gate_type(reader, config));
    TRY(read_rope(reader, config));
    TRY(json_get_number(reader, "rms_norm_eps", &config->rms_norm_eps));
    if (!(config->rms_norm_eps > 0.0 && config->rms_norm_eps < 1.0))
        return status_fail(reader->fault, "%s: \"rms_norm_eps\" is %g", reader->where, config->rms_norm_eps);

    TRY(check_divides(reader, "linear_num_value_heads", config->linear_num_value_heads, "linear_num_key_heads",
                      config->linear_num_key_heads));
    TRY(check_divides(reader, "num_attention_heads", config->num_attention_heads, "num_key_value_heads",
                      config->num_key_value_heads));
    if (config->num_experts_per_tok > config->num_experts)
        return status_fail(reader->fault,
                           "%s: \"num_experts_per_tok\" (%" PRId64 ") exceeds \"num_experts\" (%" PRId64 ")",
                           reader->where, config->num_experts_per_tok, config->num_experts);
    if (n_qsa) TRY(read_qsa(reader, config));

    config->norm_topk_prob = true;
    if (json_has(reader, "norm_topk_prob")) TRY(json_get_bool(reader, "norm_topk_prob", &config->norm_topk_prob));
    int64_t seed = 1234;
    if (json_has(reader, "seed")) TRY(json_get_int(reader, "seed", 0, INT64_MAX, &seed));
    config->seed = (uint64_t)seed;

    TRY(read_ple_layers(reader, config));
    if (config->n_ple_layers) TRY(read_ple(reader, config));
    return read_eos(reader, config);
}

static status_t check_model_type(const json_reader_t *reader, const char *expected) {
    const char *type;
    TRY(json_get_string(reader, "model_type", &type));
    if (strcmp(type, expected) != 0)
        return status_fail(reader->fault, "%s: model type \"%s\" is not supported; galvani runs \"%s\"", reader->where,
                           type, expected);
    return STATUS_OK;
}

status_t config_parse(const json_t *root, const char *where, status_t fault, model_config_t *config) {
    if (!json_is_object(root)) return status_fail(fault, "%s is not a JSON object", where);
    model_config_t parsed = {0};
    json_reader_t reader = {root, where, fault};
    char text_where[512];
    if (json_has(&reader, "text_config")) {
        TRY(check_model_type(&reader, "qwen4_exp"));
        if (json_is_true(json_object_get(root, "tie_word_embeddings")))
            return status_fail(fault, "%s: \"tie_word_embeddings\" is not supported", where);
        snprintf(text_where, sizeof text_where, "%s: text_config", where);
        TRY(json_get_object(&reader, "text_config", &reader.object));
        reader.where = text_where;
    }
    TRY(check_model_type(&reader, "qwen4_exp_text"));
    TRY(parse_text_config(&reader, &parsed));
    *config = parsed;
    return STATUS_OK;
}

status_t config_read(const char *directory, model_config_t *config) {
    char path[4096];
    TRY(file_join(directory, "config.json", path, sizeof path));
    json_t *root;
    TRY(json_read_file(path, &root));
    status_t status = config_parse(root, path, STATUS_INPUT, config);
    json_decref(root);
    return status;
}

bool config_ple_index(const model_config_t *config, int64_t layer, int64_t *ple_index) {
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        if (config->ple_layers[i] == layer) {
            *ple_index = i;
            return true;
        }
    }
    return false;
}

int64_t config_n_ngram_heads(const model_config_t *config) {
    return (config->ngram_size - 1) * config->heads_per_ngram;
}
