#ifndef GALVANI_TRACE_RUN_HEADER_H
#define GALVANI_TRACE_RUN_HEADER_H

#include <hdf5.h>

#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes into a new run file what is known before the first step: root attributes, groups, prompt and routes.
 * STATUS_DEVICE, STATUS_MEMORY. */
status_t run_header_write(hid_t file, const run_file_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
