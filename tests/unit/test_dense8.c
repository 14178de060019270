#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear/dense8.h"
#include "support/compare.h"
#include "support/op_data.h"

static matrix_t quantize(matrix_t source, dtype_t dtype) {
    void *memory = op_workspace(dense8_bytes(dtype, source.rows, source.columns));
    matrix_t target = dense8_matrix(dtype, source.rows, source.columns, memory);
    assert_int_equal(dense8_quantize_cpu(&(dense8_args_t){.source = source, .target = target}), STATUS_OK);
    return target;
}

static matrix_t dequantize(matrix_t source) {
    matrix_t target = {.data = op_workspace((size_t)(source.rows * source.columns) * sizeof(uint16_t)),
                       .dtype = DTYPE_F16,
                       .rows = source.rows,
                       .columns = source.columns};
    assert_int_equal(dense8_dequantize_cpu(&(dense8_args_t){.source = source, .target = target}), STATUS_OK);
    return target;
}

/* The largest magnitude in the group, for Q8, or row, for QPN8, of one item. */
static double largest_beside(const matrix_t *weight, dtype_t dtype, int64_t row, int64_t column) {
    int64_t first = dtype == DTYPE_Q8 ? column / DENSE8_GROUP * DENSE8_GROUP : 0;
    int64_t end = dtype == DTYPE_Q8 && first + DENSE8_GROUP < weight->columns ? first + DENSE8_GROUP : weight->columns;
    double most = 0.0;
    for (int64_t i = first; i < end; i++)
        most = fmax(most, fabs(op_item(weight, row, i)));
    return most;
}

/* Half a step, which is max / 127 for Q8 and 2^-3 of a value's power of two for QPN8 (2^-9 scales below 2^-6 of them),
 * and the rounding to FP16 of scale and value. */
static void every_value_is_near(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {2, 64}, {5, 160}, {4, 37}, {3, 129}, {7, 512}};
    static const dtype_t dtypes[] = {DTYPE_Q8, DTYPE_QPN8};
    for (int i = 0; i < 14; i++) {
        int64_t rows = shapes[i / 2][0], columns = shapes[i / 2][1];
        dtype_t dtype = dtypes[i % 2];
        matrix_t weight = op_random_matrix(rows, columns, DTYPE_F16), back = dequantize(quantize(weight, dtype));
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t column = 0; column < columns; column++) {
                double want = op_item(&weight, row, column), got = op_item(&back, row, column);
                double most = largest_beside(&weight, dtype, row, column);
                double step = dtype == DTYPE_Q8 ? most / 127.0 : fmax(fabs(want) / 8.0, most / 448.0 * 0x1p-9);
                if (!(fabs(got - want) <= 0.5 * step * 1.001 + most * 0x1p-10))
                    fail_msg("%s %d x %d, row %d, column %d: %g became %g; step %g", dtype_name(dtype), (int)rows,
                             (int)columns, (int)row, (int)column, want, got, step);
            }
        }
    }
}

/* The largest of a group has code 127 or -127, the largest of a row +-448; zeros stay zeros. */
static void codes_use_the_whole_range(void **state) {
    (void)state;
    float values[2 * 70] = {[3] = 0.25f, [7] = -0.5f, [66] = 3.0f, [69] = -1.0f};
    matrix_t weight = op_matrix(values, 2, 70, DTYPE_F16);
    matrix_t q8 = quantize(weight, DTYPE_Q8), qpn8 = quantize(weight, DTYPE_QPN8);
    const int8_t *codes = q8.data;
    assert_int_equal(codes[7], -127);
    assert_int_equal(codes[3], 64); /* 63.5, and the rounded scale is below 0.5 / 127 */
    assert_int_equal(codes[66], 127);
    assert_int_equal(codes[69], -42);
    assert_int_equal(((const uint16_t *)q8.scales)[1], f16_from_float(3.0f / 127.0f));
    const uint8_t *e4m3 = qpn8.data;
    assert_int_equal(e4m3[66], e4m3_from_float(448.0f));
    assert_int_equal(e4m3[7], e4m3_from_float(-0.5f * 448.0f / 3.0f));
    assert_true(((const float *)qpn8.scales)[0] == 3.0f / 448.0f);
    for (int i = 70; i < 140; i++) {
        assert_int_equal(codes[i], 0);
        assert_int_equal(e4m3[i], 0);
    }
    assert_true(((const float *)qpn8.scales)[1] == 0.0f);
    assert_int_equal(((const uint16_t *)q8.scales)[2], 0);
}

/* A NaN or an infinity must not become a number. */
static void what_is_not_finite_stays_so(void **state) {
    (void)state;
    static const uint16_t bad[] = {0x7E00, 0x7C00, 0xFC00};
    for (int i = 0; i < 3; i++) {
        matrix_t weight = op_random_matrix(2, 130, DTYPE_F16);
        ((uint16_t *)(uintptr_t)weight.data)[65] = bad[i];
        matrix_t q8 = dequantize(quantize(weight, DTYPE_Q8)), qpn8 = dequantize(quantize(weight, DTYPE_QPN8));
        for (int64_t column = 0; column < 130; column++) {
            assert_int_equal(isnan(op_item(&q8, 0, column)) != 0, column / DENSE8_GROUP == 1);
            assert_true(isnan(op_item(&qpn8, 0, column)));
            assert_false(isnan(op_item(&q8, 1, column)) || isnan(op_item(&qpn8, 1, column)));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_value_is_near, op_data_free),
        cmocka_unit_test_teardown(codes_use_the_whole_range, op_data_free),
        cmocka_unit_test_teardown(what_is_not_finite_stays_so, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
