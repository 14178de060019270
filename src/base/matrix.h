#ifndef GALVANI_BASE_MATRIX_H
#define GALVANI_BASE_MATRIX_H

#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weight matrix, row-major [rows, columns]: y = W x has `rows` outputs. On the CPU it is BF16 as stored (FP16 for
 * unquantised experts), on CUDA FP16. Does not own its data. */
typedef struct matrix {
    const void *data;
    dtype_t dtype;
    int64_t rows, columns;
} matrix_t;

#ifdef __cplusplus
}
#endif
#endif
