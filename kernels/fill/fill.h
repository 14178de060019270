#ifndef GALVANI_KERNELS_FILL_H
#define GALVANI_KERNELS_FILL_H

/* Made-up weights: every item of a tensor from its place in the whole tensor and a key, the same on every rank and
 * backend. */

#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FILL_MAX_RUNS = 3 };

/* Item i of a made-up dataset, a function of the rule and of i alone. With `lane` the item's 8 or 16 random bits
 * (fill_value.h):
 *   items of one byte:  (lane & mask) + offset, which must not leave the byte
 *   BF16, F16, F32:     ((lane & mask) + offset) * unit, in FP32, rounded to the type, ties to even */
typedef struct fill_rule {
    uint64_t key; /* names the dataset */
    uint32_t mask;
    int32_t offset;
    float unit;
} fill_rule_t;

/* Rows of the whole dataset that stand together in a slice. */
typedef struct fill_run {
    int64_t n_rows, whole_row; /* whole_row: the first one's place within its group of the whole */
} fill_run_t;

/* A rank's slice of a dataset of n_groups equal groups of rows (the experts; else one group). The slice holds the same
 * rows of each group, and of each row the columns from first_column on. */
typedef struct fill_args {
    fill_rule_t rule;
    dtype_t dtype; /* any but I32 and I64 */
    int64_t n_groups;
    int64_t group_rows;       /* of a group in the slice: the sum of the runs' n_rows */
    int64_t whole_group_rows; /* of a group in the whole */
    int n_runs;
    fill_run_t runs[FILL_MAX_RUNS];
    int64_t n_columns, first_column; /* of a row in the slice */
    int64_t whole_columns;           /* of a row in the whole */
    void *data;                      /* [n_groups, group_rows, n_columns] */
} fill_args_t;

/* STATUS_USAGE for another type. */
status_t fill_cpu(const fill_args_t *args);
status_t launch_fill(const fill_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
