#ifndef GALVANI_BASE_MATRIX_H
#define GALVANI_BASE_MATRIX_H

#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weight matrix, row-major [rows, columns]: y = W x has `rows` outputs. On the CPU it is BF16 as stored (FP16 for
 * unquantised experts), on CUDA FP16, Q8 or QPN8. Does not own its data. */
typedef struct matrix {
    const void *data;
    dtype_t dtype;
    int64_t rows, columns;
    const void *scales; /* of Q8: FP16 [rows, ceil(columns / 64)]; of QPN8: FP32 [rows]; else NULL */
} matrix_t;

#ifdef __cplusplus
}
#endif
#endif
