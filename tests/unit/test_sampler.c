#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { MAX_TOKENS = 1000, MANY_TOKENS = 6000 };

static int32_t scratch_order[MAX_TOKENS];
static double scratch_cumulative[MAX_TOKENS];

static sampler_args_t draw_args(const float *logits, int64_t n_logits) {
    return (sampler_args_t){.logits = logits,
                            .n_logits = n_logits,
                            .temperature = 1.0,
                            .top_p = 1.0,
                            .seed = 1,
                            .order = scratch_order,
                            .cumulative = scratch_cumulative};
}

/* Draws once at each of `n_draws` positions. */
static void count_draws(sampler_args_t args, int n_draws, int *counts) {
    memset(counts, 0, (size_t)args.n_logits * sizeof *counts);
    for (int i = 0; i < n_draws; i++) {
        args.position = (uint64_t)i;
        int32_t token = sampler_draw(&args);
        assert_in_range(token, 0, args.n_logits - 1);
        counts[token]++;
    }
}

/* Pearson's statistic; tokens of probability 0 must not be drawn at all. */
static double chi_square(const int *counts, const double *probabilities, int n_tokens, int n_draws) {
    double sum = 0.0;
    for (int i = 0; i < n_tokens; i++) {
        if (probabilities[i] == 0.0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        double expected = probabilities[i] * n_draws;
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return sum;
}

static void test_best_pair(void **state) {
    (void)state;
    const token_pair_t pairs[] = {{1.0f, 7}, {3.0f, 40}, {3.0f, 21}, {2.0f, 60}};
    token_pair_t best = sampler_best_pair(pairs, 4);
    assert_int_equal(best.token, 21);
    assert_true(best.value == 3.0f);
    const token_pair_t padding[] = {{-5.0f, 7}, {-INFINITY, INT32_MAX}};
    assert_int_equal(sampler_best_pair(padding, 2).token, 7);
}

static void test_best_pair_never_hides_nan(void **state) {
    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        token_pair_t pairs[] = {{1.0f, 0}, {9.0f, 4}, {5.0f, 8}};
        pairs[bad] = (token_pair_t){NAN, -1};
        assert_int_equal(sampler_best_pair(pairs, 3).token, -1);
    }
}

static const float *sorted_logits;

static int compare_rank(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    if (sorted_logits[a] != sorted_logits[b]) return sorted_logits[a] < sorted_logits[b] ? 1 : -1;
    return (a > b) - (a < b);
}

static void test_rank_with_many_ties(void **state) {
    (void)state;
    float logits[MAX_TOKENS];
    int32_t expected[MAX_TOKENS], order[MAX_TOKENS];
    uint32_t random = 1;
    for (int i = 0; i < MAX_TOKENS; i++) {
        random = random * 1664525u + 1013904223u;
        logits[i] = (float)(random >> 24) - 100.0f; /* 256 values for 1000 tokens */
        expected[i] = i;
    }
    sorted_logits = logits;
    qsort(expected, MAX_TOKENS, sizeof *expected, compare_rank);
    static const int ks[] = {1, 2, 3, 20, 333, 999, 1000};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        sampler_rank(logits, MAX_TOKENS, ks[i], order);
        assert_memory_equal(order, expected, (size_t)ks[i] * sizeof *order);
    }
}

static void test_narrow_settings_are_greedy(void **state) {
    (void)state;
    const float logits[] = {0.5f, 2.0f, 2.0f, 1.9f, -3.0f};
    int counts[5];
    sampler_args_t args = draw_args(logits, 5);
    args.top_k = 1;
    count_draws(args, 200, counts);
    assert_int_equal(counts[1], 200);
    args.top_k = 0;
    args.top_p = 1e-9;
    count_draws(args, 200, counts);
    assert_int_equal(counts[1], 200);
    /* The two equal ones stay equally likely however cold it is. */
    args.top_p = 1.0;
    args.temperature = 1e-6;
    count_draws(args, 200, counts);
    assert_int_equal(counts[1] + counts[2], 200);
    assert_in_range(counts[1], 70, 130);
}

/* Bounds: the 0.999 quantiles of chi-square. The draws are the same in every run. */
static void test_frequencies(void **state) {
    (void)state;
    const double weights[] = {0.3, 0.02, 0.25, 0.05, 0.18, 0.1, 0.07, 0.03};
    float logits[8];
    double probabilities[8], sum = 0.0;
    for (int i = 0; i < 8; i++) {
        logits[i] = (float)log(weights[i]) + 3.0f;
        probabilities[i] = pow(weights[i], 1.0 / 0.7);
        sum += probabilities[i];
    }
    for (int i = 0; i < 8; i++)
        probabilities[i] /= sum;
    int counts[8];
    sampler_args_t args = draw_args(logits, 8);
    args.temperature = 0.7;
    for (uint64_t seed = 0; seed < 4; seed++) {
        args.seed = seed;
        count_draws(args, 20000, counts);
        assert_true(chi_square(counts, probabilities, 8, 20000) < 24.3);
    }
    args.temperature = 1.0;
    args.seed = 0;
    count_draws(args, 20000, counts);
    assert_true(chi_square(counts, weights, 8, 20000) < 24.3);
    assert_true(chi_square(counts, probabilities, 8, 20000) > 100.0);
}

static void test_top_p_cuts_the_tail(void **state) {
    (void)state;
    const float logits[] = {logf(0.05f), logf(0.5f), logf(0.15f), logf(0.3f)};
    int counts[4];
    sampler_args_t args = draw_args(logits, 4);
    args.top_p = 0.79;
    count_draws(args, 20000, counts);
    assert_true(chi_square(counts, (const double[]){0.0, 0.625, 0.0, 0.375}, 4, 20000) < 10.9);
    args.top_p = 0.81;
    count_draws(args, 20000, counts);
    assert_true(chi_square(counts, (const double[]){0.0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95}, 4, 20000) < 13.9);
}

