#ifndef GALVANI_CLI_LOAD_H
#define GALVANI_CLI_LOAD_H

/* From options to a model that computes: what the subcommands share. */

#include "checkpoint/config.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The config alone, without weights: of synthetic:NAME, of a config.json, or of a directory that has one. Not
 * collective. */
status_t load_config(const char *model, model_config_t *config);

/* Rank 0's look at options->model before it is loaded on `tp_size` ranks: its config, and its tokenizer, NULL if it has
 * none (tokenizer_destroy). STATUS_INPUT if they are of two models. Not collective. */
status_t load_facts(const options_t *options, int tp_size, model_config_t *config, tokenizer_t **tokenizer);

typedef struct load_args {
    const options_t *options;
    comm_t *comm; /* borrowed for the engine's life */
    int64_t max_context;
    int32_t n_valid_tokens;
} load_args_t;

/* The backend and the engine that the options ask for, with their routes set; says how long it took. Collective. The
 * caller ends them in the opposite order, also after a failure, where either may be NULL. */
status_t load_engine(const load_args_t *args, backend_t **backend, engine_t **engine);

/* Sets every route as the options ask, those not named to on. STATUS_USAGE for a route that there is not. */
status_t load_routes(const options_t *options, engine_t *engine);

#ifdef __cplusplus
}
#endif
#endif
