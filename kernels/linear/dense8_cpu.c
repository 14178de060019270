#include "linear/dense8.h"

#include <math.h>
#include <stdint.h>

static size_t scales_offset(int64_t rows, int64_t columns) { return ((size_t)(rows * columns) + 15) & ~(size_t)15; }

size_t dense8_bytes(dtype_t dtype, int64_t rows, int64_t columns) {
    size_t scale_bytes = dtype == DTYPE_Q8 ? sizeof(uint16_t) : sizeof(float);
    return scales_offset(rows, columns) + (size_t)(rows * dense8_row_scales(dtype, columns)) * scale_bytes;
}

matrix_t dense8_matrix(dtype_t dtype, int64_t rows, int64_t columns, void *memory) {
    return (matrix_t){.data = memory,
                      .dtype = dtype,
                      .rows = rows,
                      .columns = columns,
                      .scales = (char *)memory + scales_offset(rows, columns)};
}

/* NaN if one of the values is NaN or Inf. */
static float largest(const uint16_t *values, int64_t n) {
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(f16_to_float(values[i]));
        if (!isfinite(magnitude)) return NAN;
        most = fmaxf(most, magnitude);
    }
    return most;
}

static void quantize_q8(const uint16_t *values, int64_t n, int8_t *codes, uint16_t *scale) {
    *scale = f16_from_float(largest(values, n) / 127.0f);
    float rounded = f16_to_float(*scale);
    for (int64_t i = 0; i < n; i++) {
        float code = rounded > 0.0f ? rintf(f16_to_float(values[i]) / rounded) : 0.0f;
        codes[i] = (int8_t)fminf(fmaxf(code, -127.0f), 127.0f);
    }
}

static void quantize_qpn8(const uint16_t *values, int64_t n, uint8_t *codes, float *scale) {
    *scale = largest(values, n) / 448.0f;
    for (int64_t i = 0; i < n; i++)
        codes[i] = *scale > 0.0f ? e4m3_from_float(f16_to_float(values[i]) / *scale) : 0;
}

static float value_of(const matrix_t *matrix, int64_t row, int64_t column) {
    uint8_t code = ((const uint8_t *)matrix->data)[row * matrix->columns + column];
    if (matrix->dtype == DTYPE_QPN8) return e4m3_values[code] * ((const float *)matrix->scales)[row];
    int64_t n_scales = dense8_row_scales(matrix->dtype, matrix->columns);
    return (float)(int8_t)code *
           f16_to_float(((const uint16_t *)matrix->scales)[row * n_scales + column / DENSE8_GROUP]);
}

static void add_errors(const dense8_args_t *args) {
    const matrix_t *source = &args->source;
    for (int64_t i = 0; i < source->rows * source->columns; i++) {
        float value = f16_to_float(((const uint16_t *)source->data)[i]);
        float difference = value - value_of(&args->target, i / source->columns, i % source->columns);
        args->errors[0] += (double)difference * (double)difference;
        args->errors[1] += (double)value * (double)value;
    }
}

status_t dense8_quantize_cpu(const dense8_args_t *args) {
    int64_t columns = args->source.columns, n_scales = dense8_row_scales(args->target.dtype, columns);
    const uint16_t *source = args->source.data;
    uint8_t *codes = (uint8_t *)(uintptr_t)args->target.data;
    void *scales = (void *)(uintptr_t)args->target.scales;
    for (int64_t row = 0; row < args->source.rows; row++) {
        if (args->target.dtype == DTYPE_QPN8) {
            quantize_qpn8(source + row * columns, columns, codes + row * columns, (float *)scales + row);
            continue;
        }
        for (int64_t i = 0; i < columns; i += DENSE8_GROUP) {
            int64_t at = row * columns + i, n = columns - i < DENSE8_GROUP ? columns - i : DENSE8_GROUP;
            quantize_q8(source + at, n, (int8_t *)codes + at, (uint16_t *)scales + row * n_scales + i / DENSE8_GROUP);
        }
    }
    if (args->errors) add_errors(args);
    return STATUS_OK;
}

status_t dense8_dequantize_cpu(const dense8_args_t *args) {
    int64_t columns = args->source.columns;
    uint16_t *target = (uint16_t *)(uintptr_t)args->target.data;
    for (int64_t i = 0; i < args->source.rows * columns; i++)
        target[i] = f16_from_float(value_of(&args->source, i / columns, i % columns));
    return STATUS_OK;
}
