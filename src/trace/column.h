#ifndef GALVANI_TRACE_COLUMN_H
#define GALVANI_TRACE_COLUMN_H

/* One extendible dataset of a run file: rows pend in memory and are written together. Messages name the file. */

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COLUMN_MAX_DIMS = 3 };

/* [rows, row_dims...] of `type`. */
typedef struct column_args {
    const char *dataset; /* path inside the file; its groups exist */
    hid_t type;          /* of one item, in memory and in the file; borrowed */
    int n_row_dims;
    hsize_t row_dims[COLUMN_MAX_DIMS - 1];
    const char *dims; /* what the dimensions are, "step, rank"; stored as an attribute */
    const char *unit; /* stored as an attribute; NULL: none */
    size_t max_rows;  /* most rows there can be, or a guess: bounds chunk and buffer */
} column_args_t;

/* Plain data; zeroed is closed. */
typedef struct column {
    const char *path; /* of the file; borrowed */
    hid_t dataset, type;
    int n_dims;
    hsize_t dims[COLUMN_MAX_DIMS]; /* in the file; [0] grows */
    size_t row_bytes, capacity, n_pending;
    unsigned char *pending; /* [capacity, row_bytes] */
} column_t;

/* Creates the dataset with no rows. STATUS_DEVICE, STATUS_MEMORY. `file_path` outlives the column. */
status_t column_create(hid_t file, const char *file_path, const column_args_t *args, column_t *column);

/* Keeps one row for the next column_write. There must be room. */
void column_append(column_t *column, const void *row);

/* Whether column_write must come before the next row. */
bool column_is_full(const column_t *column);

/* Most bytes by which column_write can make the file grow, its chunk index aside. */
size_t column_growth(const column_t *column);

/* Writes what is pending; the caller flushes the file. STATUS_DEVICE. */
status_t column_write(column_t *column);

/* Forgets what is pending. */
void column_close(column_t *column);

#ifdef __cplusplus
}
#endif
#endif
