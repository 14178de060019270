#ifndef GALVANI_MODEL_OP_TRACE_H
#define GALVANI_MODEL_OP_TRACE_H

/* Where a step's time goes on one rank. Every op of the step reports its begin and end here; the time between ops
 * belongs to no op and ends up in host_gap.
 *
 * Where ops are done when they return, the host's clock times them. Where they are only queued (a backend with `mark`),
 * the device stamps the time behind each op, an op's time is that from the stamp before, and the stamps are read once a
 * step (op_trace_collect). A step may be traced without them between its first and its last: its time is then shared
 * out as that of the last step with all stamps, less what a stamp costs, which is what makes the one step longer than
 * the other, divided by the number of stamps. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
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

typedef enum op_trace_level {
    OP_TRACE_OFF,   /* no times at all */
    OP_TRACE_STEPS, /* the sums of each step */
    OP_TRACE_OPS,   /* and a record of each operator */
} op_trace_level_t;

/* "off", "steps" or "ops"; OP_TRACE_OFF for anything else. */
op_trace_level_t op_trace_level_from_name(const char *name);

/* One operator of one step. `op` is a string constant. */
typedef struct op_record {
    int32_t layer; /* -1 outside the layers */
    op_group_t group;
    const char *op;
    int64_t start_ns, dur_ns;
} op_record_t;

/* What the device's stamp number i stands behind. */
typedef struct op_mark {
    int32_t layer;
    op_group_t group;
    const char *op;
} op_mark_t;

typedef struct op_trace {
    op_trace_level_t level;
    int64_t group_ns[OP_N_GROUPS]; /* of the current step */
    op_record_t *records;          /* [capacity], of the current step; NULL before OP_TRACE_OPS was asked for */
    size_t n_records, capacity;
    int64_t begin_ns; /* of the op now running; with stamps, of the step */

    backend_t *device;       /* NULL: the host's clock times the ops */
    bool is_detailed;        /* every op is stamped */
    bool is_quiet;           /* none is: the step's time will be known otherwise (op_trace_share) */
    int64_t n_decoded;       /* decode steps that were begun since the level was set */
    op_mark_t *marks;        /* [BACKEND_MAX_MARKS]; [0] is the step's begin */
    int64_t *mark_ns;        /* [BACKEND_MAX_MARKS] */
    size_t n_marks;          /* of the stamps that were not read yet */
    bool are_marks_detailed; /* they are of a step that is detailed */
    struct {
        int64_t ns, n;
    } detail[OP_N_GROUPS]; /* time and number of the ops in the last decode step that was detailed */
    status_t status;       /* of the stamps since the last op_trace_collect */
} op_trace_t;

/* `backend` is borrowed. The level is OP_TRACE_STEPS. */
status_t op_trace_create(backend_t *backend, op_trace_t **trace);
void op_trace_destroy(op_trace_t *trace); /* NULL is allowed */

/* To be called before each generation: what is known of steps so far no longer stands for those to come. STATUS_MEMORY:
 * there is no room for records, and the level stays. */
status_t op_trace_set_level(op_trace_t *trace, op_trace_level_t level);

/* Forgets the last step's times; stamps that were not read yet are another step's. */
void op_trace_reset(op_trace_t *trace);

/* Forgets the stamps that were not read. */
void op_trace_drop(op_trace_t *trace);

/* Begin and end of one op; the end is a sign of life (base/heartbeat.h). Ops do not nest. A record that finds no room
 * is dropped from the records, never from the sums. */
void op_trace_begin(op_trace_t *trace);
void op_trace_end(op_trace_t *trace, op_group_t group, int32_t layer, const char *op);

/* The same for work of the host alone, which a device has no stamp for. */
void op_trace_end_host(op_trace_t *trace, op_group_t group, const char *op);

/* A stamp behind queued work, also where the step is not detailed: its last one gives the step's time. */
void op_trace_stamp(op_trace_t *trace, op_group_t group, const char *op);

/* Ops that were stamped while they were recorded run again: they take the next stamps. */
void op_trace_replay(op_trace_t *trace, const op_mark_t *marks, size_t n_marks);

/* Reads the stamps once the device has made them. `is_decode`: the step's shares may stand for later ones. */
status_t op_trace_collect(op_trace_t *trace, bool is_decode);

/* A step without stamps took total_ns on the device. */
void op_trace_share(op_trace_t *trace, int64_t total_ns);

#ifdef __cplusplus
}
#endif
#endif
