#ifndef GALVANI_CLI_PLAN_H
#define GALVANI_CLI_PLAN_H

/* --plan: the memory plan on stdout instead of a run. */

#include "backend/backend.h"
#include "cli/options.h"
#include "model/dense.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "auto", "cpu" or "cuda" (--backend). */
backend_kind_t plan_backend_kind(const char *name);

/* The form of the dense projections that the options ask for (--dense; --route and --control of dense8).
 * STATUS_USAGE for 8 bits where the backend has none. */
status_t plan_dense_form(const options_t *options, const backend_ops_t *ops, dense_form_t *form);

/* Prints what each rank of options->model takes at a context of `max_context` tokens, and which contexts fit, on
 * rank 0. The model is a directory of shards for that many ranks, a checkpoint's directory, or synthetic:NAME. Works
 * without mpirun (--tp) and without the device (--device-memory). STATUS_MEMORY if it does not fit. Collective. */
status_t plan_print(const options_t *options, comm_t *comm, int64_t max_context);

#ifdef __cplusplus
}
#endif
#endif
