#ifndef GALVANI_MODEL_MEMORY_PLAN_H
#define GALVANI_MODEL_MEMORY_PLAN_H

/* What one rank of a model will take, known from the config before anything is allocated. Nothing here needs a device:
 * of the backend only the sizes in its table are read. */

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/dense.h"
#include "model/shape.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weights by what they serve; the PLE table is apart (MEMORY_PLE_TABLE). */
typedef enum weight_group {
    WEIGHTS_EMBED,
    WEIGHTS_LM_HEAD,
    WEIGHTS_GR,
    WEIGHTS_GDN,
    WEIGHTS_QSA,
    WEIGHTS_ROUTER,
    WEIGHTS_EXPERTS,
    WEIGHTS_SHARED_EXPERT,
    WEIGHTS_PLE,
    WEIGHTS_N_GROUPS
} weight_group_t;

const char *weight_group_name(weight_group_t group);

enum { MEMORY_PLAN_LEAST_CHUNK = 1024 };

typedef struct memory_plan_args {
    const model_config_t *config;
    const schema_tensor_t *tensors; /* [n_tensors]: the rank's */
    size_t n_tensors;
    dense_form_t dense; /* of the dense projections */
    local_shape_t local;
    const backend_ops_t *ops;
    int64_t max_context;   /* tokens */
    int64_t prefill_chunk; /* tokens; 0: the backend's own, or half of it and so on down to MEMORY_PLAN_LEAST_CHUNK, if
                              the plan then fits what is available */
    size_t available;      /* bytes of the backend's memory; 0: not known */
    bool record;           /* decode is recorded (step_args_t) */
} memory_plan_args_t;

/* Bytes. */
typedef struct memory_plan {
    size_t needed[MEMORY_N_LABELS]; /* MEMORY_WEIGHTS is the sum of `weights`; MEMORY_OTHER what allocations of them are
                                       rounded up by */
    size_t weights[WEIGHTS_N_GROUPS];
    size_t runtime;        /* what the backend's libraries take besides */
    size_t backend;        /* all of it that lies in the backend's memory */
    size_t host;           /* and in host memory, where that is another */
    int64_t prefill_chunk; /* at most max_context */
} memory_plan_t;

/* STATUS_MEMORY if a size does not fit in 64 bits. */
status_t memory_plan_make(const memory_plan_args_t *args, memory_plan_t *plan);

/* The largest context whose plan fits `available` bytes of the backend's memory, up to max_position_embeddings; 0 if
 * not one token does. args->max_context and args->available are not read. */
status_t memory_plan_largest_context(const memory_plan_args_t *args, size_t available, int64_t *max_context);

#ifdef __cplusplus
}
#endif
#endif
