/* Blocks of rows x tokens, one thread each. Order of summation: common/dot.h. */

#include "linear/linear.h"

#include "common/dot.h"
#include "common/parallel.h"

status_t linear_cpu(const linear_args_t *args) {
    int64_t n_rows = args->weight.rows, n_columns = args->weight.columns;
    dtype_t dtype = args->weight.dtype;
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_F16)
        return status_fail(STATUS_INPUT, "a projection is stored as %s; it must be BF16, F16 or F32",
                           dtype_name(dtype));
    float *out = args->y_f32 ? args->y_f32 : args->y;
    dot_weights_t weights = {.data = args->weight.data, .dtype = dtype, .columns = n_columns};
#pragma omp parallel for collapse(2) if (args->n_tokens * n_rows * n_columns >= PARALLEL_MIN_WORK)
    for (int64_t token = 0; token < args->n_tokens; token += PARALLEL_TOKENS) {
        for (int64_t row = 0; row < n_rows; row += PARALLEL_ROWS) {
            const float *x[PARALLEL_TOKENS];
            float *y[PARALLEL_TOKENS];
            int64_t n = 0;
            for (; n < PARALLEL_TOKENS && token + n < args->n_tokens; n++) {
                x[n] = args->x + (token + n) * n_columns;
                y[n] = out + (token + n) * n_rows + row;
            }
            dot_rows(&weights, row, row + PARALLEL_ROWS <= n_rows ? PARALLEL_ROWS : n_rows - row, x, n, y);
        }
    }
    return STATUS_OK;
}
