#ifndef GALVANI_TRACE_EXPORT_H
#define GALVANI_TRACE_EXPORT_H

/* A run file as text that other programs read. */

#include "trace/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum export_format {
    /* Chrome's trace events as JSON, for ui.perfetto.dev and chrome://tracing: a process is a rank, a thread a group,
     * times are microseconds since the run's start. */
    EXPORT_PERFETTO,
    EXPORT_CSV,     /* a row a step and rank */
    EXPORT_OPS_CSV, /* a row an operator; needs a run with --trace ops */
} export_format_t;

/* Writes to the file `path` ("-" is stdout). `record` is loaded with its ops. STATUS_USAGE if the run has no ops and
 * the format needs them, STATUS_DEVICE if the file cannot be written. */
status_t export_write(const run_record_t *record, export_format_t format, const char *path);

#ifdef __cplusplus
}
#endif
#endif
