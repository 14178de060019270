#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "trace/report.h"
#include "trace/summary.h"

/* Prints a fact that two runs do not share. */
static void print_difference(FILE *stream, const char *name, const char *a, const char *b) {
    if (strcmp(a, b) != 0) fprintf(stream, "%-16s A: %s\n%-16s B: %s\n", name, a, "", b);
}

static void print_number_difference(FILE *stream, const char *name, int64_t a, int64_t b) {
    if (a != b) fprintf(stream, "%-16s A: %" PRId64 "\n%-16s B: %" PRId64 "\n", name, a, "", b);
}

/* Options in force that differ; a text that is not a JSON object has none. */
static void print_option_differences(FILE *stream, const run_record_t *const records[2]) {
    json_t *a = json_loads(records[0]->effective_config, 0, NULL),
           *b = json_loads(records[1]->effective_config, 0, NULL);
    json_t *both = json_object();
    json_object_update(both, a);
    json_object_update(both, b);
    const char *key;
    json_t *value;
    json_object_foreach(both, key, value) {
        const json_t *in_a = json_object_get(a, key), *in_b = json_object_get(b, key);
        if (in_a && in_b && json_equal(in_a, in_b)) continue;
        char *text_a = in_a ? json_dumps(in_a, JSON_ENCODE_ANY) : NULL;
        char *text_b = in_b ? json_dumps(in_b, JSON_ENCODE_ANY) : NULL;
        char name[80];
        snprintf(name, sizeof name, "option %s", key);
        print_difference(stream, name, text_a ? text_a : "-", text_b ? text_b : "-");
        free(text_a);
        free(text_b);
    }
    json_decref(both);
    json_decref(a);
    json_decref(b);
}

static const char *route_choice(const run_record_t *record, const char *name) {
    for (size_t i = 0; i < record->n_routes; i++)
        if (strcmp(record->routes[i].name, name) == 0) return record->routes[i].chosen;
    return "-";
}

static void print_route_differences(FILE *stream, const run_record_t *const records[2]) {
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < records[side]->n_routes; i++) {
            const char *route = records[side]->routes[i].name;
            /* Routes that both have are printed from A's list. */
            if (side == 1 && strcmp(route_choice(records[0], route), "-") != 0) continue;
            char name[80];
            snprintf(name, sizeof name, "route %s", route);
            print_difference(stream, name, route_choice(records[0], route), route_choice(records[1], route));
        }
}

static void print_set_up(FILE *stream, const run_record_t *const records[2]) {
    const run_record_t *a = records[0], *b = records[1];
    print_difference(stream, "model digest", a->model_digest, b->model_digest);
    print_difference(stream, "git commit", a->git_commit, b->git_commit);
    print_difference(stream, "host", a->host, b->host);
    print_difference(stream, "backend", a->backend, b->backend);
    print_difference(stream, "GPUs", a->gpus, b->gpus);
    print_number_difference(stream, "ranks", a->n_ranks, b->n_ranks);
    print_number_difference(stream, "prompt tokens", (int64_t)a->n_prompt, (int64_t)b->n_prompt);
    print_option_differences(stream, records);
    print_route_differences(stream, records);
}

static void print_tokens(FILE *stream, const run_record_t *const records[2]) {
    const run_record_t *a = records[0], *b = records[1];
    size_t n = a->n_steps < b->n_steps ? a->n_steps : b->n_steps, same = 0;
    while (same < n && a->generated[same] == b->generated[same])
        same++;
    if (same == a->n_steps && same == b->n_steps)
        fprintf(stream, "tokens           all %zu are the same\n", n);
    else
        fprintf(stream, "tokens           the first %zu are the same; A has %zu, B has %zu\n", same, a->n_steps,
                b->n_steps);
}

static void print_row(FILE *stream, const char *name, double a, double b) {
    fprintf(stream, "%-16s %10.3f %10.3f %+10.3f", name, a, b, b - a);
    if (a > 0) fprintf(stream, " %+8.1f%%", 100 * (b - a) / a);
    fputc('\n', stream);
}

status_t report_print_diff(FILE *stream, const char *const paths[2], const run_record_t *const records[2],
                           int64_t skip) {
    /* The same steps of both. */
    size_t first = summary_first_step(records[0], skip), other = summary_first_step(records[1], skip);
    if (other < first) first = other;
    run_summary_t summaries[2];
    TRY(summary_build(records[0], first, &summaries[0]));
    status_t status = summary_build(records[1], first, &summaries[1]);
    if (status != STATUS_OK) {
        summary_release(&summaries[0]);
        return status;
    }
    const run_summary_t *a = &summaries[0], *b = &summaries[1];
    fprintf(stream, "A: %s\nB: %s\n\n", paths[0], paths[1]);
    print_set_up(stream, records);
    print_tokens(stream, records);
    fprintf(stream, "\n%-16s %10s %10s %10s\n", "ms a token", "A", "B", "B - A");
    for (int part = 0; part < RUN_N_PARTS; part++)
        print_row(stream, run_part_name(part), a->parts[part].mean, b->parts[part].mean);
    print_row(stream, "wall time", a->tpot.mean, b->tpot.mean);
    print_row(stream, "p50", a->tpot.p50, b->tpot.p50);
    print_row(stream, "p99", a->tpot.p99, b->tpot.p99);
    print_row(stream, "first token", a->ttft, b->ttft);
    if (a->tpot.n && b->tpot.n) print_row(stream, "tokens/s", 1e3 / a->tpot.mean, 1e3 / b->tpot.mean);
    fprintf(stream, "over steps %zu to %zu of A and %zu to %zu of B, mean of ranks\n", first,
            records[0]->n_steps ? records[0]->n_steps - 1 : 0, first,
            records[1]->n_steps ? records[1]->n_steps - 1 : 0);
    summary_release(&summaries[0]);
    summary_release(&summaries[1]);
    return STATUS_OK;
}