/* top_p counts the probability of what top_k has left: 0.4 of 0.7 reaches 0.5. */
static void test_top_k_comes_before_top_p(void **state) {
    (void)state;
    const float logits[] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)};
    int counts[4];
    sampler_args_t args = draw_args(logits, 4);
    args.top_k = 2;
    args.top_p = 0.5;
    count_draws(args, 500, counts);
    assert_int_equal(counts[0], 500);
    args.top_k = 0;
    count_draws(args, 500, counts);
    assert_int_equal(counts[0] + counts[1], 500);
    assert_true(counts[1] > 100);
}

static void test_top_k_is_exact_among_equals(void **state) {
    (void)state;
    const float logits[] = {0.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    int counts[6];
    sampler_args_t args = draw_args(logits, 6);
    args.top_k = 2;
    count_draws(args, 1000, counts);
    assert_int_equal(counts[1] + counts[2], 1000);
    assert_in_range(counts[1], 420, 580);
}

/* SplitMix64 of a seed, then of the result and the position. */
static uint64_t split_mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

static double uniform_of(const sampler_args_t *args) {
    return (double)(split_mix(split_mix(args->seed) ^ args->position) >> 11) * 0x1p-53;
}

/* The same by the shortest way: all tokens sorted. */
static int32_t draw_from_sorted(const sampler_args_t *args, int64_t *place) {
    static int32_t order[MANY_TOKENS];
    static double cumulative[MANY_TOKENS];
    int64_t n = args->n_logits, n_kept = 1, chosen = 0;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    sorted_logits = args->logits;
    qsort(order, (size_t)n, sizeof *order, compare_rank);
    for (int64_t i = 0; i < n; i++)
        cumulative[i] = sum += exp((args->logits[order[i]] - args->logits[order[0]]) / args->temperature);
    while (n_kept < n && cumulative[n_kept - 1] < args->top_p * sum)
        n_kept++;
    while (chosen < n_kept - 1 && cumulative[chosen] <= uniform_of(args) * cumulative[n_kept - 1])
        chosen++;
    *place = chosen;
    return order[chosen];
}

/* Peaked, flat and equal logits, with the draw anywhere from the first token to the far tail. */
static void test_draw_from_all_is_that_from_the_sorted(void **state) {
    (void)state;
    static float logits[MANY_TOKENS];
    static int32_t order[MANY_TOKENS];
    static double cumulative[MANY_TOKENS];
    static const double top_ps[] = {1.0, 0.95, 0.3}, widths[] = {0.0, 0.05, 0.5, 3.0};
    int64_t place;
    int n_same = 0, n_draws = 0, n_deep = 0;
    for (size_t w = 0; w < 4; w++) {
        uint32_t random = 7;
        for (int i = 0; i < MANY_TOKENS; i++) {
            random = random * 1664525u + 1013904223u;
            logits[i] = (float)(widths[w] * log((random >> 8) + 1.0));
        }
        for (size_t p = 0; p < 3; p++) {
            sampler_args_t args = draw_args(logits, MANY_TOKENS);
            args.order = order;
            args.cumulative = cumulative;
            args.top_p = top_ps[p];
            for (uint64_t i = 0; i < 12; i++) {
                args.position = i;
                int32_t expected = draw_from_sorted(&args, &place);
                int32_t token = sampler_draw(&args);
                n_same += token == expected;
                n_draws++;
                n_deep += place > 4096;
            }
        }
    }
    assert_int_equal(n_same, n_draws);
    assert_true(n_deep > 20);
}

static void test_draw_depends_on_seed_and_position_alone(void **state) {
    (void)state;
    float logits[100] = {0};
    sampler_args_t args = draw_args(logits, 100);
    int n_equal_position = 0, n_equal_seed = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        args.seed = 5;
        args.position = i;
        int32_t token = sampler_draw(&args);
        assert_int_equal(sampler_draw(&args), token);
        args.position = i + 1;
        n_equal_position += sampler_draw(&args) == token;
        args.position = i;
        args.seed = 6;
        n_equal_seed += sampler_draw(&args) == token;
    }
    assert_true(n_equal_position < 30 && n_equal_seed < 30);
}

static void test_logprobs(void **state) {
    (void)state;
    const float logits[] = {101.0f, 99.0f, 100.0f};
    const int32_t tokens[] = {0, 2, 1};
    float logprobs[3];
    sampler_logprobs(logits, 3, tokens, 3, logprobs);
    double sum = log(exp(1.0) + exp(-1.0) + 1.0);
    assert_true(fabs(logprobs[0] - (1.0 - sum)) < 1e-6);
    assert_true(fabs(logprobs[1] - (0.0 - sum)) < 1e-6);
    assert_true(fabs(logprobs[2] - (-1.0 - sum)) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_pair),
        cmocka_unit_test(test_best_pair_never_hides_nan),
        cmocka_unit_test(test_rank_with_many_ties),
        cmocka_unit_test(test_narrow_settings_are_greedy),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_top_p_cuts_the_tail),
        cmocka_unit_test(test_top_k_comes_before_top_p),
        cmocka_unit_test(test_top_k_is_exact_among_equals),
        cmocka_unit_test(test_draw_from_all_is_that_from_the_sorted),
        cmocka_unit_test(test_draw_depends_on_seed_and_position_alone),
        cmocka_unit_test(test_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
