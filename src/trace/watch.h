#ifndef GALVANI_TRACE_WATCH_H
#define GALVANI_TRACE_WATCH_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints the progress of a run from its file every `interval_ms` (on a terminal in one line, else a line a change)
 * until the run ends. STATUS_OK if it ends complete, STATUS_INPUT if it ends early or the file cannot be read. */
status_t watch_run(FILE *stream, const char *path, int64_t interval_ms);

#ifdef __cplusplus
}
#endif
#endif
