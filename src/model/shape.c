#include "model/shape.h"

local_shape_t local_shape(const model_config_t *config, int tp_rank, int tp_size) {
    local_shape_t local = {.tp_rank = tp_rank, .tp_size = tp_size};
    local.stream_width = config->hc_count * config->hidden_size;
    local.vocab = config->vocab_size / tp_size;

    local.n_key_heads = config->linear_num_key_heads / tp_size;
    local.n_value_heads = config->linear_num_value_heads / tp_size;
    local.value_width = local.n_value_heads * config->linear_value_head_dim;
    local.conv_channels = 2 * local.n_key_heads * config->linear_key_head_dim + local.value_width;
    local.gdn_projected = local.conv_channels + local.value_width + 2 * local.n_value_heads;

    local.n_heads = config->num_attention_heads / tp_size;
    local.n_kv_heads = config->num_key_value_heads > tp_size ? config->num_key_value_heads / tp_size : 1;
    local.attention_width = local.n_heads * config->head_dim;
    local.qsa_projected = 2 * local.attention_width + 2 * local.n_kv_heads * config->head_dim +
                          (config->indexer_n_heads + 1) * config->indexer_head_dim;

    local.moe_intermediate = config->moe_intermediate_size / tp_size;
    local.shared_intermediate = config->shared_expert_intermediate_size / tp_size;
    return local;
}
