#include "trace/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "trace/summary.h"

enum { N_SLOWEST = 5, MAX_RANK_COLUMNS = 8 };

/* Without the sign of a zero. */
static double shown(double value) { return fabs(value) < 5e-4 ? 0 : value; }

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

static void print_head(FILE *stream, const char *path, const run_record_t *record, const run_summary_t *summary) {
    fprintf(stream, "%s: %s; %" PRId64 " rank%s, backend %s on %s; %zu tokens after a prompt of %zu\n", path,
            run_state_text(record->state), record->n_ranks, record->n_ranks == 1 ? "" : "s", record->backend,
            record->host, record->n_steps, record->n_prompt);
    if (record->n_steps == 0) return;
    fprintf(stream, "first token after %.3f ms\n", summary->ttft);
    const tpot_figures_t *tpot = &summary->tpot;
    if (tpot->n == 0) return;
    fprintf(stream,
            "time per output token over steps %zu to %zu: mean %.3f ms (%.2f tokens/s), p50 %.3f, p90 %.3f, p99 %.3f, "
            "min %.3f, max %.3f\n",
            tpot->first, tpot->first + tpot->n - 1, tpot->mean, 1e3 / tpot->mean, tpot->p50, tpot->p90, tpot->p99,
            tpot->min, tpot->max);
}

/* The table: a column a rank, or none where there are too many for a line; then mean, least and most of the ranks;
 * then, where they are known, the bytes that a token must move and the share of the time that they would take. */
typedef struct parts_table {
    FILE *stream;
    int n_columns;
    bool has_bytes;
    double wall_ms, bytes_per_s; /* bytes_per_s 0: not known */
} parts_table_t;

static void print_heading(const parts_table_t *table) {
    fprintf(table->stream, "\n%-14s", "ms a token");
    for (int rank = 0; rank < table->n_columns; rank++)
        fprintf(table->stream, "   rank %d", rank);
    fprintf(table->stream, " %9s %8s %8s %7s", "mean", "min", "max", "share");
    if (table->has_bytes) fprintf(table->stream, " %9s", "MB");
    if (table->has_bytes && table->bytes_per_s > 0) fprintf(table->stream, " %9s", "of floor");
    fputc('\n', table->stream);
}

/* `ranks` [n_columns] may be NULL. */
static void print_part(const parts_table_t *table, const char *name, const double *ranks, const part_figures_t *figures,
                       int64_t floor_bytes) {
    FILE *stream = table->stream;
    fprintf(stream, "%-14s", name);
    for (int rank = 0; rank < table->n_columns; rank++)
        fprintf(stream, " %8.3f", shown(ranks ? ranks[rank] : figures->mean));
    fprintf(stream, " %9.3f %8.3f %8.3f %6.1f%%", shown(figures->mean), shown(figures->min), shown(figures->max),
            share(shown(figures->mean), table->wall_ms));
    if (table->has_bytes && floor_bytes > 0) {
        fprintf(stream, " %9.1f", (double)floor_bytes / 1e6);
        if (table->bytes_per_s > 0)
            fprintf(stream, " %8.1f%%", share((double)floor_bytes / table->bytes_per_s * 1e3, shown(figures->mean)));
    }
    fputc('\n', stream);
}

static void print_parts(FILE *stream, const run_record_t *record, const run_summary_t *summary, double bytes_per_s) {
    int64_t sum_bytes = 0;
    for (int group = 0; group < OP_N_GROUPS; group++)
        sum_bytes += record->floor_bytes[group];
    const parts_table_t table = {.stream = stream,
                                 .n_columns = record->n_ranks <= MAX_RANK_COLUMNS ? (int)record->n_ranks : 0,
                                 .has_bytes = sum_bytes > 0,
                                 .wall_ms = summary->tpot.mean,
                                 .bytes_per_s = bytes_per_s > 0 ? bytes_per_s : (double)record->bytes_per_s};
    print_heading(&table);
    for (int part = 0; part < RUN_N_PARTS; part++)
        print_part(&table, run_part_name(part), &summary->rank_parts[part * record->n_ranks], &summary->parts[part],
                   part < OP_N_GROUPS ? record->floor_bytes[part] : 0);
    const part_figures_t total = {.mean = table.wall_ms, .min = table.wall_ms, .max = table.wall_ms};
    print_part(&table, "wall time", NULL, &total, sum_bytes);
    if (table.has_bytes && table.bytes_per_s > 0)
        fprintf(stream, "floor: %.3f ms for the bytes that a token must move on each rank, at %.0f GB/s\n",
                (double)sum_bytes / table.bytes_per_s * 1e3, table.bytes_per_s / 1e9);
}

