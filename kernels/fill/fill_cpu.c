/* Each row is filled by itself, so rows are spread over the threads; within a row a block of random bits at a time. */

#include "fill/fill.h"

#include <string.h>

#include "common/parallel.h"
#include "fill/fill_value.h"

/* Eight items of one byte: no sum leaves its byte, so all are added at once. */
static uint64_t eight_bytes(const fill_rule_t *rule, uint64_t word) {
    const uint64_t every_byte = UINT64_C(0x0101010101010101);
    return (word & every_byte * rule->mask) + every_byte * (uint64_t)rule->offset;
}

/* Items first ... first + n - 1 of the dataset, all of one block. */
static void fill_part_of_block(const fill_rule_t *rule, int64_t first, int64_t n, uint8_t *data) {
    uint64_t word = fill_block(rule->key, (uint64_t)first / FILL_BLOCK_BYTES);
    for (int64_t i = 0; i < n; i++)
        data[i] = fill_byte(rule, word, (int)((first + i) % FILL_BLOCK_BYTES));
}

/* Items first ... first + n - 1 of the dataset: whole blocks, and what stands before and behind them. */
static void fill_bytes(const fill_rule_t *rule, int64_t first, int64_t n, uint8_t *data) {
    int64_t before = -first & (FILL_BLOCK_BYTES - 1);
    if (before > n) before = n;
    if (before) fill_part_of_block(rule, first, before, data);
    uint64_t block = (uint64_t)(first + before) / FILL_BLOCK_BYTES;
    int64_t n_blocks = (n - before) / FILL_BLOCK_BYTES, done = before + n_blocks * FILL_BLOCK_BYTES;
    for (int64_t i = 0; i < n_blocks; i++) {
        uint64_t word = eight_bytes(rule, fill_block(rule->key, block + (uint64_t)i));
        memcpy(data + before + i * FILL_BLOCK_BYTES, &word, FILL_BLOCK_BYTES);
    }
    if (done < n) fill_part_of_block(rule, first + done, n - done, data + done);
}

#define FILL_NUMBERS(name, type, round)                                                                                \
    static void name(const fill_rule_t *rule, int64_t first, int64_t n, type *data) {                                  \
        for (int64_t i = 0; i < n;) {                                                                                  \
            uint64_t word = fill_block(rule->key, (uint64_t)(first + i) / FILL_BLOCK_NUMBERS);                         \
            for (int place = (int)((first + i) % FILL_BLOCK_NUMBERS); place < FILL_BLOCK_NUMBERS && i < n; place++)    \
                data[i++] = round(fill_number(rule, word, place));                                                     \
        }                                                                                                              \
    }
FILL_NUMBERS(fill_f32, float, )
FILL_NUMBERS(fill_bf16, uint16_t, bf16_from_float)
FILL_NUMBERS(fill_f16, uint16_t, f16_from_float)
#undef FILL_NUMBERS

static void fill_row(const fill_args_t *args, int64_t first, void *row) {
    switch (args->dtype) {
    case DTYPE_F32:
        fill_f32(&args->rule, first, args->n_columns, row);
        break;
    case DTYPE_BF16:
        fill_bf16(&args->rule, first, args->n_columns, row);
        break;
    case DTYPE_F16:
        fill_f16(&args->rule, first, args->n_columns, row);
        break;
    default:
        fill_bytes(&args->rule, first, args->n_columns, row);
    }
}

status_t fill_cpu(const fill_args_t *args) {
    if (args->dtype == DTYPE_I32 || args->dtype == DTYPE_I64)
        return status_fail(STATUS_USAGE, "fill makes no items of type %s", dtype_name(args->dtype));
    int64_t row_bytes = args->n_columns * (int64_t)dtype_bytes(args->dtype);
#pragma omp parallel if (args->n_groups * args->group_rows * row_bytes >= PARALLEL_MIN_WORK)
    for (int64_t group = 0; group < args->n_groups; group++) {
        char *data = (char *)args->data + group * args->group_rows * row_bytes;
        for (int r = 0; r < args->n_runs; r++) {
            const fill_run_t *run = &args->runs[r];
            int64_t whole_row = group * args->whole_group_rows + run->whole_row;
#pragma omp for schedule(static) nowait
            for (int64_t row = 0; row < run->n_rows; row++)
                fill_row(args, (whole_row + row) * args->whole_columns + args->first_column, data + row * row_bytes);
            data += run->n_rows * row_bytes;
        }
    }
    return STATUS_OK;
}
