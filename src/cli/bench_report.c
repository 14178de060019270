#include "cli/bench_report.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "trace/provenance.h"
#include "trace/run_types.h"

/* The figures of a repeat, in the order of the table. */
static const struct figure {
    const char *key, *heading;
    size_t offset; /* in bench_repeat_t */
} figures[] = {
    {"prefill_ms", "prefill ms", offsetof(bench_repeat_t, prefill_ms)},
    {"ttft_ms", "TTFT ms", offsetof(bench_repeat_t, ttft_ms)},
    {"prompt_tokens_per_s", "prompt tok/s", offsetof(bench_repeat_t, prompt_rate)},
    {"ms_per_token", "ms/token", offsetof(bench_repeat_t, ms_per_token)},
    {"tokens_per_s", "tokens/s", offsetof(bench_repeat_t, token_rate)},
    {"p50_ms", "p50 ms", offsetof(bench_repeat_t, p50_ms)},
    {"p99_ms", "p99 ms", offsetof(bench_repeat_t, p99_ms)},
    {"launches", "launches", offsetof(bench_repeat_t, n_launches)},
};
enum { N_FIGURES = sizeof figures / sizeof *figures, MAX_RANK_COLUMNS = 8 };

typedef struct spread {
    double mean, min, max;
} spread_t;

static double value_of(const bench_repeat_t *repeat, const struct figure *figure) {
    double value;
    memcpy(&value, (const char *)repeat + figure->offset, sizeof value);
    return value;
}

static spread_t spread_of(const bench_report_t *report, bool is_control, const struct figure *figure) {
    spread_t spread = {0};
    double sum = 0.0;
    int n = 0;
    for (size_t i = 0; i < report->n_repeats; i++) {
        if (report->repeats[i].is_control != is_control) continue;
        double value = value_of(&report->repeats[i], figure);
        if (n == 0 || value < spread.min) spread.min = value;
        if (n == 0 || value > spread.max) spread.max = value;
        sum += value;
        n++;
    }
    spread.mean = sum / n;
    return spread;
}

static const char *variant_name(bool is_control) { return is_control ? "control" : "candidate"; }

/* Whether every repeat of one variant, or of both, gave the same tokens. */
static bool tokens_agree(const bench_report_t *report, bool across_variants) {
    for (size_t i = 0; i < report->n_repeats; i++) {
        for (size_t k = 0; k < i; k++) {
            const bench_repeat_t *a = &report->repeats[i], *b = &report->repeats[k];
            if ((across_variants || a->is_control == b->is_control) && strcmp(a->token_hash, b->token_hash) != 0)
                return false;
        }
    }
    return true;
}

/* A group's time on one rank, a mean over the variant's repeats. */
static double group_ms(const bench_report_t *report, bool is_control, int group, int rank) {
    double sum = 0.0;
    int n = 0;
    for (size_t i = 0; i < report->n_repeats; i++) {
        if (report->repeats[i].is_control != is_control) continue;
        sum += report->repeats[i].ranks[rank].group_ms[group];
        n++;
    }
    return sum / n;
}

/* Over the ranks. */
static spread_t group_spread(const bench_report_t *report, bool is_control, int group) {
    spread_t spread = {0};
    for (int rank = 0; rank < report->n_ranks; rank++) {
        double ms = group_ms(report, is_control, group, rank);
        if (rank == 0 || ms < spread.min) spread.min = ms;
        if (rank == 0 || ms > spread.max) spread.max = ms;
        spread.mean += ms / report->n_ranks;
    }
    return spread;
}

static void print_repeats(const bench_report_t *report, FILE *stream) {
    int seen[2] = {0, 0};
    fprintf(stream, "%-12s", "");
    for (int i = 0; i < N_FIGURES; i++)
        fprintf(stream, " %12s", figures[i].heading);
    fprintf(stream, "  tokens\n");
    for (size_t r = 0; r < report->n_repeats; r++) {
        const bench_repeat_t *repeat = &report->repeats[r];
        char label[32];
        snprintf(label, sizeof label, "%s %d", report->control ? variant_name(repeat->is_control) : "repeat",
                 ++seen[repeat->is_control]);
        fprintf(stream, "%-12s", label);
        for (int i = 0; i < N_FIGURES; i++)
            fprintf(stream, " %12.3f", value_of(repeat, &figures[i]));
        fprintf(stream, "  %.8s\n", repeat->token_hash);
    }
}

