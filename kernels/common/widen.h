#ifndef GALVANI_KERNELS_COMMON_WIDEN_H
#define GALVANI_KERNELS_COMMON_WIDEN_H

#include "base/matrix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* values[i] = matrix[row, i] as FP32, exactly; BF16, F16, F8_E4M3 or F32. */
void widen_row(const matrix_t *matrix, int64_t row, float *values);

#ifdef __cplusplus
}
#endif
#endif
