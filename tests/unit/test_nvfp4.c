#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/nvfp4.h"
#include "support/op_data.h"

/* Codes, scales and values are the oracle's, bit for bit. The sign of a zero may be dropped. */
static void check_golden(hid_t group) {
    size_t n;
    float *matrix = op_keep(golden_floats(group, "matrix", &n));
    float *values = op_floats(group, "values"), *scale_2 = op_floats(group, "scale_2");
    uint8_t *codes = op_bytes(group, "codes"), *scales = op_bytes(group, "scales");
    uint16_t *bits = op_alloc((int64_t)n, sizeof *bits);
    for (size_t i = 0; i < n; i++)
        bits[i] = bf16_from_float(matrix[i]);

    assert_true(nvfp4_scale_2(nvfp4_amax(bits, n)) == scale_2[0]);
    uint8_t *own_codes = op_alloc((int64_t)n / 2, 1), *own_scales = op_alloc((int64_t)n / NVFP4_BLOCK, 1);
    nvfp4_quantize(bits, n, scale_2[0], own_codes, own_scales);
    assert_memory_equal(own_scales, scales, n / NVFP4_BLOCK);
    for (size_t i = 0; i < n; i++) {
        uint8_t own = own_codes[i / 2] >> (i % 2 ? 4 : 0) & 15, golden = codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
        bool scale_is_zero = scales[i / NVFP4_BLOCK] == 0;
        if (!scale_is_zero && own != golden && !(own % 8 == 0 && golden % 8 == 0))
            fail_msg("value %zu: code %d, expected %d", i, own, golden);
    }
    float *own_values = op_zeros((int64_t)n);
    nvfp4_dequantize(codes, scales, scale_2[0], n, own_values);
    assert_memory_equal(own_values, values, n * sizeof(float));
    nvfp4_dequantize(own_codes, own_scales, scale_2[0], n, own_values);
    for (size_t i = 0; i < n; i++)
        assert_true(own_values[i] == values[i]);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("nvfp4", check_golden);
}

static void test_amax(void **state) {
    (void)state;
    static const uint16_t values[4] = {0x3F80, 0xC040, 0x4000, 0x0000}; /* 1, -3, 2, 0 */
    assert_true(nvfp4_amax(values, 4) == 3.0f);
    assert_true(nvfp4_amax(values, 0) == 0.0f);
    static const uint16_t nan[2] = {0x4000, 0xFFC0}, infinity[2] = {0xFF80, 0x4000};
    assert_true(isnan(nvfp4_amax(nan, 2)));
    assert_true(isinf(nvfp4_amax(infinity, 2)));
    assert_true(nvfp4_scale_2(0.0f) == 1.0f);
    assert_true(nvfp4_scale_2(2688.0f) == 1.0f);
}

static void test_zeros_and_underflow(void **state) {
    (void)state;
    uint16_t values[2 * NVFP4_BLOCK] = {0};
    uint8_t codes[NVFP4_BLOCK], scales[2];
    nvfp4_quantize(values, 2 * NVFP4_BLOCK, 1.0f, codes, scales);
    assert_int_equal(scales[0], 0x38); /* 1.0 */
    for (int i = 0; i < NVFP4_BLOCK; i++)
        assert_int_equal(codes[i], 0);
    /* A block whose scale is less than half of E4M3's least value, 2^-9. */
    values[3] = bf16_from_float(6 * 0x1p-11f);
    nvfp4_quantize(values, 2 * NVFP4_BLOCK, 1.0f, codes, scales);
    assert_int_equal(scales[0], 0);
    assert_int_equal(codes[1], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test(test_amax),
        cmocka_unit_test(test_zeros_and_underflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