static void print_spreads(const bench_report_t *report, bool is_control, FILE *stream) {
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
        {"mean", offsetof(spread_t, mean)}, {"least", offsetof(spread_t, min)}, {"most", offsetof(spread_t, max)}};
    if (report->control) fprintf(stream, "%s\n", variant_name(is_control));
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        fprintf(stream, "%-12s", rows[row].name);
        for (int i = 0; i < N_FIGURES; i++) {
            spread_t spread = spread_of(report, is_control, &figures[i]);
            double value;
            memcpy(&value, (const char *)&spread + rows[row].offset, sizeof value);
            fprintf(stream, " %12.3f", value);
        }
        fprintf(stream, "\n");
    }
}

/* Candidate minus control, and what that is of the control. */
static void print_difference(const bench_report_t *report, FILE *stream) {
    fprintf(stream, "%-12s", "difference");
    for (int i = 0; i < N_FIGURES; i++)
        fprintf(stream, " %+12.3f",
                spread_of(report, false, &figures[i]).mean - spread_of(report, true, &figures[i]).mean);
    fprintf(stream, "\n%-12s", "percent");
    for (int i = 0; i < N_FIGURES; i++) {
        double control = spread_of(report, true, &figures[i]).mean;
        double difference = spread_of(report, false, &figures[i]).mean - control;
        fprintf(stream, " %+12.2f", control > 0 ? 100.0 * difference / control : 0.0);
    }
    fprintf(stream, "\n");
}

static void print_groups(const bench_report_t *report, FILE *stream) {
    int n_columns = report->n_ranks <= MAX_RANK_COLUMNS ? report->n_ranks : 0;
    if (report->n_ranks == 1) n_columns = 0;
    fprintf(stream, "\nsteady decode, ms a token%s\n%-14s %9s %9s", report->control ? " (candidate)" : "", "", "mean",
            "most");
    if (report->control) fprintf(stream, " %9s %9s", "control", "less it");
    for (int rank = 0; rank < n_columns; rank++)
        fprintf(stream, "   rank %2d", rank);
    fprintf(stream, "\n");
    for (int group = 0; group < OP_N_GROUPS; group++) {
        spread_t spread = group_spread(report, false, group);
        fprintf(stream, "%-14s %9.3f %9.3f", op_group_name((op_group_t)group), spread.mean, spread.max);
        if (report->control) {
            double control = group_spread(report, true, group).mean;
            fprintf(stream, " %9.3f %+9.3f", control, spread.mean - control);
        }
        for (int rank = 0; rank < n_columns; rank++)
            fprintf(stream, " %9.3f", group_ms(report, false, group, rank));
        fprintf(stream, "\n");
    }
}

static void print_routes(const bench_report_t *report, FILE *stream) {
    fprintf(stream, "\nroutes%s\n", report->control ? " (candidate)" : "");
    for (size_t i = 0; i < report->n_routes; i++)
        fprintf(stream, "%-15s %-3s %s\n", report->routes[i].name, report->routes[i].chosen, report->routes[i].reason);
}

static int64_t memory_value(const run_memory_t *memory, int index) {
    int64_t value;
    memcpy(&value, (const char *)memory + (size_t)index * sizeof value, sizeof value);
    return value;
}

static void print_memory(const bench_report_t *report, FILE *stream) {
    fprintf(stream, "\nmemory, MiB on the rank that takes most\n");
    for (int i = 0; i < RUN_N_MEMORY; i++) {
        int64_t most = 0;
        for (int rank = 0; rank < report->n_ranks; rank++) {
            int64_t bytes = memory_value(&report->memory[rank], i);
            if (bytes > most) most = bytes;
        }
        fprintf(stream, "%-14s %11.1f\n", run_memory_name(i), (double)most / 1048576.0);
    }
}

