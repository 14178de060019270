#include "common/widen.h"

void widen_row(const matrix_t *matrix, int64_t row, float *values) {
    int64_t n = matrix->columns;
    size_t offset = (size_t)row * (size_t)n * dtype_bytes(matrix->dtype);
    const uint8_t *bytes = (const uint8_t *)matrix->data + offset;
    const uint16_t *halves = (const uint16_t *)bytes;
    switch (matrix->dtype) {
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            values[i] = bf16_to_float(halves[i]);
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            values[i] = f16_to_float(halves[i]);
        break;
    case DTYPE_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            values[i] = e4m3_values[bytes[i]];
        break;
    default:
        memcpy(values, bytes, (size_t)n * sizeof *values);
        break;
    }
}
