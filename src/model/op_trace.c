#include "model/op_trace.h"

#include <string.h>

#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/memory.h"

/* A step has about 25 ops a layer. */
enum { RECORDS = 65536 };

const char *op_group_name(op_group_t group) {
    static const char *const names[OP_N_GROUPS] = {
        [OP_GROUP_GR] = "gr",
        [OP_GROUP_GDN_CORE] = "gdn_core",
        [OP_GROUP_QSA] = "qsa",
        [OP_GROUP_PROJECTIONS] = "projections",
        [OP_GROUP_ROUTER] = "router",
        [OP_GROUP_EXPERTS] = "experts",
        [OP_GROUP_SHARED_EXPERT] = "shared_expert",
        [OP_GROUP_COMM] = "comm",
        [OP_GROUP_LM_HEAD] = "lm_head",
        [OP_GROUP_SAMPLING] = "sampling",
        [OP_GROUP_PLE] = "ple",
        [OP_GROUP_OTHER] = "other",
        [OP_GROUP_HOST_GAP] = "host_gap",
    };
    return names[group];
}

status_t op_trace_create(bool keep_records, op_trace_t **trace) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(op_trace_t), &memory));
    op_trace_t *created = memory;
    if (keep_records) {
        status_t status = memory_alloc(MEMORY_OTHER, RECORDS, sizeof(op_record_t), &memory);
        if (status != STATUS_OK) {
            memory_free(created);
            return status;
        }
        created->records = memory;
        created->capacity = RECORDS;
        created->keep_records = true;
    }
    *trace = created;
    return STATUS_OK;
}

void op_trace_destroy(op_trace_t *trace) {
    if (!trace) return;
    memory_free(trace->records);
    memory_free(trace);
}

void op_trace_reset(op_trace_t *trace) {
    memset(trace->group_ns, 0, sizeof trace->group_ns);
    trace->n_records = 0;
}

void op_trace_begin(op_trace_t *trace) { trace->begin_ns = clock_now_ns(); }

void op_trace_end(op_trace_t *trace, op_group_t group, int32_t layer, const char *op) {
    heartbeat();
    int64_t dur_ns = clock_now_ns() - trace->begin_ns;
    trace->group_ns[group] += dur_ns;
    if (trace->n_records == trace->capacity) return;
    trace->records[trace->n_records++] =
        (op_record_t){.layer = layer, .group = group, .op = op, .start_ns = trace->begin_ns, .dur_ns = dur_ns};
}
