#ifndef GALVANI_TRACE_RUN_MEND_H
#define GALVANI_TRACE_RUN_MEND_H

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a run file whose writer died an ordinary HDF5 file: every object is copied to a new file, with as many rows as
 * all tables have, and the token_hash of those tokens; `stop_reason` becomes "killed" and `complete` stays 0. The new
 * file then takes the place of the old one. `*was_mended` is false if the file was closed and nothing had to be done.
 * STATUS_USAGE if its writer still lives, STATUS_INPUT if it cannot be read, STATUS_DEVICE if it cannot be written. */
status_t run_mend(const char *path, bool *was_mended);

#ifdef __cplusplus
}
#endif
#endif
