#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "router/router.h"
#include "support/compare.h"
#include "support/op_data.h"

typedef struct routed {
    int32_t *experts;
    float *weights, *shared_gate;
} routed_t;

static routed_t run(const float *logits, int64_t n_tokens, int64_t n_experts, int64_t top_k, bool norm) {
    routed_t out = {op_alloc(n_tokens * top_k, sizeof(int32_t)), op_zeros(n_tokens * top_k), op_zeros(n_tokens)};
    router_args_t args = {
        .n_tokens = n_tokens,
        .n_experts = n_experts,
        .top_k = top_k,
        .norm_topk_prob = norm,
        .logits = logits,
        .logits_stride = n_experts + 1,
        .experts = out.experts,
        .weights = out.weights,
        .shared_gate = out.shared_gate,
    };
    assert_int_equal(router_cpu(&args), STATUS_OK);
    return out;
}

static void check_golden(hid_t group) {
    int64_t n = op_int(group, "n_tokens"), top_k = op_int(group, "top_k");
    routed_t out =
        run(op_floats(group, "logits"), n, op_int(group, "n_experts"), top_k, op_int(group, "norm_topk_prob"));
    assert_same_ints("experts", out.experts, op_ints(group, "experts"), n * top_k);
    assert_close("weights", out.weights, op_floats(group, "weights"), n * top_k, 2e-6);
    assert_close("shared_gate", out.shared_gate, op_floats(group, "shared_gate"), n, 2e-6);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("router", check_golden);
}

/* Random logits against a full sort and an FP64 softmax. */
static void test_random(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {5, 5}, {33, 3}, {512, 10}, {300, 17}};
    for (int i = 0; i < 10; i++) {
        int64_t n_experts = sizes[i / 2][0], top_k = sizes[i / 2][1], n_tokens = 7;
        bool norm = i % 2;
        float *logits = op_random_floats(n_tokens * (n_experts + 1), 0.0f, 6.0f);
        routed_t out = run(logits, n_tokens, n_experts, top_k, norm);
        for (int64_t t = 0; t < n_tokens; t++) {
            const float *row = logits + t * (n_experts + 1);
            double all = 0.0, chosen = 0.0, expected[17], gate = op_sigmoid((double)row[n_experts]);
            for (int64_t e = 0; e < n_experts; e++)
                all += exp((double)row[e]);
            bool *taken = op_alloc(n_experts, sizeof *taken);
            for (int64_t k = 0; k < top_k; k++) {
                int64_t best = -1;
                for (int64_t e = 0; e < n_experts; e++) {
                    if (!taken[e] && (best < 0 || row[e] > row[best])) best = e;
                }
                taken[best] = true;
                assert_int_equal(out.experts[t * top_k + k], best);
                expected[k] = exp((double)row[best]);
                chosen += expected[k];
            }
            for (int64_t k = 0; k < top_k; k++)
                expected[k] /= norm ? chosen : all;
            assert_close_f64("weights", out.weights + t * top_k, expected, top_k, 2e-6);
            assert_close_f64("shared_gate", out.shared_gate + t, &gate, 1, 1e-6);
        }
    }
}

static void test_ties_and_signed_zeros(void **state) {
    (void)state;
    const float equal[8] = {2, 2, 2, 2, 2, 2, 2, 0};
    assert_same_ints("all equal", run(equal, 1, 7, 3, true).experts, (const int32_t[]){0, 1, 2}, 3);
    const float zeros[7] = {-0.0f, 0.0f, -1, -0.0f, 0.0f, 1, 0};
    assert_same_ints("signed zeros", run(zeros, 1, 6, 4, true).experts, (const int32_t[]){5, 0, 1, 3}, 4);
    const float cut[7] = {1, 3, 2, 3, 2, 2, 0};
    assert_same_ints("tie at the cut", run(cut, 1, 6, 3, true).experts, (const int32_t[]){1, 3, 2}, 3);
}

static void test_without_distribution(void **state) {
    (void)state;
    const float inf = INFINITY, cases[5][6] = {
                                    {1, 2, NAN, 3, 4, 0},      {NAN, NAN, NAN, NAN, NAN, 0},      {1, inf, 2, 3, 4, 0},
                                    {inf, -inf, NAN, 1, 2, 0}, {-inf, -inf, -inf, -inf, -inf, 0},
                                };
    for (int i = 0; i < 5; i++) {
        for (int norm = 0; norm < 2; norm++) {
            routed_t out = run(cases[i], 1, 5, 3, norm);
            assert_same_ints("experts", out.experts, (const int32_t[]){0, 1, 2}, 3);
            assert_true(isnan(out.weights[0]) && isnan(out.weights[1]) && isnan(out.weights[2]));
        }
    }
    /* The bad token stays alone with it, and its shared gate is its own. */
    const float two[12] = {1, NAN, 2, 3, 4, 0, 1, 5, 2, 3, 4, NAN};
    routed_t out = run(two, 2, 5, 2, true);
    assert_true(isnan(out.weights[0]) && out.shared_gate[0] == 0.5f && isnan(out.shared_gate[1]));
    assert_same_ints("good token", out.experts + 2, (const int32_t[]){1, 4}, 2);
}

static void test_minus_infinity_is_probability_zero(void **state) {
    (void)state;
    const float logits[6] = {-INFINITY, 1, -INFINITY, 1, -INFINITY, 0};
    routed_t out = run(logits, 1, 5, 4, true);
    assert_same_ints("experts", out.experts, (const int32_t[]){1, 3, 0, 2}, 4);
    assert_true(out.weights[0] == 0.5f && out.weights[1] == 0.5f && out.weights[2] == 0.0f && out.weights[3] == 0.0f);
}

static void test_threads(void **state) {
    (void)state;
    float *logits = op_random_floats(400 * 257, 0.0f, 6.0f);
    omp_set_num_threads(1);
    routed_t one = run(logits, 400, 256, 9, true);
    omp_set_num_threads(3);
    routed_t three = run(logits, 400, 256, 9, true);
    assert_same_ints("experts", three.experts, one.experts, 3600);
    assert_same_bits("weights", three.weights, one.weights, 3600);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_random, op_data_free),
        cmocka_unit_test_teardown(test_ties_and_signed_zeros, op_data_free),
        cmocka_unit_test_teardown(test_without_distribution, op_data_free),
        cmocka_unit_test_teardown(test_minus_infinity_is_probability_zero, op_data_free),
        cmocka_unit_test_teardown(test_threads, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
