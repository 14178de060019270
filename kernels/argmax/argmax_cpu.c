/* Two passes without a branch on the values: the largest and a mark for NaN and Inf, then the first place that has it.
 */

#include "argmax/argmax.h"

#include <math.h>

#include "common/vector.h"

/* The largest of n values. `*finite` is 0 unless one of them is NaN or infinite (x - x is NaN for just those). */
static float largest(const float *x, int64_t n, float *finite) {
    vector_t max = vector_set(-INFINITY), mark = {0};
    int64_t i = 0;
    for (; i + VECTOR_WIDTH <= n; i += VECTOR_WIDTH) {
        vector_t v = vector_load(x + i);
        max = vector_select(v > max, v, max);
        mark += v - v;
    }
    float best = -INFINITY, sum = 0.0f;
    for (int lane = 0; lane < VECTOR_WIDTH; lane++) {
        best = max[lane] > best ? max[lane] : best;
        sum += mark[lane];
    }
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        sum += x[i] - x[i];
    }
    *finite = sum;
    return best;
}

status_t argmax_cpu(const argmax_args_t *args) {
    int64_t n = args->n_valid - args->first_token;
    if (n > args->n_logits) n = args->n_logits;
    if (n <= 0) {
        *args->pair = (token_pair_t){.value = -INFINITY, .token = INT32_MAX};
        return STATUS_OK;
    }
    float finite;
    float best = largest(args->logits, n, &finite);
    int64_t i = 0;
    if (finite != 0.0f) {
        while (isfinite(args->logits[i]))
            i++;
        *args->pair = (token_pair_t){.value = args->logits[i], .token = -1};
        return STATUS_OK;
    }
    while (args->logits[i] != best)
        i++;
    *args->pair = (token_pair_t){.value = args->logits[i], .token = (int32_t)(args->first_token + i)};
    return STATUS_OK;
}
