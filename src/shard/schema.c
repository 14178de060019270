#include "shard/schema.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/ngram.h"
#include "checkpoint/nvfp4.h"

/* The list under construction. With `tensors` NULL only the count is kept. */
typedef struct builder {
    schema_tensor_t *tensors;
    size_t n_tensors;
    char group[32]; /* "/layers/07/gdn" */
} builder_t;

static void set_group(builder_t *builder, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set_group(builder_t *builder, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(builder->group, sizeof builder->group, format, arguments);
    va_end(arguments);
}

/* Appends GROUP/NAME with shape [d0, d1, d2]; a zero ends the shape. */
static void add3(builder_t *builder, const char *name, dtype_t dtype, int64_t d0, int64_t d1, int64_t d2) {
    if (builder->tensors) {
        schema_tensor_t *tensor = &builder->tensors[builder->n_tensors];
        snprintf(tensor->path, sizeof tensor->path, "%s/%s", builder->group, name);
        tensor->dtype = dtype;
        tensor->n_dims = d1 == 0 ? 1 : d2 == 0 ? 2 : 3;
        tensor->shape[0] = d0;
        tensor->shape[1] = d1;
        tensor->shape[2] = d2;
    }
    builder->n_tensors++;
}

static void add1(builder_t *builder, const char *name, dtype_t dtype, int64_t d0) {
    add3(builder, name, dtype, d0, 0, 0);
}

static void add2(builder_t *builder, const char *name, dtype_t dtype, int64_t d0, int64_t d1) {
    add3(builder, name, dtype, d0, d1, 0);
}

static void add_mixer(builder_t *builder, const model_config_t *config, bool with_inject) {
    int64_t width = config->hc_count * config->hidden_size;
    add1(builder, "hc_norm", DTYPE_BF16, width);
    add2(builder, "input_mix_weight_down", DTYPE_BF16, config->hc_lowrank, width);
    add2(builder, "input_mix_weight_up", DTYPE_BF16, width, config->hc_lowrank);
    if (with_inject) add2(builder, "block_inject_weight", DTYPE_BF16, config->hc_count, width);
}

static void add_gdn(builder_t *builder, const model_config_t *config, int64_t tp_size) {
    int64_t hidden = config->hidden_size;
    int64_t n_value_heads = config->linear_num_value_heads / tp_size;
    int64_t value_rows = n_value_heads * config->linear_value_head_dim;
    int64_t key_rows = config->linear_num_key_heads / tp_size * config->linear_key_head_dim;
    add2(builder, "in_proj_qkv", DTYPE_BF16, 2 * key_rows + value_rows, hidden);
    add2(builder, "in_proj_z", DTYPE_BF16, value_rows, hidden);
    add2(builder, "in_proj_b", DTYPE_BF16, n_value_heads, hidden);
    add2(builder, "in_proj_a", DTYPE_BF16, n_value_heads, hidden);
    add2(builder, "conv1d", DTYPE_BF16, 2 * key_rows + value_rows, config->linear_conv_kernel_dim);
    add1(builder, "A_log", DTYPE_F32, n_value_heads);
    add1(builder, "dt_bias", DTYPE_F32, n_value_heads);
    add1(builder, "norm", DTYPE_BF16, config->linear_value_head_dim);
    add2(builder, "out_proj", DTYPE_BF16, hidden, value_rows);
}

static void add_qsa(builder_t *builder, const model_config_t *config, int64_t tp_size) {
    int64_t hidden = config->hidden_size, head_dim = config->head_dim;
    int64_t n_heads = config->num_attention_heads / tp_size;
    int64_t n_kv_heads = config->num_key_value_heads > tp_size ? config->num_key_value_heads / tp_size : 1;
    add2(builder, "q_proj", DTYPE_BF16, n_heads * 2 * head_dim, hidden);
    add2(builder, "k_proj", DTYPE_BF16, n_kv_heads * head_dim, hidden);
    add2(builder, "v_proj", DTYPE_BF16, n_kv_heads * head_dim, hidden);
    add2(builder, "o_proj", DTYPE_BF16, hidden, n_heads * head_dim);
    add1(builder, "q_norm", DTYPE_BF16, head_dim);
    add1(builder, "k_norm", DTYPE_BF16, head_dim);
    add2(builder, "index_qk_proj", DTYPE_BF16, (config->indexer_n_heads + 1) * config->indexer_head_dim, hidden);
    add1(builder, "index_q_norm", DTYPE_BF16, config->indexer_head_dim);
    add1(builder, "index_k_norm", DTYPE_BF16, config->indexer_head_dim);
}

static void add_moe(builder_t *builder, const model_config_t *config, const schema_options_t *options) {
    int64_t hidden = config->hidden_size, n_experts = config->num_experts;
    int64_t shared_width = config->shared_expert_intermediate_size / options->tp_size;
    int64_t width = config->moe_intermediate_size / options->tp_size;
    add2(builder, "router", DTYPE_BF16, n_experts, hidden);
    add2(builder, "shared_gate_proj", DTYPE_BF16, shared_width, hidden);
    add2(builder, "shared_up_proj", DTYPE_BF16, shared_width, hidden);
    add2(builder, "shared_down_proj", DTYPE_BF16, hidden, shared_width);
    add2(builder, "shared_expert_gate", DTYPE_BF16, 1, hidden);
    if (options->expert_format == EXPERTS_NVFP4) {
        add3(builder, "gate_up_codes", DTYPE_U8, n_experts, 2 * width, hidden / 2);
        add3(builder, "gate_up_scales", DTYPE_F8_E4M3, n_experts, 2 * width, hidden / NVFP4_BLOCK);
        add2(builder, "gate_up_scale_2", DTYPE_F32, n_experts, 2);
        add3(builder, "down_codes", DTYPE_U8, n_experts, hidden, width / 2);
        add3(builder, "down_scales", DTYPE_F8_E4M3, n_experts, hidden, width / NVFP4_BLOCK);
        add1(builder, "down_scale_2", DTYPE_F32, n_experts);
    } else {
        add3(builder, "gate_up", DTYPE_F16, n_experts, 2 * width, hidden);
        add3(builder, "down", DTYPE_F16, n_experts, hidden, width);
    }
}

static void add_ple(builder_t *builder, const model_config_t *config, const schema_options_t *options, int64_t n_rows) {
    int64_t width = config->hc_count * config->hidden_size;
    add2(builder, "table", options->ple_dtype, n_rows / options->tp_size,
         config->ple_embed_dim / config_n_ngram_heads(config));
    add1(builder, "table_scale", DTYPE_F32, 1);
    add2(builder, "key_proj", DTYPE_BF16, width, config->ple_embed_dim);
    add2(builder, "value_proj", DTYPE_BF16, config->hidden_size, config->ple_embed_dim);
    add1(builder, "norm_key", DTYPE_BF16, width);
    add1(builder, "norm_query", DTYPE_BF16, width);
    add1(builder, "norm_conv", DTYPE_BF16, width);
    add2(builder, "conv1d", DTYPE_BF16, width, config->ple_conv_kernel_size);
}

static void add_all(builder_t *builder, const model_config_t *config, const schema_options_t *options,
                    const int64_t *ple_rows) {
    set_group(builder, "%s", "");
    add2(builder, "embed", DTYPE_BF16, config->vocab_size, config->hidden_size);
    add2(builder, "lm_head", DTYPE_BF16, config->vocab_size / options->tp_size, config->hidden_size);
    set_group(builder, "/final_hc");
    add_mixer(builder, config, false);
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        set_group(builder, "/layers/%02" PRId64 "/attn_hc", layer);
        add_mixer(builder, config, true);
        set_group(builder, "/layers/%02" PRId64 "/mlp_hc", layer);
        add_mixer(builder, config, true);
        if (config->layer_types[layer] == LAYER_GDN) {
            set_group(builder, "/layers/%02" PRId64 "/gdn", layer);
            add_gdn(builder, config, options->tp_size);
        } else {
            set_group(builder, "/layers/%02" PRId64 "/qsa", layer);
            add_qsa(builder, config, options->tp_size);
        }
        set_group(builder, "/layers/%02" PRId64 "/moe", layer);
        add_moe(builder, config, options);
    }
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        set_group(builder, "/ple/%02" PRId64, config->ple_layers[i]);
        add_ple(builder, config, options, ple_rows[i]);
    }
}

