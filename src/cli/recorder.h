#ifndef GALVANI_CLI_RECORDER_H
#define GALVANI_CLI_RECORDER_H

/* Turns the steps of a generation into rows of its run file. Collective: every rank brings its times, rank 0 writes. */

#include "comm/comm.h"
#include "engine/engine.h"
#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct recorder recorder_t;

typedef struct recorder_args {
    comm_t *comm;                /* borrowed */
    engine_t *engine;            /* borrowed */
    int64_t start_ns;            /* rank 0's clock at the start of the request, on every rank */
    op_trace_level_t trace;      /* what to record of time */
    const run_file_args_t *file; /* rank 0; NULL for no run file, and elsewhere */
} recorder_args_t;

/* The engine's routes as the steps so far took them; the engine's texts, until it is asked again. */
enum { RECORDER_MAX_ROUTES = 64 };
size_t recorder_routes(engine_t *engine, run_route_t routes[RECORDER_MAX_ROUTES]);

/* STATUS_DEVICE (rank 0) if the run file cannot be created. Every rank gets a recorder or none: the outcome is agreed
 * on. */
status_t recorder_create(const recorder_args_t *args, recorder_t **recorder);

/* Adds one step: `sample` is what engine_sample gave, `begin_ns` and `end_ns` are this rank's clock. Resets the
 * engine's op trace. A failure to write is rank 0's alone; it hands it to the next engine_sample as `outside`. */
status_t recorder_add(recorder_t *recorder, const sample_t *sample, int64_t begin_ns, int64_t end_ns);

/* Closes the run file as complete. `text` is rank 0's, NULL without a tokenizer. Rank 0's status. */
status_t recorder_finish(recorder_t *recorder, const char *text, size_t text_bytes, const char *stop_reason);

/* What this rank holds now. */
run_memory_t recorder_memory(void);

/* Frees; a file that was not finished stays readable as incomplete. NULL is allowed. Not collective. */
void recorder_destroy(recorder_t *recorder);

#ifdef __cplusplus
}
#endif
#endif