void bench_report_print(const bench_report_t *report, FILE *stream) {
    fprintf(stream,
            "%s on %d rank%s, %s backend: %" PRId64 " prompt tokens, %" PRId64
            " new ones, greedy, past end tokens\nsteady decode: tokens %" PRId64 " to %" PRId64 "\n",
            report->model, report->n_ranks, report->n_ranks == 1 ? "" : "s", report->backend, report->prompt_len,
            report->max_new, report->warmup + 1, report->max_new);
    if (report->control) fprintf(stream, "control: the same with %s\n", report->control);
    fprintf(stream, "\n");
    print_repeats(report, stream);
    fprintf(stream, "\n");
    print_spreads(report, false, stream);
    if (report->control) {
        print_spreads(report, true, stream);
        print_difference(report, stream);
    }
    if (report->n_repeats > 1)
        fprintf(stream, "%s\n",
                tokens_agree(report, false) ? "every repeat gave the same tokens" : "REPEATS GAVE DIFFERENT TOKENS");
    if (report->control)
        fprintf(stream, "the control gave %s tokens\n", tokens_agree(report, true) ? "the same" : "other");
    print_groups(report, stream);
    print_routes(report, stream);
    print_memory(report, stream);
}

static json_t *json_repeats(const bench_report_t *report) {
    json_t *list = json_array();
    for (size_t r = 0; r < report->n_repeats; r++) {
        const bench_repeat_t *repeat = &report->repeats[r];
        json_t *entry =
            json_pack("{s:s, s:s}", "variant", variant_name(repeat->is_control), "token_hash", repeat->token_hash);
        for (int i = 0; i < N_FIGURES; i++)
            json_object_set_new(entry, figures[i].key, json_real(value_of(repeat, &figures[i])));
        json_array_append_new(list, entry);
    }
    return list;
}

/* Spreads and decomposition of one variant. */
static json_t *json_variant(const bench_report_t *report, bool is_control) {
    json_t *variant = json_object(), *parts = json_object();
    for (int i = 0; i < N_FIGURES; i++) {
        spread_t spread = spread_of(report, is_control, &figures[i]);
        json_object_set_new(variant, figures[i].key,
                            json_pack("{s:f, s:f, s:f}", "mean", spread.mean, "min", spread.min, "max", spread.max));
    }
    for (int group = 0; group < OP_N_GROUPS; group++) {
        spread_t spread = group_spread(report, is_control, group);
        json_t *ranks = json_array();
        for (int rank = 0; rank < report->n_ranks; rank++)
            json_array_append_new(ranks, json_real(group_ms(report, is_control, group, rank)));
        json_object_set_new(parts, op_group_name((op_group_t)group),
                            json_pack("{s:f, s:f, s:o}", "mean", spread.mean, "max", spread.max, "ranks", ranks));
    }
    json_object_set_new(variant, "decomposition_ms", parts);
    return variant;
}

static json_t *json_memory(const bench_report_t *report) {
    json_t *list = json_array();
    for (int rank = 0; rank < report->n_ranks; rank++) {
        json_t *entry = json_object();
        for (int i = 0; i < RUN_N_MEMORY; i++)
            json_object_set_new(entry, run_memory_name(i), json_integer(memory_value(&report->memory[rank], i)));
        json_array_append_new(list, entry);
    }
    return list;
}

static json_t *json_routes(const bench_report_t *report) {
    json_t *list = json_array();
    for (size_t i = 0; i < report->n_routes; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", report->routes[i].name, "chosen",
                                              report->routes[i].chosen, "reason", report->routes[i].reason));
    return list;
}

json_t *bench_report_json(const bench_report_t *report) {
    char host[PROVENANCE_TEXT_BYTES], now[32];
    provenance_host(host);
    clock_utc_text(now, sizeof now);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:O, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:o}", "format",
        "galvani-bench", "model", report->model, "model_digest", report->model_digest, "backend", report->backend,
        "command_line", report->command_line, "options", report->options, "git_commit", provenance_commit(), "host",
        host, "time", now, "n_ranks", report->n_ranks, "prompt_len", (json_int_t)report->prompt_len, "max_new",
        (json_int_t)report->max_new, "warmup", (json_int_t)report->warmup, "tokens_agree", tokens_agree(report, false),
        "repeats", json_repeats(report), "candidate", json_variant(report, false), "memory", json_memory(report),
        "routes", json_routes(report));
    if (root && report->control) {
        json_object_set_new(root, "control_routes", json_string(report->control));
        json_object_set_new(root, "control", json_variant(report, true));
        json_object_set_new(root, "control_tokens_agree", json_boolean(tokens_agree(report, true)));
    }
    return root;
}
