#include "trace/export.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static double us(int64_t ns) { return (double)ns / 1e3; }

/* Prints a name of at most `bytes` bytes so that JSON and CSV may hold it as it is. */
static void put_name(FILE *stream, const char *name, size_t bytes) {
    for (size_t i = 0; i < bytes && name[i]; i++) {
        char c = name[i];
        fputc(c < ' ' || c > '~' || c == '"' || c == '\\' || c == ',' ? '?' : c, stream);
    }
}

/* Thread 0 of a rank shows the steps, the others the groups. */
static int group_thread(const char *group) {
    for (int i = 0; i < OP_N_GROUPS; i++)
        if (strncmp(group, op_group_name((op_group_t)i), RUN_GROUP_BYTES) == 0) return 1 + i;
    return 1 + OP_GROUP_OTHER;
}

static void put_metadata(FILE *stream, int64_t rank, int thread, const char *what, const char *name) {
    fprintf(stream,
            "{\"ph\": \"M\", \"pid\": %" PRId64 ", \"tid\": %d, \"name\": \"%s\", \"args\": {\"name\": \"%s\"}},\n",
            rank, thread, what, name);
}

static void put_steps(FILE *stream, const run_record_t *record, int64_t rank) {
    for (size_t step = 0; step < record->n_steps; step++) {
        fprintf(stream,
                ",\n{\"ph\": \"X\", \"pid\": %" PRId64 ", \"tid\": 0, \"cat\": \"step\", \"name\": \"%s %zu\", "
                "\"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %zu, \"token\": %" PRId32 "}}",
                rank, step ? "decode" : "prefill", step, us(record->start_ns[step]), us(record->wall_ns[step]), step,
                record->generated[step]);
        if (record->has_ops) continue;
        /* Without the ops there are the sums of each step: a counter track. */
        fprintf(stream, ",\n{\"ph\": \"C\", \"pid\": %" PRId64 ", \"name\": \"ms a token\", \"ts\": %.3f, \"args\": {",
                rank, us(record->start_ns[step]));
        for (int part = 0; part < OP_N_GROUPS; part++)
            fprintf(stream, "%s\"%s\": %.6f", part ? ", " : "", run_part_name(part),
                    (double)record->part_ms[part][step * (size_t)record->n_ranks + (size_t)rank]);
        fputs("}}", stream);
    }
}

static void write_perfetto(FILE *stream, const run_record_t *record) {
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", stream);
    for (int64_t rank = 0; rank < record->n_ranks; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank %" PRId64, rank);
        put_metadata(stream, rank, 0, "process_name", name);
        put_metadata(stream, rank, 0, "thread_name", "steps");
        for (int group = 0; record->has_ops && group < OP_GROUP_HOST_GAP; group++)
            put_metadata(stream, rank, 1 + group, "thread_name", op_group_name((op_group_t)group));
    }
    /* The only event that no comma stands before. */
    fprintf(stream, "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_sort_index\", \"args\": {\"sort_index\": 0}}");
    for (int64_t rank = 0; rank < record->n_ranks; rank++)
        put_steps(stream, record, rank);
    for (size_t i = 0; i < record->n_ops; i++) {
        const run_op_t *op = &record->ops[i];
        fprintf(stream, ",\n{\"ph\": \"X\", \"pid\": %" PRId32 ", \"tid\": %d, \"cat\": \"", op->rank,
                group_thread(op->group));
        put_name(stream, op->group, sizeof op->group);
        fputs("\", \"name\": \"", stream);
        put_name(stream, op->op, sizeof op->op);
        fprintf(stream, "\", \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %" PRId32 ", \"layer\": %" PRId32 "}}",
                us(op->start_ns), us(op->dur_ns), op->step, op->layer);
    }
    fputs("\n]}\n", stream);
}

static void write_csv(FILE *stream, const run_record_t *record) {
    fputs("step,token,rank,start_ns,wall_ns,device_ns", stream);
    for (int part = 0; part < RUN_N_PARTS; part++)
        fprintf(stream, ",%s_ms", run_part_name(part));
    fputc('\n', stream);
    size_t n_ranks = (size_t)record->n_ranks;
    for (size_t at = 0; at < record->n_steps * n_ranks; at++) {
        size_t step = at / n_ranks;
        fprintf(stream, "%zu,%" PRId32 ",%zu,%" PRId64 ",%" PRId64 ",%" PRId64, step, record->generated[step],
                at % n_ranks, record->start_ns[step], record->wall_ns[step], record->device_ns[at]);
        for (int part = 0; part < RUN_N_PARTS; part++)
            fprintf(stream, ",%.6f", (double)record->part_ms[part][at]);
        fputc('\n', stream);
    }
}

static void write_ops_csv(FILE *stream, const run_record_t *record) {
    fputs("step,rank,layer,op,group,start_ns,dur_ns\n", stream);
    for (size_t i = 0; i < record->n_ops; i++) {
        const run_op_t *op = &record->ops[i];
        fprintf(stream, "%" PRId32 ",%" PRId32 ",%" PRId32 ",", op->step, op->rank, op->layer);
        put_name(stream, op->op, sizeof op->op);
        fputc(',', stream);
        put_name(stream, op->group, sizeof op->group);
        fprintf(stream, ",%" PRId64 ",%" PRId64 "\n", op->start_ns, op->dur_ns);
    }
}

status_t export_write(const run_record_t *record, export_format_t format, const char *path) {
    if (format == EXPORT_OPS_CSV && !record->has_ops)
        return status_fail(STATUS_USAGE, "this run has no operators: start it with --trace ops");
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *stream = is_stdout ? stdout : fopen(path, "w");
    if (!stream) return status_fail(STATUS_DEVICE, "cannot create %s: %s", path, strerror(errno));
    static void (*const writers[])(FILE *, const run_record_t *) = {
        [EXPORT_PERFETTO] = write_perfetto, [EXPORT_CSV] = write_csv, [EXPORT_OPS_CSV] = write_ops_csv};
    writers[format](stream, record);
    bool has_failed = fflush(stream) != 0 || ferror(stream);
    if (!is_stdout && fclose(stream) != 0) has_failed = true;
    return has_failed ? status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(errno)) : STATUS_OK;
}
