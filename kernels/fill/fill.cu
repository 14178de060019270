#include "fill/fill.h"
#include "fill/fill_value.h"

/* BF16 as bf16_from_float gives it for the finite numbers that fill makes. */
static __device__ __forceinline__ uint16_t bf16_bits(float value) {
    uint32_t word = __float_as_uint(value);
    return (uint16_t)((word + 0x7FFFu + (word >> 16 & 1u)) >> 16);
}

/* Threads stride over the items of one run of rows of every group; each makes one item. `first_row`: the run's place in
 * a group of the slice. Any size. */
static __global__ void fill_kernel(fill_args_t args, fill_run_t run, int64_t first_row) {
    int64_t per_group = run.n_rows * args.n_columns, n = args.n_groups * per_group;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t group = i / per_group, row = i % per_group / args.n_columns, column = i % args.n_columns;
        int64_t whole_row = group * args.whole_group_rows + run.whole_row + row;
        int64_t item = whole_row * args.whole_columns + args.first_column + column;
        int64_t at = (group * args.group_rows + first_row + row) * args.n_columns + column;
        if (args.dtype == DTYPE_F32 || args.dtype == DTYPE_BF16 || args.dtype == DTYPE_F16) {
            uint64_t word = fill_block(args.rule.key, (uint64_t)item / FILL_BLOCK_NUMBERS);
            float value = fill_number(&args.rule, word, (int)(item % FILL_BLOCK_NUMBERS));
            if (args.dtype == DTYPE_F32)
                ((float *)args.data)[at] = value;
            else if (args.dtype == DTYPE_BF16)
                ((uint16_t *)args.data)[at] = bf16_bits(value);
            else
                ((__half *)args.data)[at] = __float2half_rn(value);
        } else {
            uint64_t word = fill_block(args.rule.key, (uint64_t)item / FILL_BLOCK_BYTES);
            ((uint8_t *)args.data)[at] = fill_byte(&args.rule, word, (int)(item % FILL_BLOCK_BYTES));
        }
    }
}

status_t launch_fill(const fill_args_t *args, const device_queue_t *queue) {
    if (args->dtype == DTYPE_I32 || args->dtype == DTYPE_I64)
        return status_fail(STATUS_USAGE, "fill makes no items of this type");
    int64_t first_row = 0;
    for (int run = 0; run < args->n_runs; run++) {
        if (args->runs[run].n_rows > 0)
            fill_kernel<<<(unsigned int)queue->n_sms * 16, 256, 0, queue->stream>>>(*args, args->runs[run], first_row);
        first_row += args->runs[run].n_rows;
    }
    return queue_check_launch("fill");
}
