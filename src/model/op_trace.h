#ifndef GALVANI_MODEL_OP_TRACE_H
#define GALVANI_MODEL_OP_TRACE_H

/* Where a step's time goes on one rank. Every op of the step reports its begin and end here; the time between ops
 * belongs to no op and ends up in host_gap. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The groups of /decomposition in a run file. */
typedef enum op_group {
    OP_GROUP_GR,
    OP_GROUP_GDN_CORE,
    OP_GROUP_QSA,
    OP_GROUP_PROJECTIONS,
    OP_GROUP_ROUTER,
    OP_GROUP_EXPERTS,
    OP_GROUP_SHARED_EXPERT,
    OP_GROUP_COMM,
    OP_GROUP_LM_HEAD,
    OP_GROUP_SAMPLING,
    OP_GROUP_PLE,
    OP_GROUP_OTHER,
    OP_GROUP_HOST_GAP,
    OP_N_GROUPS
} op_group_t;

const char *op_group_name(op_group_t group);

/* One operator of one step. `op` is a string constant. */
typedef struct op_record {
    int32_t layer; /* -1 outside the layers */
    op_group_t group;
    const char *op;
    int64_t start_ns, dur_ns;
} op_record_t;

typedef struct op_trace {
    int64_t group_ns[OP_N_GROUPS]; /* of the current step */
    bool keep_records;
    op_record_t *records; /* [capacity], of the current step; NULL unless keep_records */
    size_t n_records, capacity;
    int64_t begin_ns; /* of the op now running */
} op_trace_t;

status_t op_trace_create(bool keep_records, op_trace_t **trace);
void op_trace_destroy(op_trace_t *trace); /* NULL is allowed */

/* Forgets the last step. */
void op_trace_reset(op_trace_t *trace);

/* Begin and end of one op; the end is a sign of life (base/heartbeat.h). Ops do not nest. A record that finds no room
 * is dropped from the records, never from the sums. */
void op_trace_begin(op_trace_t *trace);
void op_trace_end(op_trace_t *trace, op_group_t group, int32_t layer, const char *op);

#ifdef __cplusplus
}
#endif
#endif
