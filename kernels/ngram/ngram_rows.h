#ifndef GALVANI_KERNELS_NGRAM_ROWS_H
#define GALVANI_KERNELS_NGRAM_ROWS_H

#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row ids of hashed n-grams (transformers qwen4_exp, Qwen4ExpTextNGramEmbedding): with t[-i] the token i places back,
 * EOS from the last EOS or the sequence's start on, mixed(n) = xor over i < n of t[-i] * multipliers[i];  row =
 * mixed(n) mod head_sizes[head] + head_offsets[head] for the heads_per_ngram heads of each n = 2 ... ngram_size.
 * Products wrap in 64 bits; the remainder is never negative. */
typedef struct ngram_rows_args {
    int64_t n_tokens, n_heads, ngram_size, heads_per_ngram;
    int32_t eos_token_id;
    const int64_t *multipliers;  /* [ngram_size]; [0] multiplies the current token */
    const int64_t *head_sizes;   /* [n_heads] */
    const int64_t *head_offsets; /* [n_heads] */
    const int32_t *context;      /* [ngram_size - 1], the tokens before, oldest first; EOS before the first */
    const int32_t *tokens;       /* [n_tokens] */
    int64_t *rows;               /* [n_tokens, n_heads] */
} ngram_rows_args_t;

status_t ngram_rows_cpu(const ngram_rows_args_t *args);
status_t launch_ngram_rows(const ngram_rows_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
