#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "argmax/argmax.h"
#include "support/op_data.h"

static token_pair_t run(const float *logits, int64_t n, int64_t first_token, int64_t n_valid) {
    token_pair_t pair = {0};
    argmax_args_t args = {
        .n_logits = n, .first_token = first_token, .n_valid = n_valid, .logits = logits, .pair = &pair};
    assert_int_equal(argmax_cpu(&args), STATUS_OK);
    return pair;
}

static void test_random(void **state) {
    (void)state;
    for (int64_t n = 1; n < 100; n += 3) {
        float *logits = op_random_floats(n, -3.0f, 2.0f);
        int64_t best = 0;
        for (int64_t i = 0; i < n; i++)
            best = logits[i] > logits[best] ? i : best;
        token_pair_t pair = run(logits, n, 1000, 1000000);
        assert_true(pair.token == 1000 + best && pair.value == logits[best]);
    }
}

static void test_ties(void **state) {
    (void)state;
    float logits[70];
    for (int i = 0; i < 70; i++)
        logits[i] = -1.0f;
    assert_int_equal(run(logits, 70, 0, 70).token, 0);
    logits[69] = logits[40] = logits[13] = 5.0f;
    assert_int_equal(run(logits, 70, 0, 70).token, 13);
    logits[69] = 6.0f;
    assert_int_equal(run(logits, 70, 0, 70).token, 69);
    const float zeros[3] = {-1.0f, -0.0f, 0.0f};
    assert_int_equal(run(zeros, 3, 0, 3).token, 1);
}

static void test_padding(void **state) {
    (void)state;
    const float logits[6] = {1, 2, 3, NAN, INFINITY, 9};
    assert_int_equal(run(logits, 6, 10, 13).token, 12);
    assert_int_equal(run(logits, 6, 10, 11).token, 10);
    for (int64_t n_valid = 3; n_valid <= 10; n_valid += 7) {
        token_pair_t none = run(logits, 6, 10, n_valid);
        assert_true(none.token == INT32_MAX && none.value == -INFINITY);
    }
}

/* At every place of the array, so that no part of it is read without a check. */
static void test_nan_and_infinity(void **state) {
    (void)state;
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++) {
        for (int64_t i = 0; i < 37; i++) {
            float *logits = op_random_floats(37, 0.0f, 1.0f);
            logits[i] = bad[b];
            token_pair_t pair = run(logits, 37, 5, 1000);
            assert_int_equal(pair.token, -1);
            assert_true(isnan(bad[b]) ? isnan(pair.value) : pair.value == bad[b]);
        }
    }
    const float two[4] = {1, -INFINITY, NAN, INFINITY};
    assert_true(run(two, 4, 0, 4).value == -INFINITY);
    /* Large finite logits are no infinity, and their differences do not overflow into one. */
    const float large[4] = {-3e38f, 3e38f, 3.1e38f, -3.4e38f};
    assert_int_equal(run(large, 4, 0, 4).token, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random, op_data_free),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_padding),
        cmocka_unit_test_teardown(test_nan_and_infinity, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
