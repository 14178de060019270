#ifndef GALVANI_ENGINE_SAMPLER_H
#define GALVANI_ENGINE_SAMPLER_H

/* The choice of a token from gathered logits. Plain arithmetic on one rank; nothing is allocated here. Logits are
 * finite. */

#include <stdint.h>

#include "argmax/argmax.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The best of `n_pairs` ranks' pairs: the largest value, the lowest id among equals. A token of -1 (NaN or Inf) in any
 * pair makes the result's token -1. */
token_pair_t sampler_best_pair(const token_pair_t *pairs, int n_pairs);

/* The ids of the k largest of logits[0 .. n), falling, the lower id first among equals. order: [k], k <= n. */
void sampler_rank(const float *logits, int64_t n, int64_t k, int32_t *order);

typedef struct sampler_args {
    const float *logits; /* [n_logits] */
    int64_t n_logits;    /* without padding ids */
    double temperature;  /* > 0 */
    int64_t top_k;       /* 0: all */
    double top_p;        /* (0, 1] */
    uint64_t seed;
    uint64_t position;  /* of the token to be chosen: one draw for each */
    int32_t *order;     /* scratch [n_logits] */
    double *cumulative; /* scratch [n_logits] */
} sampler_args_t;

/* Temperature, then the top_k largest (exactly k: equals in favour of the lower id), then the shortest run of the most
 * probable ones whose probability reaches top_p, at least one, as in transformers' logits warpers; then one draw. The
 * result depends on the arguments alone. */
int32_t sampler_draw(const sampler_args_t *args);

/* Natural logarithms of the softmax over all n_logits, for the `n_tokens` ids in `tokens`. */
void sampler_logprobs(const float *logits, int64_t n_logits, const int32_t *tokens, int n_tokens, float *logprobs);

#ifdef __cplusplus
}
#endif
#endif