status_t schema_check_tp(const model_config_t *config, int tp_size, status_t fault) {
    if (tp_size < 1) return status_fail(fault, "the number of ranks must be at least 1, not %d", tp_size);
    const struct {
        const char *key;
        int64_t value;
    } sliced[] = {
        {"vocab_size", config->vocab_size},
        {"linear_num_key_heads", config->linear_num_key_heads},
        {"num_attention_heads", config->num_attention_heads},
        {"moe_intermediate_size", config->moe_intermediate_size},
        {"shared_expert_intermediate_size", config->shared_expert_intermediate_size},
    };
    for (size_t i = 0; i < sizeof sliced / sizeof *sliced; i++) {
        if (sliced[i].value % tp_size != 0)
            return status_fail(fault, "%d ranks do not divide \"%s\" (%" PRId64 ")", tp_size, sliced[i].key,
                               sliced[i].value);
    }
    int64_t n_kv_heads = config->num_key_value_heads;
    if (n_kv_heads % tp_size != 0 && tp_size % n_kv_heads != 0)
        return status_fail(fault, "%d ranks neither divide nor are a multiple of \"num_key_value_heads\" (%" PRId64 ")",
                           tp_size, n_kv_heads);
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        ngram_constants_t constants;
        ngram_derive(config, i, &constants);
        if (constants.n_rows % tp_size != 0)
            return status_fail(fault, "%d ranks do not divide the %" PRId64 " rows of the PLE table", tp_size,
                               constants.n_rows);
    }
    return STATUS_OK;
}