static void print_ranks(FILE *stream, const run_record_t *record, const run_summary_t *summary) {
    if (record->n_ranks == 1) return;
    fprintf(stream, "\ncomm: %.3f ms a token is exchange, %.3f ms waiting for the last rank (mean of ranks; %s)\n",
            summary->comm_exchange, summary->comm_wait,
            summary->comm_by_op ? "collective by collective" : "from the sums of a step: --trace ops tells better");
    fprintf(
        stream,
        "skew: between the busy time of the slowest and the fastest rank %.3f ms a token; rank %d is the slowest in "
        "%.0f %% of steps\n",
        summary->busy_skew, summary->slowest_rank, 100 * summary->slowest_share);
}

/* The rank whose clock stands farthest from rank 0's. */
static void print_clocks(FILE *stream, const run_record_t *record) {
    int64_t farthest = 0;
    for (int64_t rank = 1; record->clocks && rank < record->n_ranks; rank++)
        if (llabs(record->clocks[rank].offset_ns) > llabs(record->clocks[farthest].offset_ns)) farthest = rank;
    if (farthest == 0) return;
    const clock_offset_t *start = &record->clocks[farthest];
    fprintf(stream, "clocks: rank %" PRId64 "'s stood %+.3f ms from rank 0's at the start, give or take %.3f", farthest,
            (double)start->offset_ns / 1e6, (double)start->round_trip_ns / 2e6);
    if (record->clocks_end)
        fprintf(stream, ", and drifted by %+.3f",
                (double)(record->clocks_end[farthest].offset_ns - start->offset_ns) / 1e6);
    fputc('\n', stream);
}

/* Mean over ranks of one part of one step. */
static double step_part(const run_record_t *record, int part, size_t step) {
    size_t n_ranks = (size_t)record->n_ranks;
    double sum = 0;
    for (size_t rank = 0; rank < n_ranks; rank++)
        sum += (double)record->part_ms[part][step * n_ranks + rank];
    return sum / (double)n_ranks;
}

static void print_slowest(FILE *stream, const run_record_t *record, const run_summary_t *summary) {
    const tpot_figures_t *tpot = &summary->tpot;
    fprintf(stream, "\n%-14s %8s %10s %10s  %s\n", "slowest steps", "token", "wall ms", "over p50", "most of it in");
    size_t listed[N_SLOWEST], n_listed = 0;
    while (n_listed < N_SLOWEST && n_listed < tpot->n) {
        size_t slowest = SIZE_MAX;
        for (size_t step = tpot->first; step < tpot->first + tpot->n; step++) {
            bool is_listed = false;
            for (size_t i = 0; i < n_listed; i++)
                is_listed |= listed[i] == step;
            if (!is_listed && (slowest == SIZE_MAX || record->wall_ns[step] > record->wall_ns[slowest])) slowest = step;
        }
        listed[n_listed++] = slowest;
        int most = 0;
        double most_ms = -INFINITY;
        for (int part = 0; part < RUN_N_PARTS; part++) {
            double over = step_part(record, part, slowest) - summary->parts[part].mean;
            if (over > most_ms) {
                most_ms = over;
                most = part;
            }
        }
        double wall = (double)record->wall_ns[slowest] / 1e6;
        fprintf(stream, "%-14zu %8" PRId32 " %10.3f %+9.1f%%  %s, %+.3f ms against its mean\n", slowest,
                record->generated[slowest], wall, share(wall - tpot->p50, tpot->p50), run_part_name(most), most_ms);
    }
}

status_t report_print(FILE *stream, const char *path, const run_record_t *record, int64_t skip, double bytes_per_s) {
    run_summary_t summary;
    TRY(summary_build(record, summary_first_step(record, skip), &summary));
    print_head(stream, path, record, &summary);
    if (summary.tpot.n) {
        print_parts(stream, record, &summary, bytes_per_s);
        print_ranks(stream, record, &summary);
        print_clocks(stream, record);
        print_slowest(stream, record, &summary);
    }
    summary_release(&summary);
    return STATUS_OK;
}
