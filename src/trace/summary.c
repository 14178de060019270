#include "trace/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

size_t summary_first_step(const run_record_t *record, int64_t skip) {
    size_t first = record->n_steps >= 2 * SUMMARY_WARM_UP ? SUMMARY_WARM_UP : 1;
    if (skip >= 0) first = (size_t)skip;
    return first < record->n_steps ? first : record->n_steps;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void summary_sort(double *values, size_t n) { qsort(values, n, sizeof values[0], compare); }

double summary_percentile(const double *sorted, size_t n, double share) {
    if (n == 0) return 0;
    double place = share * (double)(n - 1);
    size_t below = (size_t)place;
    if (below + 1 >= n) return sorted[n - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

static status_t build_tpot(const run_record_t *record, size_t first, tpot_figures_t *tpot) {
    size_t n = record->n_steps - first;
    *tpot = (tpot_figures_t){.first = first, .n = n};
    if (n == 0) return STATUS_OK;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof(double), &memory));
    double *sorted = memory, sum = 0;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = (double)record->wall_ns[first + i] / 1e6;
        sum += sorted[i];
    }
    summary_sort(sorted, n);
    tpot->mean = sum / (double)n;
    tpot->min = sorted[0];
    tpot->max = sorted[n - 1];
    tpot->p50 = summary_percentile(sorted, n, 0.5);
    tpot->p90 = summary_percentile(sorted, n, 0.9);
    tpot->p99 = summary_percentile(sorted, n, 0.99);
    memory_free(sorted);
    return STATUS_OK;
}

static void build_parts(const run_record_t *record, size_t first, run_summary_t *summary) {
    size_t n_ranks = (size_t)record->n_ranks, n = record->n_steps - first;
    for (int part = 0; part < RUN_N_PARTS; part++) {
        part_figures_t *figures = &summary->parts[part];
        double *means = &summary->rank_parts[(size_t)part * n_ranks];
        for (size_t rank = 0; rank < n_ranks; rank++) {
            for (size_t step = first; step < record->n_steps; step++)
                means[rank] += (double)record->part_ms[part][step * n_ranks + rank];
            means[rank] /= n ? (double)n : 1;
            figures->mean += means[rank] / (double)n_ranks;
            figures->min = rank ? fmin(figures->min, means[rank]) : means[rank];
            figures->max = rank ? fmax(figures->max, means[rank]) : means[rank];
        }
    }
}

static double busy_ms(const run_record_t *record, size_t step, size_t rank) {
    double sum = 0;
    for (int part = 0; part < OP_N_GROUPS; part++)
        if (part != OP_GROUP_COMM && part != OP_GROUP_HOST_GAP)
            sum += (double)record->part_ms[part][step * (size_t)record->n_ranks + rank];
    return sum;
}

/* Adds what the ranks spend in one collective, or in all of one step. */
static void add_comm(const double *in_comm, size_t n_ranks, run_summary_t *summary) {
    double least = in_comm[0], sum = 0;
    for (size_t rank = 0; rank < n_ranks; rank++) {
        least = fmin(least, in_comm[rank]);
        sum += in_comm[rank];
    }
    summary->comm_exchange += least / (double)summary->tpot.n;
    summary->comm_wait += (sum / (double)n_ranks - least) / (double)summary->tpot.n;
}

/* From /ops: collective by collective. Ranks run the same ops in the same order, and a step's rows lie rank by rank. */
static void build_comm_from_ops(const run_record_t *record, size_t first, double *in_comm, run_summary_t *summary) {
    size_t n_ranks = (size_t)record->n_ranks, begin = 0;
    while (begin < record->n_ops) {
        size_t end = begin;
        while (end < record->n_ops && record->ops[end].step == record->ops[begin].step)
            end++;
        size_t n = (end - begin) / n_ranks;
        bool is_counted = record->ops[begin].step >= (int32_t)first && n * n_ranks == end - begin &&
                          record->ops[begin].step < (int32_t)record->n_steps;
        for (size_t i = 0; is_counted && i < n; i++) {
            const run_op_t *ops = &record->ops[begin + i];
            if (strncmp(ops->group, run_part_name(OP_GROUP_COMM), sizeof ops->group) != 0) continue;
            for (size_t rank = 0; rank < n_ranks; rank++)
                in_comm[rank] = (double)ops[rank * n].dur_ns / 1e6;
            add_comm(in_comm, n_ranks, summary);
        }
        begin = end;
    }
}

static void build_comm_from_steps(const run_record_t *record, size_t first, double *in_comm, run_summary_t *summary) {
    size_t n_ranks = (size_t)record->n_ranks;
    for (size_t step = first; step < record->n_steps; step++) {
        for (size_t rank = 0; rank < n_ranks; rank++)
            in_comm[rank] = (double)record->part_ms[OP_GROUP_COMM][step * n_ranks + rank];
        add_comm(in_comm, n_ranks, summary);
    }
}

static status_t build_comm(const run_record_t *record, size_t first, run_summary_t *summary) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)record->n_ranks, sizeof(double), &memory));
    summary->comm_by_op = record->ops != NULL;
    if (summary->comm_by_op)
        build_comm_from_ops(record, first, memory, summary);
    else
        build_comm_from_steps(record, first, memory, summary);
    memory_free(memory);
    return STATUS_OK;
}

static status_t build_skew(const run_record_t *record, size_t first, run_summary_t *summary) {
    size_t n_ranks = (size_t)record->n_ranks, n = summary->tpot.n;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n_ranks, sizeof(size_t), &memory));
    size_t *n_slowest = memory;
    for (size_t step = first; step < record->n_steps; step++) {
        size_t slowest = 0;
        double least = busy_ms(record, step, 0), most = least;
        for (size_t rank = 1; rank < n_ranks; rank++) {
            double busy = busy_ms(record, step, rank);
            if (busy > most) {
                most = busy;
                slowest = rank;
            }
            least = fmin(least, busy);
        }
        n_slowest[slowest]++;
        summary->busy_skew += (most - least) / (double)n;
    }
    for (size_t rank = 1; rank < n_ranks; rank++)
        if (n_slowest[rank] > n_slowest[summary->slowest_rank]) summary->slowest_rank = (int)rank;
    summary->slowest_share = (double)n_slowest[summary->slowest_rank] / (double)n;
    memory_free(n_slowest);
    return STATUS_OK;
}

status_t summary_build(const run_record_t *record, size_t first, run_summary_t *summary) {
    run_summary_t built = {.ttft = record->n_steps ? (double)record->wall_ns[0] / 1e6 : 0};
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, RUN_N_PARTS * (size_t)record->n_ranks, sizeof(double), &memory));
    built.rank_parts = memory;
    build_parts(record, first, &built);
    status_t status = build_tpot(record, first, &built.tpot);
    if (status == STATUS_OK && built.tpot.n) status = build_skew(record, first, &built);
    if (status == STATUS_OK && built.tpot.n) status = build_comm(record, first, &built);
    if (status != STATUS_OK) {
        summary_release(&built);
        return status;
    }
    *summary = built;
    return STATUS_OK;
}

void summary_release(run_summary_t *summary) {
    memory_free(summary->rank_parts);
    summary->rank_parts = NULL;
}
