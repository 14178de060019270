/* Made-up data: published SplitMix64 numbers, the rule of each type, slices against the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fill/fill.h"
#include "fill/fill_value.h"

/* The first outputs of SplitMix64 seeded with 1234567, as published with its implementations (Rosetta Code). */
static void blocks_are_splitmix64(void **state) {
    (void)state;
    static const uint64_t published[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                         UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                         UINT64_C(16408922859458223821)};
    for (uint64_t i = 0; i < 5; i++)
        assert_true(fill_block(1234567, i) == published[i]);
}

/* Items 0 ... n - 1 of a dataset of one row. */
static void fill_line(fill_rule_t rule, dtype_t dtype, int64_t n, void *data) {
    const fill_args_t args = {.rule = rule,
                              .dtype = dtype,
                              .n_groups = 1,
                              .group_rows = 1,
                              .whole_group_rows = 1,
                              .n_runs = 1,
                              .runs = {{.n_rows = 1}},
                              .n_columns = n,
                              .whole_columns = n,
                              .data = data};
    assert_int_equal(fill_cpu(&args), STATUS_OK);
}

static void each_type_follows_its_rule(void **state) {
    (void)state;
    enum { N = 1000 };
    const fill_rule_t bytes = {.key = 1234567, .mask = 0x8F, .offset = 0x38};
    uint8_t codes[N];
    fill_line(bytes, DTYPE_F8_E4M3, N, codes);
    for (int i = 0; i < N; i++) {
        uint64_t random = fill_block(1234567, (uint64_t)i / 8) >> 8 * (i % 8) & 0xFF;
        assert_int_equal(codes[i], (random & 0x8F) + 0x38);
        assert_int_not_equal(codes[i] & 0x7F, 0x7F); /* no NaN */
    }

    const fill_rule_t numbers = {.key = 1234567, .mask = 0xFFFF, .offset = -32768, .unit = 0x1.91p-16f};
    float floats[N];
    uint16_t bf16[N], f16[N];
    fill_line(numbers, DTYPE_F32, N, floats);
    fill_line(numbers, DTYPE_BF16, N, bf16);
    fill_line(numbers, DTYPE_F16, N, f16);
    for (int i = 0; i < N; i++) {
        int random = (int)(fill_block(1234567, (uint64_t)i / 4) >> 16 * (i % 4) & 0xFFFF);
        assert_true(floats[i] == (float)(random - 32768) * 0x1.91p-16f);
        assert_int_equal(bf16[i], bf16_from_float(floats[i]));
        assert_int_equal(f16[i], f16_from_float(floats[i]));
    }

    const fill_rule_t constant = {.key = 1234567, .mask = 0, .offset = 3, .unit = 0.25f};
    fill_line(constant, DTYPE_F32, N, floats);
    for (int i = 0; i < N; i++)
        assert_true(floats[i] == 0.75f);

    assert_int_equal(fill_cpu(&(fill_args_t){.dtype = DTYPE_I64}), STATUS_USAGE);
}

/* Cuts three groups of 20 rows by 37 columns (so that no row begins on a block) into runs of rows and a run of
 * columns; rows enough that several threads share them. */
static void check_slices(dtype_t dtype) {
    enum { GROUPS = 3, ROWS = 2000, COLUMNS = 37 };
    const fill_rule_t rule = {.key = 99, .mask = dtype == DTYPE_U8 ? 0xFF : 0xFFFF, .unit = 1.0f};
    size_t item = dtype_bytes(dtype);
    char *whole = calloc(GROUPS * ROWS * COLUMNS, item), *slice = calloc(GROUPS * ROWS * COLUMNS, item);
    assert_non_null(whole);
    assert_non_null(slice);
    fill_args_t args = {.rule = rule,
                        .dtype = dtype,
                        .n_groups = GROUPS,
                        .group_rows = ROWS,
                        .whole_group_rows = ROWS,
                        .n_runs = 1,
                        .runs = {{.n_rows = ROWS}},
                        .n_columns = COLUMNS,
                        .whole_columns = COLUMNS,
                        .data = whole};
    assert_int_equal(fill_cpu(&args), STATUS_OK);

    args.n_runs = 3;
    args.runs[0] = (fill_run_t){.n_rows = 700, .whole_row = 100};
    args.runs[1] = (fill_run_t){.n_rows = 1, .whole_row = 900};
    args.runs[2] = (fill_run_t){.n_rows = 499, .whole_row = 1501};
    args.group_rows = 1200;
    args.n_columns = 21;
    args.first_column = 11;
    args.data = slice;
    assert_int_equal(fill_cpu(&args), STATUS_OK);
    const char *next = slice;
    for (int64_t group = 0; group < GROUPS; group++) {
        for (int run = 0; run < 3; run++) {
            for (int64_t row = 0; row < args.runs[run].n_rows; row++) {
                int64_t index = (group * ROWS + args.runs[run].whole_row + row) * COLUMNS + 11;
                assert_memory_equal(next, whole + (size_t)index * item, 21 * item);
                next += 21 * item;
            }
        }
    }
    free(whole);
    free(slice);
}

static void slices_hold_what_the_whole_holds(void **state) {
    (void)state;
    check_slices(DTYPE_U8);
    check_slices(DTYPE_BF16);
    check_slices(DTYPE_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_splitmix64),
        cmocka_unit_test(each_type_follows_its_rule),
        cmocka_unit_test(slices_hold_what_the_whole_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
