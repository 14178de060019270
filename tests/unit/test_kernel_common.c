#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/activation.h"
#include "common/dot.h"
#include "common/rope.h"
#include "support/compare.h"
#include "support/op_data.h"

/* Distance in units in the last place of the expected value; none among numbers below the smallest normal one. */
static double ulps(float actual, double expected) {
    int exponent;
    frexp(expected, &exponent);
    if (exponent < -125 && fabs((double)actual) <= 0x1p-126) return 0.0;
    return fabs((double)actual - expected) / ldexp(1.0, exponent - 24);
}

static void test_sigmoid_and_silu(void **state) {
    (void)state;
    for (double x = -120.0; x <= 120.0; x += 0.0137) {
        float in = (float)x, out;
        sigmoid(&in, 1, &out);
        double expected = op_sigmoid((double)in);
        if (ulps(out, expected) > 3.0) fail_msg("sigmoid(%g) = %.9g, expected %.9g", x, (double)out, expected);
        silu(&in, 1, &out);
        if (x > -85 && ulps(out, (double)in * expected) > 4.0) fail_msg("silu(%g) = %.9g", x, (double)out);
    }
    const float x[5] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
    float y[5];
    sigmoid(x, 5, y);
    assert_true(y[0] == 1.0f && y[1] == 0.0f && isnan(y[2]) && y[3] == 0.5f && y[4] == 0.5f);
}

/* A value's result does not depend on its place in the array, and nothing behind the end is touched. */
static void test_elementwise(void **state) {
    (void)state;
    for (int64_t n = 1; n < 40; n++) {
        float *x = op_random_floats(n, 0.0f, 8.0f), *y = op_random_floats(n, 0.0f, 2.0f), *out = op_zeros(n + 1);
        out[n] = 77.0f;
        silu_multiply(x, 0.5f, y, 3.0f, n, out);
        for (int64_t i = 0; i < n; i++) {
            float alone;
            silu_multiply(x + i, 0.5f, y + i, 3.0f, 1, &alone);
            assert_same_bits("alone", &alone, out + i, 1);
            double g = 0.5 * (double)x[i];
            double expected = g * op_sigmoid(g) * 3.0 * (double)y[i];
            assert_close_f64("silu_multiply", out + i, &expected, 1, 1e-6);
        }
        assert_true(out[n] == 77.0f);
    }
}

static void test_softmax(void **state) {
    (void)state;
    for (int64_t n = 1; n < 70; n += 3) {
        float *x = op_random_floats(n, 300.0f, 20.0f), *y = op_zeros(n);
        double max = -INFINITY, sum = 0.0, *expected = op_alloc(n, sizeof *expected);
        for (int64_t i = 0; i < n; i++)
            max = fmax(max, (double)x[i]);
        for (int64_t i = 0; i < n; i++)
            sum += expected[i] = exp((double)x[i] - max);
        float actual_sum = softmax_exp(x, n, y);
        assert_close_f64("numerators", y, expected, n, 1e-6);
        assert_close_f64("sum", &actual_sum, &sum, 1, 1e-6);
    }
    float special[3][3] = {{1, NAN, 2}, {1, INFINITY, 2}, {-INFINITY, -INFINITY, -INFINITY}}, y[3];
    for (int i = 0; i < 3; i++)
        assert_true(isnan(softmax_exp(special[i], 3, y)));
    assert_true(softmax_exp((const float[]){-INFINITY, 5}, 2, y) == 1.0f && y[0] == 0.0f && y[1] == 1.0f);
}

static void test_softplus(void **state) {
    (void)state;
    for (float x = -100.0f; x < 100.0f; x += 0.37f) {
        double expected = fmax((double)x, 0.0) + log1p(exp(-fabs((double)x)));
        float actual = softplus(x);
        if (fabs((double)actual - expected) > 1e-6 * expected + 1e-38)
            fail_msg("softplus(%g) = %g", (double)x, (double)actual);
    }
    assert_true(softplus(1e30f) == 1e30f && softplus(-1e30f) == 0.0f && isnan(softplus(NAN)));
}

