#ifndef GALVANI_CLI_GENERATE_H
#define GALVANI_CLI_GENERATE_H

/* One request from prompt to run file. Collective. */

#include "cli/requests.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "text/generation_config.h"
#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all requests share. Members marked "rank 0" are NULL elsewhere. */
typedef struct generate_context {
    engine_t *engine;
    comm_t *comm;
    backend_t *backend;
    generation_config_t stops;
    const tokenizer_t *tokenizer; /* rank 0; NULL if the model has none */
    const char *command_line;     /* rank 0 */
} generate_context_t;

/* Generates for one request: streams the text to stdout, writes the run file to `path` (rank 0; NULL: none) and the
 * summary to stderr. `request` is rank 0's; the others get what they need from it. Every rank returns the same status.
 * After a failure the run file holds every step that was done. */
status_t generate(const generate_context_t *context, const request_t *request, const char *path);

#ifdef __cplusplus
}
#endif
#endif
