#ifndef GALVANI_MODEL_SHAPE_H
#define GALVANI_MODEL_SHAPE_H

#include <stdint.h>

#include "checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Widths that follow from the config and tensor parallelism: this rank's share of what is sliced. */
typedef struct local_shape {
    int tp_rank, tp_size;
    int64_t stream_width; /* hc_count * hidden_size; not sliced */
    int64_t vocab;        /* vocab_size / T rows of lm_head; the first is token tp_rank * vocab */

    /* GDN */
    int64_t n_key_heads, n_value_heads;
    int64_t value_width;   /* n_value_heads * linear_value_head_dim */
    int64_t conv_channels; /* q | k | v */
    int64_t gdn_projected; /* q | k | v | z | b | a */

    /* QSA */
    int64_t n_heads, n_kv_heads;
    int64_t attention_width; /* n_heads * head_dim */
    int64_t qsa_projected;   /* query and gate per head | k | v | index queries | index key */

    /* MoE */
    int64_t moe_intermediate, shared_intermediate;
} local_shape_t;

/* `config` and `tp_size` have passed schema_check. */
local_shape_t local_shape(const model_config_t *config, int tp_rank, int tp_size);

#ifdef __cplusplus
}
#endif
#endif
