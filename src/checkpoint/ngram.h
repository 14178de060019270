#ifndef GALVANI_CHECKPOINT_NGRAM_H
#define GALVANI_CHECKPOINT_NGRAM_H

#include <stdint.h>

#include "checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Constants of one PLE layer's n-gram hash, derived from the config alone. Plain data. */
typedef struct ngram_constants {
    int64_t n_heads;
    int64_t ngram_size;
    int64_t heads_per_ngram;
    int32_t eos_token_id;
    int64_t multipliers[CONFIG_MAX_NGRAM_SIZE];   /* [ngram_size]; [0] multiplies the current token */
    int64_t head_sizes[CONFIG_MAX_NGRAM_HEADS];   /* [n_heads] primes */
    int64_t head_offsets[CONFIG_MAX_NGRAM_HEADS]; /* [n_heads] running sums of head_sizes */
    int64_t n_rows;                               /* padded to make_ngram_vocab_size_divisible_by */
} ngram_constants_t;

/* `ple_index` is the layer's position in ple_layers. Formula: transformers qwen4_exp, _build_layer_multipliers and
 * Qwen4ExpTextNGramEmbedding. */
void ngram_derive(const model_config_t *config, int64_t ple_index, ngram_constants_t *constants);

#ifdef __cplusplus
}
#endif
#endif
