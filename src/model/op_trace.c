#include "model/op_trace.h"

#include <math.h>
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

op_trace_level_t op_trace_level_from_name(const char *name) {
    if (strcmp(name, "ops") == 0) return OP_TRACE_OPS;
    return strcmp(name, "steps") == 0 ? OP_TRACE_STEPS : OP_TRACE_OFF;
}

static status_t alloc_marks(backend_t *backend, op_trace_t *trace) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, BACKEND_MAX_MARKS, sizeof(op_mark_t), &memory));
    trace->marks = memory;
    TRY(memory_alloc(MEMORY_OTHER, BACKEND_MAX_MARKS, sizeof(int64_t), &memory));
    trace->mark_ns = memory;
    trace->device = backend;
    trace->is_detailed = true;
    return STATUS_OK;
}

status_t op_trace_create(backend_t *backend, op_trace_t **trace) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(op_trace_t), &memory));
    op_trace_t *created = memory;
    created->level = OP_TRACE_STEPS;
    status_t status = backend->ops->mark ? alloc_marks(backend, created) : STATUS_OK;
    if (status != STATUS_OK) {
        op_trace_destroy(created);
        return status;
    }
    *trace = created;
    return STATUS_OK;
}

status_t op_trace_set_level(op_trace_t *trace, op_trace_level_t level) {
    if (level == OP_TRACE_OPS && !trace->records) {
        void *memory;
        TRY(memory_alloc(MEMORY_OTHER, RECORDS, sizeof(op_record_t), &memory));
        trace->records = memory;
        trace->capacity = RECORDS;
    }
    trace->level = level;
    trace->n_decoded = 0;
    return STATUS_OK;
}

void op_trace_destroy(op_trace_t *trace) {
    if (!trace) return;
    memory_free(trace->records);
    memory_free(trace->marks);
    memory_free(trace->mark_ns);
    memory_free(trace);
}

void op_trace_reset(op_trace_t *trace) {
    memset(trace->group_ns, 0, sizeof trace->group_ns);
    trace->n_records = 0;
}

void op_trace_drop(op_trace_t *trace) { trace->n_marks = 0; }

static void keep_record(op_trace_t *trace, op_record_t record) {
    trace->group_ns[record.group] += record.dur_ns;
    if (trace->level == OP_TRACE_OPS && trace->n_records < trace->capacity) trace->records[trace->n_records++] = record;
}

/* Past the last stamp, ops count as part of the next that has one. */
static void stamp(op_trace_t *trace, op_mark_t mark) {
    if (trace->level == OP_TRACE_OFF || trace->is_quiet) return;
    if (trace->n_marks == BACKEND_MAX_MARKS || trace->status != STATUS_OK) return;
    if (trace->n_marks == 0) trace->are_marks_detailed = trace->is_detailed;
    trace->marks[trace->n_marks] = mark;
    trace->status = trace->device->ops->mark(trace->device, trace->n_marks++);
}

void op_trace_begin(op_trace_t *trace) {
    if (trace->level == OP_TRACE_OFF || (trace->device && trace->n_marks > 0)) return;
    trace->begin_ns = clock_now_ns();
    if (trace->device) stamp(trace, (op_mark_t){.layer = -1});
}

void op_trace_end(op_trace_t *trace, op_group_t group, int32_t layer, const char *op) {
    heartbeat();
    if (trace->level == OP_TRACE_OFF) return;
    if (trace->device) {
        if (trace->is_detailed) stamp(trace, (op_mark_t){.layer = layer, .group = group, .op = op});
        return;
    }
    keep_record(trace, (op_record_t){.layer = layer,
                                     .group = group,
                                     .op = op,
                                     .start_ns = trace->begin_ns,
                                     .dur_ns = clock_now_ns() - trace->begin_ns});
}

void op_trace_end_host(op_trace_t *trace, op_group_t group, const char *op) {
    if (!trace->device) op_trace_end(trace, group, -1, op);
}

void op_trace_stamp(op_trace_t *trace, op_group_t group, const char *op) {
    if (trace->device) stamp(trace, (op_mark_t){.layer = -1, .group = group, .op = op});
}

void op_trace_replay(op_trace_t *trace, const op_mark_t *marks, size_t n_marks) {
    if (n_marks > 0 && trace->n_marks == 0) { /* its begin is one of them */
        trace->begin_ns = clock_now_ns();
        trace->are_marks_detailed = trace->is_detailed;
    }
    memcpy(trace->marks + trace->n_marks, marks, n_marks * sizeof *marks);
    trace->n_marks += n_marks;
}

/* Stamps make a step longer, never shorter. */
void op_trace_share(op_trace_t *trace, int64_t total_ns) {
    int64_t detail_ns = 0, n = 0;
    double parts[OP_N_GROUPS], sum = 0;
    for (int group = 0; group < OP_N_GROUPS; group++) {
        detail_ns += trace->detail[group].ns;
        n += trace->detail[group].n;
    }
    double stamp_ns = n > 0 && detail_ns > total_ns ? (double)(detail_ns - total_ns) / (double)n : 0;
    for (int group = 0; group < OP_N_GROUPS; group++) {
        parts[group] = fmax(0, (double)trace->detail[group].ns - stamp_ns * (double)trace->detail[group].n);
        sum += parts[group];
    }
    for (int group = 0; group < OP_N_GROUPS && sum > 0; group++)
        trace->group_ns[group] += (int64_t)((double)total_ns * parts[group] / sum);
}

static void remember_detail(op_trace_t *trace, size_t n_marks) {
    memset(trace->detail, 0, sizeof trace->detail);
    for (size_t i = 1; i < n_marks; i++) {
        op_group_t group = trace->marks[i].group;
        trace->detail[group].ns += trace->mark_ns[i] - trace->mark_ns[i - 1];
        trace->detail[group].n++;
    }
}

status_t op_trace_collect(op_trace_t *trace, bool is_decode) {
    if (!trace->device || trace->n_marks < 2) return STATUS_OK;
    status_t status = trace->status;
    trace->status = STATUS_OK;
    TRY(status);
    size_t n = trace->n_marks;
    trace->n_marks = 0;
    TRY(trace->device->ops->read_marks(trace->device, n, trace->mark_ns));
    if (!trace->are_marks_detailed) {
        op_trace_share(trace, trace->mark_ns[n - 1]);
        return STATUS_OK;
    }
    for (size_t i = 1; i < n; i++)
        keep_record(trace, (op_record_t){.layer = trace->marks[i].layer,
                                         .group = trace->marks[i].group,
                                         .op = trace->marks[i].op,
                                         .start_ns = trace->begin_ns + trace->mark_ns[i - 1],
                                         .dur_ns = trace->mark_ns[i] - trace->mark_ns[i - 1]});
    if (is_decode) remember_detail(trace, n);
    return STATUS_OK;
}
