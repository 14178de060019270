#include "linear/dense8.h"

#include <math.h>
#include <stdint.h>

static size_t scales_offset(int64_t rows, int64_t columns) { return ((size_t)(rows * columns) + 255) & ~(size_t)255; }

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
    return STATUS_OK;
}

status_t dense8_dequantize_cpu(const dense8_args_t *args) {
    const matrix_t *source = &args->source;
    int64_t columns = source->columns, n_scales = dense8_row_scales(source->dtype, columns);
    const uint8_t *codes = source->data;
    uint16_t *target = (uint16_t *)(uintptr_t)args->target.data;
    for (int64_t i = 0; i < source->rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        float value = source->dtype == DTYPE_Q8
                          ? (float)(int8_t)codes[i] *
                                f16_to_float(((const uint16_t *)source->scales)[row * n_scales + column / DENSE8_GROUP])
                          : e4m3_values[codes[i]] * ((const float *)source->scales)[row];
        target[i] = f16_from_float(value);
    }
    return STATUS_OK;
}
