#ifndef GALVANI_TRACE_RUN_TABLES_H
#define GALVANI_TRACE_RUN_TABLES_H

/* The HDF5 side of a run file, which run_file.c drives from a thread of its own. Nothing here is for two threads at
 * once; HDF5 need not be either, so whoever has one of these makes all HDF5 calls of the process. What a call does not
 * say is as in trace/run_file.h. */

#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct run_tables run_tables_t;

/* Whether a run file may be made at `path`: nothing is there, or a regular file that is empty or HDF5's, in a directory
 * that can be written. STATUS_USAGE for another file, STATUS_DEVICE for the rest. Creates nothing. */
status_t run_tables_check_path(const char *path);

status_t run_tables_create(const run_file_args_t *args, run_tables_t **tables);

/* Rows become visible to readers with the next flush. After a failure no more are taken. */
status_t run_tables_append(run_tables_t *tables, const run_step_t *step);
status_t run_tables_append_ops(run_tables_t *tables, int64_t step, int rank, const op_record_t *records,
                               size_t n_records);
status_t run_tables_flush(run_tables_t *tables);

status_t run_tables_finish(run_tables_t *tables, const run_end_t *end);
void run_tables_abandon(run_tables_t *tables);

#ifdef __cplusplus
}
#endif
#endif
