#ifndef GALVANI_CLI_GENERATE_H
#define GALVANI_CLI_GENERATE_H

/* One request from prompt to run file. Collective. */

#include "base/hash.h"
#include "cli/requests.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "text/generation_config.h"

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
    command_bit_t command;        /* whose options go into the run file */
    bool silent;                  /* neither text nor summary is printed */
} generate_context_t;

/* What a generation took, as this rank saw it. Times in ns. */
typedef struct generate_result {
    int64_t warmup;     /* set by the caller: steps that `group_ns` leaves out, at least 1 */
    int64_t *wall_ns;   /* the caller's, [max_new]: of each token's step; [0] is prefill and first token */
    int64_t prefill_ns; /* of wall_ns[0], until the logits were there */
    int64_t n_generated;
    int64_t group_ns[OP_N_GROUPS]; /* summed over the steps from `warmup` on */
    char token_hash[HASH_SHA256_TEXT_BYTES];
} generate_result_t;

/* Generates for one request: streams the text to stdout, writes the run file to `path` (rank 0; NULL: none) and the
 * summary to stderr. `request` is rank 0's; the others get what they need from it. Every rank returns the same status.
 * After a failure the run file holds every step that was done. `result` may be NULL. */
status_t generate(const generate_context_t *context, const request_t *request, const char *path,
                  generate_result_t *result);

#ifdef __cplusplus
}
#endif
#endif
