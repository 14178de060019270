#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>

token_pair_t sampler_best_pair(const token_pair_t *pairs, int n_pairs) {
    token_pair_t best = pairs[0];
    for (int i = 1; i < n_pairs && best.token >= 0; i++) {
        bool better = pairs[i].value > best.value || (pairs[i].value == best.value && pairs[i].token < best.token);
        if (pairs[i].token < 0 || better) best = pairs[i];
    }
    return best;
}

/* Whether token a comes after token b. */
static bool ranks_below(const float *logits, int32_t a, int32_t b) {
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
}

/* Lets the entry at `root` sink in a heap whose top is the lowest-ranking token. */
static void sift_down(const float *logits, int32_t *heap, int64_t n, int64_t root) {
    int32_t token = heap[root];
    for (;;) {
        int64_t child = 2 * root + 1;
        if (child >= n) break;
        if (child + 1 < n && ranks_below(logits, heap[child + 1], heap[child])) child++;
        if (!ranks_below(logits, heap[child], token)) break;
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = token;
}

void sampler_rank(const float *logits, int64_t n, int64_t k, int32_t *order) {
    for (int64_t i = 0; i < k; i++)
        order[i] = (int32_t)i;
    for (int64_t i = k / 2 - 1; i >= 0; i--)
        sift_down(logits, order, k, i);
    for (int64_t i = k; i < n; i++) {
        if (!ranks_below(logits, order[0], (int32_t)i)) continue;
        order[0] = (int32_t)i;
        sift_down(logits, order, k, 0);
    }
    /* The lowest goes to the end, again and again. */
    for (int64_t last = k - 1; last > 0; last--) {
        int32_t lowest = order[0];
        order[0] = order[last];
        order[last] = lowest;
        sift_down(logits, order, last, 0);
    }
}

/* Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014), the output function of SplitMix64. */
static uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

/* Uniform in [0, 1). */
static double uniform(uint64_t seed, uint64_t position) { return (double)(mix(mix(seed) ^ position) >> 11) * 0x1p-53; }

int32_t sampler_draw(const sampler_args_t *args) {
    const float *logits = args->logits;
    int64_t n = args->top_k > 0 && args->top_k < args->n_logits ? args->top_k : args->n_logits;
    sampler_rank(logits, args->n_logits, n, args->order);

    double sum = 0.0, largest = logits[args->order[0]];
    for (int64_t i = 0; i < n; i++) {
        sum += exp((logits[args->order[i]] - largest) / args->temperature);
        args->cumulative[i] = sum;
    }
    int64_t n_kept = 1;
    while (n_kept < n && args->cumulative[n_kept - 1] < args->top_p * sum)
        n_kept++;

    double point = uniform(args->seed, args->position) * args->cumulative[n_kept - 1];
    int64_t chosen = 0;
    while (chosen < n_kept - 1 && args->cumulative[chosen] <= point)
        chosen++;
    return args->order[chosen];
}

void sampler_logprobs(const float *logits, int64_t n_logits, const int32_t *tokens, int n_tokens, float *logprobs) {
    double largest = logits[0], sum = 0.0;
    for (int64_t i = 1; i < n_logits; i++)
        largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < n_logits; i++)
        sum += exp(logits[i] - largest);
    for (int i = 0; i < n_tokens; i++)
        logprobs[i] = (float)(logits[tokens[i]] - largest - log(sum));
}
