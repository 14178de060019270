#ifndef GALVANI_TRACE_SUMMARY_H
#define GALVANI_TRACE_SUMMARY_H

/* The figures of a run: what report, diff, plot and watch are made from. Times in milliseconds. */

#include "trace/run_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Time per output token over steps [first, first + n). */
typedef struct tpot_figures {
    size_t first, n;
    double mean, p50, p90, p99, min, max; /* 0 where n is 0 */
} tpot_figures_t;

/* One part of the decomposition, a mean over the same steps. */
typedef struct part_figures {
    double mean, min, max; /* over ranks */
} part_figures_t;

typedef struct run_summary {
    double ttft; /* step 0: the prefill and the first token */
    tpot_figures_t tpot;
    part_figures_t parts[RUN_N_PARTS];
    double *rank_parts; /* [RUN_N_PARTS, n_ranks] */
    /* Ranks are compared by their busy time: all groups but comm and host_gap. */
    double busy_skew;     /* slowest minus fastest rank of a step, mean */
    int slowest_rank;     /* of most steps */
    double slowest_share; /* share of steps in which it was */
    /* The rank that comes last to a collective does not wait in it: what it spends is the exchange itself, and what the
     * others spend more is waiting. Without /ops only a step's sums are known, so some waiting counts as exchange. */
    double comm_exchange, comm_wait; /* mean over steps; wait is a mean over ranks too */
    bool comm_by_op;
} run_summary_t;

enum { SUMMARY_WARM_UP = 32 };

/* First step of steady decode: `skip`, or if negative the acceptance lane's 32 where at least as many remain, else 1
 * (the step after the prefill). Never more than n_steps. */
size_t summary_first_step(const run_record_t *record, int64_t skip);

/* Figures over the steps from `first` on. The caller frees with summary_release. STATUS_MEMORY. */
status_t summary_build(const run_record_t *record, size_t first, run_summary_t *summary);
void summary_release(run_summary_t *summary);

/* Value below which `share` of `n` sorted values lie, interpolated between neighbours. */
double summary_percentile(const double *sorted, size_t n, double share);

/* Sorts rising. */
void summary_sort(double *values, size_t n);

#ifdef __cplusplus
}
#endif
#endif