/* Against long double, at the last position of the real model too. An angle kept in FP32 would be off by 1e-2. */
static void test_rope(void **state) {
    (void)state;
    static const int64_t positions[] = {0, 1, 77, 8191, 262143};
    for (int p = 0; p < 5; p++) {
        float *x = op_random_floats(3 * 80, 0.0f, 1.0f), *y = op_copy(x, 3 * 80);
        rope_rotate(y, 3, 80, 64, 1e7, positions[p]);
        for (int v = 0; v < 3; v++) {
            double expected[80];
            for (int i = 0; i < 80; i++)
                expected[i] = (double)x[v * 80 + i];
            for (int i = 0; i < 32; i++) {
                long double angle = (long double)positions[p] * powl(1e7L, -2.0L * i / 64.0L);
                double a = (double)x[v * 80 + i], b = (double)x[v * 80 + i + 32];
                expected[i] = a * (double)cosl(angle) - b * (double)sinl(angle);
                expected[i + 32] = b * (double)cosl(angle) + a * (double)sinl(angle);
            }
            assert_close_f64("rotated", y + v * 80, expected, 80, 3e-7);
        }
    }
}

/* Every pair of an E2M1 code and an E4M3 scale, at every place of a block, is their exact product. */
static void test_every_nvfp4_code(void **state) {
    (void)state;
    uint8_t *codes = op_alloc(256 * 16, 8), *scales = op_alloc(256 * 16, 1);
    for (int scale = 0; scale < 256; scale++) {
        for (int shift = 0; shift < 16; shift++) {
            int row = scale * 16 + shift;
            scales[row] = (uint8_t)scale;
            for (int c = 0; c < 16; c++)
                codes[row * 8 + c / 2] |= (uint8_t)(((c + shift) & 15) << (c % 2 * 4));
        }
    }
    float unit[16][16] = {{0}}, *outputs = op_zeros(16 * 4096);
    const float *x[16];
    float *y[16];
    for (int c = 0; c < 16; c++) {
        unit[c][c] = 1.0f;
        x[c] = unit[c];
        y[c] = outputs + c * 4096;
    }
    dot_weights_t weights = {.data = codes, .scales = scales, .dtype = DTYPE_U8, .columns = 16};
    dot_rows(&weights, 0, 4096, x, 16, y);
    for (int row = 0; row < 4096; row++) {
        if (isnan(e4m3_values[row / 16])) continue;
        for (int c = 0; c < 16; c++) {
            float expected = e2m1_values[(c + row) & 15] * e4m3_values[row / 16];
            if (y[c][row] != expected)
                fail_msg("code %d, scale %02X: %g, not %g", (c + row) & 15, row / 16, (double)y[c][row],
                         (double)expected);
        }
    }
}

static void check_nvfp4_golden(hid_t group) {
    int64_t n_rows = op_int(group, "n_rows"), n_columns = op_int(group, "n_columns");
    float *values = op_floats(group, "values"), scale_2 = op_floats(group, "scale_2")[0], *unit = op_zeros(n_columns);
    dot_weights_t weights = {
        .data = op_bytes(group, "codes"), .scales = op_bytes(group, "scales"), .dtype = DTYPE_U8, .columns = n_columns};
    float *y = op_zeros(n_rows);
    for (int64_t c = 0; c < n_columns; c++) {
        unit[c] = 1.0f;
        dot_rows(&weights, 0, n_rows, &(const float *){unit}, 1, &(float *){y});
        unit[c] = 0.0f;
        for (int64_t r = 0; r < n_rows; r++) {
            if (y[r] * scale_2 != values[r * n_columns + c]) fail_msg("row %d column %d", (int)r, (int)c);
        }
    }
}

static void test_nvfp4_golden(void **state) {
    (void)state;
    op_cases("nvfp4", check_nvfp4_golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sigmoid_and_silu),
        cmocka_unit_test_teardown(test_elementwise, op_data_free),
        cmocka_unit_test_teardown(test_softmax, op_data_free),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test_teardown(test_rope, op_data_free),
        cmocka_unit_test_teardown(test_every_nvfp4_code, op_data_free),
        cmocka_unit_test_teardown(test_nvfp4_golden, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
