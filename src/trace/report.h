#ifndef GALVANI_TRACE_REPORT_H
#define GALVANI_TRACE_REPORT_H

#include <stdio.h>

#include "trace/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints the tables of one run: time per token, decomposition by rank, communication, skew, slowest steps. `skip`:
 * steps left out at the beginning, negative for the usual number (summary_first_step). `bytes_per_s`: of the device's
 * memory, for the share of the byte floor; 0: what the run file says, if it does. STATUS_MEMORY. */
status_t report_print(FILE *stream, const char *path, const run_record_t *record, int64_t skip, double bytes_per_s);

/* Prints what differs between two runs in set-up, then their times side by side, both over the steps that both have. */
status_t report_print_diff(FILE *stream, const char *const paths[2], const run_record_t *const records[2],
                           int64_t skip);

#ifdef __cplusplus
}
#endif
#endif
