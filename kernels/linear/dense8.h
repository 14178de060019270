#ifndef GALVANI_KERNELS_LINEAR_DENSE8_H
#define GALVANI_KERNELS_LINEAR_DENSE8_H

/* Dense projections in 8 bits, made from FP16 at load.
 *
 * DTYPE_Q8:   w = code * scale; INT8 codes from -127 to 127, row-major [rows, columns]; one FP16 scale for each 64
 *             columns of a row, max |w| / 127 rounded to FP16; the code is round(w / scale) with the rounded scale.
 * DTYPE_QPN8: w = code * scale; E4M3 codes, row-major [rows, columns]; one FP32 scale for each row, max |w| / 448.
 *
 * A code is never NaN: a group or row with a NaN or Inf has a NaN for its scale, so that all of it becomes NaN. A group
 * or row of zeros has scale 0. */

#include <stddef.h>

#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DENSE8_GROUP = 64 };

static inline bool dense8_is_format(dtype_t dtype) { return dtype == DTYPE_Q8 || dtype == DTYPE_QPN8; }

/* Scales of a row. */
static inline int64_t dense8_row_scales(dtype_t dtype, int64_t columns) {
    return dtype == DTYPE_Q8 ? (columns + DENSE8_GROUP - 1) / DENSE8_GROUP : 1;
}

/* Memory of a matrix: codes, then from the next multiple of 16 bytes on the scales. */
size_t dense8_bytes(dtype_t dtype, int64_t rows, int64_t columns);

/* The matrix that lies, or is to lie, in `memory` of dense8_bytes. */
matrix_t dense8_matrix(dtype_t dtype, int64_t rows, int64_t columns, void *memory);

typedef struct dense8_args {
    matrix_t source, target; /* of one shape; the 8-bit one is that of dense8_matrix, the other FP16 */
    double *errors;          /* [DENSE8_ERRORS] or NULL: see dense8_quantize */
} dense8_args_t;

/* The 8-bit `target` from the FP16 `source`; CPU and CUDA give the same bits, NaNs apart. Adds the squares of all
 * w - code * scale to errors[0] and of all w to errors[1]; what is behind those two is scratch. */
enum { DENSE8_ERROR_BLOCKS = 256, DENSE8_ERRORS = 2 + 2 * DENSE8_ERROR_BLOCKS };
status_t dense8_quantize_cpu(const dense8_args_t *args);
status_t launch_dense8_quantize(const dense8_args_t *args, const device_queue_t *queue);

/* The FP16 `target` from the 8-bit `source`: code * scale, rounded. For products of many tokens. */
status_t dense8_dequantize_cpu(const dense8_args_t *args);
status_t launch_dense8_dequantize(const dense8_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
