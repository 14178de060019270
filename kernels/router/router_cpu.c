/* The largest logits are the most probable experts, so nothing but theirs needs an exponential when the weights are
 * renormalised. Orders of summation: over the chosen as in common/dot.h; over all experts, if asked for, by rising id.
 */

#include "router/router.h"

#include <math.h>

#include "common/activation.h"
#include "common/parallel.h"

/* The top_k largest logits by insertion: an expert goes behind its equals, which have lower ids. */
static void choose(const float *logits, int64_t n_experts, int64_t top_k, int32_t *experts) {
    int64_t n = 0;
    for (int64_t i = 0; i < n_experts; i++) {
        if (n == top_k && !(logits[i] > logits[experts[n - 1]])) continue;
        if (n < top_k) n++;
        int64_t place = n - 1;
        for (; place > 0 && logits[i] > logits[experts[place - 1]]; place--)
            experts[place] = experts[place - 1];
        experts[place] = (int32_t)i;
    }
}

static bool has_distribution(const float *logits, int64_t n_experts) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n_experts; i++) {
        if (!(logits[i] < INFINITY)) return false;
        if (logits[i] > max) max = logits[i];
    }
    return max > -INFINITY;
}

static void route(const router_args_t *args, int64_t token) {
    int64_t top_k = args->top_k;
    const float *logits = args->logits + token * args->logits_stride;
    int32_t *experts = args->experts + token * top_k;
    float *weights = args->weights + token * top_k;
    sigmoid(logits + args->n_experts, 1, args->shared_gate + token);

    if (!has_distribution(logits, args->n_experts)) {
        for (int64_t k = 0; k < top_k; k++) {
            experts[k] = (int32_t)k;
            weights[k] = NAN;
        }
        return;
    }
    choose(logits, args->n_experts, top_k, experts);
    for (int64_t k = 0; k < top_k; k++)
        weights[k] = logits[experts[k]];
    float max = weights[0];
    float sum = softmax_exp(weights, top_k, weights);
    if (!args->norm_topk_prob) {
        sum = 0.0f;
        for (int64_t i = 0; i < args->n_experts; i++)
            sum += expf(logits[i] - max);
    }
    for (int64_t k = 0; k < top_k; k++)
        weights[k] /= sum;
}

status_t router_cpu(const router_args_t *args) {
#pragma omp parallel for if (args->n_tokens * args->n_experts >= PARALLEL_MIN_WORK)
    for (int64_t token = 0; token < args->n_tokens; token++)
        route(args, token);
    return STATUS_OK;
}
