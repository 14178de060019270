#ifndef GALVANI_TRACE_PLOT_H
#define GALVANI_TRACE_PLOT_H

/* Pictures of a run file, SVG or PNG. */

#include "trace/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plot_kind {
    PLOT_TPOT,          /* time of each step */
    PLOT_DECOMPOSITION, /* mean parts of a token, a bar a rank */
    PLOT_TIMELINE,      /* the operators of one step on all ranks; needs a run with --trace ops */
} plot_kind_t;

typedef struct plot_args {
    const run_record_t *record; /* loaded with its ops */
    plot_kind_t kind;
    int64_t skip;     /* as summary_first_step */
    int64_t step;     /* of the timeline; negative: the one of median duration */
    const char *name; /* of the run, for the title */
    const char *path; /* ends with .svg or .png */
} plot_args_t;

/* STATUS_USAGE if there is nothing to draw, STATUS_DEVICE if the file cannot be written. */
status_t plot_write(const plot_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
