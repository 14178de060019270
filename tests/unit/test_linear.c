#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear/linear.h"
#include "support/compare.h"
#include "support/op_data.h"

static float *run(matrix_t weight, const float *x, int64_t n_tokens) {
    float *y = op_zeros(n_tokens * weight.rows);
    assert_int_equal(linear_cpu(&(linear_args_t){.n_tokens = n_tokens, .weight = weight, .x = x, .y = y}), STATUS_OK);
    return y;
}

/* Rounding errors of an FP32 sum are a part of the sum of its products' magnitudes: of 515 products in 16 partial sums
 * at most (515/16 + 5) 2^-24 = 2e-6, a tenth of that in practice. A wrong or missing product is off by 1e-3. */
static void check_outputs(matrix_t weight, const float *x, int64_t n_tokens) {
    float *y = run(weight, x, n_tokens);
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t r = 0; r < weight.rows; r++) {
            double sum = 0.0, magnitude = 0.0;
            for (int64_t c = 0; c < weight.columns; c++) {
                double product = op_item(&weight, r, c) * (double)x[t * weight.columns + c];
                sum += product;
                magnitude += fabs(product);
            }
            double actual = (double)y[t * weight.rows + r];
            if (!(fabs(actual - sum) <= 1e-6 * magnitude))
                fail_msg("%s, %d columns, token %d, row %d: %.9g, expected %.9g", dtype_name(weight.dtype),
                         (int)weight.columns, (int)t, (int)r, actual, sum);
        }
    }
}

static void test_odd_sizes(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 5, 8, 37}, columns[] = {1, 12, 15, 16, 17, 40, 192, 515},
                         tokens[] = {1, 3, 4, 7, 66};
    static const dtype_t dtypes[] = {DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 4 * 8 * 5 * 2; i++) {
        int64_t n_rows = rows[i % 4], n_columns = columns[i / 4 % 8], n_tokens = tokens[i / 32 % 5];
        matrix_t weight = op_random_matrix(n_rows, n_columns, dtypes[i / 160]);
        check_outputs(weight, op_random_floats(n_tokens * n_columns, 0.0f, 1.0f), n_tokens);
    }
}

/* Values that are exact in BF16 give the same bits from F32 weights. */
static void test_f32_weights(void **state) {
    (void)state;
    matrix_t weight = op_random_matrix(9, 21, DTYPE_BF16);
    float *values = op_zeros(9 * 21), *x = op_random_floats(3 * 21, 0.0f, 1.0f);
    for (int i = 0; i < 9 * 21; i++)
        values[i] = (float)op_item(&weight, i / 21, i % 21);
    matrix_t wide = {.data = values, .dtype = DTYPE_F32, .rows = 9, .columns = 21};
    assert_same_bits("y", run(wide, x, 3), run(weight, x, 3), 27);
}

/* Prefill, decode and any number of threads give one result. */
static void test_one_result(void **state) {
    (void)state;
    static const dtype_t dtypes[] = {DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 2; i++) {
        int64_t n_rows = 77, n_columns = 203, n_tokens = 70;
        matrix_t weight = op_random_matrix(n_rows, n_columns, dtypes[i]);
        float *x = op_random_floats(n_tokens * n_columns, 0.0f, 1.0f);
        omp_set_num_threads(1);
        float *together = run(weight, x, n_tokens);
        omp_set_num_threads(3);
        assert_same_bits("three threads", run(weight, x, n_tokens), together, n_tokens * n_rows);
        for (int64_t t = 0; t < n_tokens; t++)
            assert_same_bits("one token", run(weight, x + t * n_columns, 1), together + t * n_rows, n_rows);
        assert_same_bits("five tokens", run(weight, x, 5), together, 5 * n_rows);
    }
}

/* Every FP16 and BF16 word widens exactly. */
static void test_every_word(void **state) {
    (void)state;
    uint16_t *words = op_alloc(65536, sizeof *words);
    for (int i = 0; i < 65536; i++)
        words[i] = (uint16_t)i;
    const float one = 1.0f;
    float *f16 = run((matrix_t){.data = words, .dtype = DTYPE_F16, .rows = 65536, .columns = 1}, &one, 1);
    float *bf16 = run((matrix_t){.data = words, .dtype = DTYPE_BF16, .rows = 65536, .columns = 1}, &one, 1);
    for (int i = 0; i < 65536; i++) {
        float a = f16_to_float((uint16_t)i), b = bf16_to_float((uint16_t)i);
        if (isnan(a) ? !isnan(f16[i]) : f16[i] != a)
            fail_msg("FP16 word %04X is %g, not %g", i, (double)f16[i], (double)a);
        if (isnan(b) ? !isnan(bf16[i]) : bf16[i] != b) fail_msg("BF16 word %04X is %g", i, (double)bf16[i]);
    }
}

static void test_other_dtypes_are_refused(void **state) {
    (void)state;
    float x = 1.0f, y;
    linear_args_t args = {
        .n_tokens = 1, .weight = {.data = &x, .dtype = DTYPE_U8, .rows = 1, .columns = 1}, .x = &x, .y = &y};
    assert_int_equal(linear_cpu(&args), STATUS_INPUT);
    status_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_odd_sizes, op_data_free),
        cmocka_unit_test_teardown(test_f32_weights, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_every_word, op_data_free),
        cmocka_unit_test(test_other_dtypes_are_refused),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
