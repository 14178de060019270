/* The number formats against their definitions, over every code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/dtype.h"

static void e4m3_follows_its_definition(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, mantissa = code & 7;
        double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        double expected = code & 0x80 ? -magnitude : magnitude;
        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(e4m3_values[code]));
        } else {
            assert_true((double)e4m3_values[code] == expected);
            assert_int_equal(signbit(e4m3_values[code]) != 0, code >> 7);
        }
    }
    assert_true(e4m3_values[0x38] == 1.0f && e4m3_values[0x7E] == 448.0f && e4m3_values[0x01] == 0x1p-9f);
}

static void e4m3_rounds_to_the_nearest_code(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7F) == 0x7F) continue;
        assert_int_equal(e4m3_from_float(e4m3_values[code]), code);
    }
    for (int code = 0; code < 0x7E; code++) {
        float low = e4m3_values[code], high = e4m3_values[code + 1], middle = (low + high) / 2;
        assert_int_equal(e4m3_from_float(nextafterf(middle, 0)), code);
        assert_int_equal(e4m3_from_float(nextafterf(middle, 1000)), code + 1);
        assert_int_equal(e4m3_from_float(middle), code % 2 ? code + 1 : code);
        assert_int_equal(e4m3_from_float(-middle), (code % 2 ? code + 1 : code) | 0x80);
    }
    assert_int_equal(e4m3_from_float(1e9f), 0x7E);
    assert_int_equal(e4m3_from_float(-INFINITY), 0xFE);
    assert_int_equal(e4m3_from_float(NAN), 0x7F);
}

static void e2m1_rounds_as_modelopt_does(void **state) {
    (void)state;
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int code = 0; code < 8; code++) {
        assert_true(e2m1_values[code] == values[code]);
        assert_true(e2m1_values[code + 8] == -values[code]);
        assert_int_equal(e2m1_from_float(values[code]), code);
        if (code) assert_int_equal(e2m1_from_float(-values[code]), code + 8);
    }
    /* Ties: 0.75, 1.75 and 3.5 go up, the others down. */
    static const struct {
        float tie;
        int code;
    } ties[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4}, {3.5f, 6}, {5.0f, 6}};
    for (size_t i = 0; i < sizeof ties / sizeof ties[0]; i++) {
        assert_int_equal(e2m1_from_float(ties[i].tie), ties[i].code);
        assert_int_equal(e2m1_from_float(-ties[i].tie), ties[i].code ? ties[i].code + 8 : 0);
    }
    assert_int_equal(e2m1_from_float(100), 7);
}

static void f16_survives_a_round_trip(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = f16_to_float((uint16_t)bits);
        if ((bits & 0x7C00) == 0x7C00 && (bits & 0x3FF)) {
            assert_true(isnan(value));
            assert_true(isnan(f16_to_float(f16_from_float(value))));
        } else {
            assert_int_equal(f16_from_float(value), bits);
        }
    }
    assert_true(f16_to_float(0x3C00) == 1.0f && f16_to_float(0x0001) == 0x1p-24f && f16_to_float(0x7BFF) == 65504.0f);
}

static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 0x7BFF; bits++) {
        float low = f16_to_float((uint16_t)bits), high = f16_to_float((uint16_t)(bits + 1));
        float middle = (low + high) / 2;
        assert_int_equal(f16_from_float(middle), bits % 2 ? bits + 1 : bits);
        assert_int_equal(f16_from_float(nextafterf(middle, 0)), bits);
        assert_int_equal(f16_from_float(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(f16_from_float(65520.0f), 0x7C00);
    assert_int_equal(f16_from_float(nextafterf(65520.0f, 0)), 0x7BFF);
}

static void bf16_is_the_upper_half(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = bf16_to_float((uint16_t)bits);
        if (isnan(value))
            assert_true(isnan(bf16_to_float(bf16_from_float(value))));
        else
            assert_int_equal(bf16_from_float(value), bits);
    }
    assert_int_equal(bf16_from_float(1.00390625f), 0x3F80); /* a tie: to even, down */
    assert_int_equal(bf16_from_float(1.01171875f), 0x3F82); /* a tie: to even, up */
    assert_int_equal(bf16_from_float(3.4e38f), 0x7F80);
}

static void names_are_those_of_safetensors(void **state) {
    (void)state;
    for (int i = 0; i < DTYPE_Q8; i++)
        assert_int_equal(dtype_from_name(dtype_name((dtype_t)i)), i);
    for (int i = DTYPE_Q8; i < DTYPE_N; i++) /* no file may hold them */
        assert_int_equal(dtype_from_name(dtype_name((dtype_t)i)), DTYPE_N);
    assert_int_equal(dtype_from_name("F64"), DTYPE_N);
    assert_int_equal(dtype_bytes(DTYPE_F8_E4M3), 1);
    assert_int_equal(dtype_bytes(DTYPE_I64), 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_follows_its_definition),    cmocka_unit_test(e4m3_rounds_to_the_nearest_code),
        cmocka_unit_test(e2m1_rounds_as_modelopt_does),   cmocka_unit_test(f16_survives_a_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),     cmocka_unit_test(bf16_is_the_upper_half),
        cmocka_unit_test(names_are_those_of_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
