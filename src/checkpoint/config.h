#ifndef GALVANI_CHECKPOINT_CONFIG_H
#define GALVANI_CHECKPOINT_CONFIG_H

/* The model's config.json: its sizes under Hugging Face's names, checked once; what differs from the model that this
 * program computes is refused. */

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum layer_type {
    LAYER_GDN, /* config.json: linear_attention */
    LAYER_QSA, /* config.json: full_attention or indexed_attention */
} layer_type_t;

typedef enum gate_type { GATE_SIGMOID, GATE_SILU } gate_type_t;

enum { CONFIG_MAX_LAYERS = 1024, CONFIG_MAX_PLE_LAYERS = 16, CONFIG_MAX_NGRAM_SIZE = 8, CONFIG_MAX_NGRAM_HEADS = 256 };

/* The text tower's config under its Hugging Face keys. Plain data: copied by assignment, nothing to free. */
typedef struct model_config {
    int64_t vocab_size;
    int64_t hidden_size;
    int64_t num_hidden_layers;
    layer_type_t layer_types[CONFIG_MAX_LAYERS];
    int64_t max_position_embeddings;
    double rms_norm_eps;
    int32_t eos_token_id; /* the n-gram hash's EOS; the first of a list */

    /* gated residual */
    int64_t hc_count;
    int64_t hc_lowrank;

    /* GDN */
    int64_t linear_num_key_heads;
    int64_t linear_num_value_heads;
    int64_t linear_key_head_dim;
    int64_t linear_value_head_dim;
    int64_t linear_conv_kernel_dim;
    gate_type_t output_gate_type;

    /* QSA */
    int64_t num_attention_heads;
    int64_t num_key_value_heads;
    int64_t head_dim;
    int64_t rotary_dim; /* head_dim * partial_rotary_factor, even */
    double rope_theta;
    int64_t indexer_n_heads;
    int64_t indexer_head_dim;
    int64_t indexer_budget;
    int64_t indexer_compress_ratio;

    /* MoE */
    int64_t num_experts;
    int64_t num_experts_per_tok;
    int64_t moe_intermediate_size;
    int64_t shared_expert_intermediate_size;
    bool norm_topk_prob;

    /* PLE */
    int64_t n_ple_layers;
    int64_t ple_layers[CONFIG_MAX_PLE_LAYERS]; /* zero-based layer indices, rising (ple_layer_ids is one-based) */
    int64_t ple_embed_dim;
    int64_t ple_conv_kernel_size;
    int64_t ngram_size;
    int64_t heads_per_ngram;
    int64_t ngram_vocab_size_base;
    int64_t make_ngram_vocab_size_divisible_by;
    int64_t split_ngram_parts;
    uint64_t seed;
} model_config_t;

/* Reads the text tower from a parsed config.json (with a text_config, or being one). Every field that galvani computes
 * with is checked for range and for agreement with the others; a feature that it does not compute (biases, sliding
 * window, tied embeddings, another activation, another rope type ...) is refused by name. `where` names the file in
 * messages. Returns `fault` on failure. */
status_t config_parse(const json_t *root, const char *where, status_t fault, model_config_t *config);

/* Reads DIRECTORY/config.json. STATUS_INPUT if it is missing or wrong. */
status_t config_read(const char *directory, model_config_t *config);

/* Whether layer `layer` (zero-based) has a PLE block; `*ple_index` is its position in ple_layers. */
bool config_ple_index(const model_config_t *config, int64_t layer, int64_t *ple_index);

/* Number of n-gram heads, (ngram_size - 1) * heads_per_ngram. */
int64_t config_n_ngram_heads(const model_config_t *config);

#ifdef __cplusplus
}
#endif
#endif