status_t schema_check(const model_config_t *config, const schema_options_t *options, status_t fault) {
    TRY(schema_check_tp(config, options->tp_size, fault));
    if (options->tp_rank < 0 || options->tp_rank >= options->tp_size)
        return status_fail(fault, "rank %d does not lie in 0..%d", options->tp_rank, options->tp_size - 1);
    if (options->ple_dtype != DTYPE_F8_E4M3 && options->ple_dtype != DTYPE_BF16)
        return status_fail(fault, "a PLE table of type %s is not supported", dtype_name(options->ple_dtype));
    if (options->expert_format != EXPERTS_NVFP4) return STATUS_OK;
    if (config->hidden_size % NVFP4_BLOCK != 0)
        return status_fail(fault, "NVFP4 experts need a \"hidden_size\" that is a multiple of %d, not %" PRId64,
                           NVFP4_BLOCK, config->hidden_size);
    if (config->moe_intermediate_size / options->tp_size % NVFP4_BLOCK != 0)
        return status_fail(fault,
                           "%d ranks would split the NVFP4 blocks of %d along \"moe_intermediate_size\" (%" PRId64 ")",
                           options->tp_size, NVFP4_BLOCK, config->moe_intermediate_size);
    return STATUS_OK;
}

status_t schema_build(const model_config_t *config, const schema_options_t *options, schema_tensor_t **tensors,
                      size_t *n_tensors) {
    TRY(schema_check(config, options, STATUS_USAGE));
    int64_t ple_rows[CONFIG_MAX_PLE_LAYERS];
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        ngram_constants_t constants;
        ngram_derive(config, i, &constants);
        ple_rows[i] = constants.n_rows;
    }
    builder_t builder = {0};
    add_all(&builder, config, options, ple_rows);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, builder.n_tensors, sizeof(schema_tensor_t), &memory));
    builder = (builder_t){.tensors = memory};
    add_all(&builder, config, options, ple_rows);
    *tensors = builder.tensors;
    *n_tensors = builder.n_tensors;
    return STATUS_OK;
}

status_t schema_tensor_bytes(const schema_tensor_t *tensor, size_t *bytes) {
    size_t product = dtype_bytes(tensor->dtype);
    for (int i = 0; i < tensor->n_dims; i++)
        TRY(memory_product(product, (size_t)tensor->shape[i], &product));
    *bytes = product;
    return STATUS_OK;
}
