#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>

#include "common/parallel.h"

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

static void make_heap(const float *logits, int32_t *heap, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift_down(logits, heap, n, i);
}

/* Turns a heap into falling order: the lowest goes to the end, again and again. */
static void sort_heap(const float *logits, int32_t *heap, int64_t n) {
    for (int64_t last = n - 1; last > 0; last--) {
        int32_t lowest = heap[0];
        heap[0] = heap[last];
        heap[last] = lowest;
        sift_down(logits, heap, last, 0);
    }
}

void sampler_rank(const float *logits, int64_t n, int64_t k, int32_t *order) {
    for (int64_t i = 0; i < k; i++)
        order[i] = (int32_t)i;
    make_heap(logits, order, k);
    for (int64_t i = k; i < n; i++) {
        if (!ranks_below(logits, order[0], (int32_t)i)) continue;
        order[0] = (int32_t)i;
        sift_down(logits, order, k, 0);
    }
    sort_heap(logits, order, k);
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

/* From the first k tokens in order. */
static int32_t draw_from_first(const sampler_args_t *args, int64_t k, double draw) {
    const int32_t *order = args->order;
    sampler_rank(args->logits, args->n_logits, k, args->order);
    double sum = 0.0, largest = args->logits[order[0]];
    for (int64_t i = 0; i < k; i++) {
        sum += exp((args->logits[order[i]] - largest) / args->temperature);
        args->cumulative[i] = sum;
    }
    int64_t n_kept = 1, chosen = 0;
    while (n_kept < k && args->cumulative[n_kept - 1] < args->top_p * sum)
        n_kept++;
    double point = draw * args->cumulative[n_kept - 1];
    while (chosen < n_kept - 1 && args->cumulative[chosen] <= point)
        chosen++;
    return order[chosen];
}

/* All tokens by how far they lie below the largest, so that few of them need to be put in order. */
enum { N_BINS = 4096, BINS_A_NAT = 64 };

typedef struct bins {
    const sampler_args_t *args;
    double largest;
    double *weights;     /* [n_logits], the largest is 1 */
    double sums[N_BINS]; /* of the weights */
} bins_t;

static int bin_of(const bins_t *bins, int64_t token) {
    double below = (bins->largest - bins->args->logits[token]) / bins->args->temperature * BINS_A_NAT;
    return below < N_BINS - 1 ? (int)below : N_BINS - 1;
}

static void fill_bins(const sampler_args_t *args, bins_t *bins) {
    int64_t n = args->n_logits;
    *bins = (bins_t){.args = args, .largest = args->logits[0], .weights = args->cumulative};
    for (int64_t i = 1; i < n; i++)
        bins->largest = fmax(bins->largest, args->logits[i]);
#pragma omp parallel for if (n > PARALLEL_MIN_WORK)
    for (int64_t i = 0; i < n; i++)
        bins->weights[i] = exp((args->logits[i] - bins->largest) / args->temperature);
    for (int64_t i = 0; i < n; i++)
        bins->sums[bin_of(bins, i)] += bins->weights[i];
}

/* The first token in order with which the sum of weights reaches `mass` (or passes it, if `beyond`); `*sum` is the sum
 * up to it. */
static int32_t find_mass(const bins_t *bins, double mass, bool beyond, double *sum) {
    int32_t *order = bins->args->order;
    double before = 0.0;
    int bin = 0;
    while (bin < N_BINS - 1 && (beyond ? before + bins->sums[bin] <= mass : before + bins->sums[bin] < mass))
        before += bins->sums[bin++];
    /* Rounding may leave the mass behind the last token that weighs anything. */
    while (bin > 0 && bins->sums[bin] == 0.0)
        before -= bins->sums[--bin];
    int64_t n = 0, i = 0;
    for (int64_t token = 0; token < bins->args->n_logits; token++)
        if (bin_of(bins, token) == bin) order[n++] = (int32_t)token;
    make_heap(bins->args->logits, order, n);
    sort_heap(bins->args->logits, order, n);
    *sum = before + bins->weights[order[0]];
    while (i < n - 1 && (beyond ? *sum <= mass : *sum < mass))
        *sum += bins->weights[order[++i]];
    return order[i];
}

static int32_t draw_from_all(const sampler_args_t *args, double draw) {
    bins_t bins;
    double kept = 0.0;
    fill_bins(args, &bins);
    for (int bin = 0; bin < N_BINS; bin++)
        kept += bins.sums[bin];
    if (args->top_p < 1.0) find_mass(&bins, args->top_p * kept, false, &kept);
    return find_mass(&bins, draw * kept, true, &(double){0.0});
}

int32_t sampler_draw(const sampler_args_t *args) {
    double draw = uniform(args->seed, args->position);
    bool is_cut = args->top_k > 0 && args->top_k < args->n_logits;
    return is_cut ? draw_from_first(args, args->top_k, draw) : draw_from_all(args, draw);
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
