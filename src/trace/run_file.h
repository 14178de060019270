#ifndef GALVANI_TRACE_RUN_FILE_H
#define GALVANI_TRACE_RUN_FILE_H

/* The run file (docs/formats.md), written by rank 0 alone. Not collective. All objects are made at creation, then the
 * file is in SWMR mode: readers may open it while the run goes on, and what was flushed survives a crash.
 *
 * A thread writes, so that a step costs no more than a copy of its row. From run_file_create to run_file_finish or
 * run_file_abandon the process makes no other HDF5 calls. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "argmax/argmax.h"
#include "base/status.h"
#include "comm/clocks.h"
#include "model/op_trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct run_file run_file_t;

/* One fast path: what was chosen and why. */
typedef struct run_route {
    const char *name, *chosen, *reason;
} run_route_t;

/* One rank's memory, in bytes. */
typedef struct run_memory {
    int64_t weights, kv_cache, state, workspace, cuda_graph, pinned_host, peak_device, peak_host_rss;
} run_memory_t;

/* What is known before the first step. All borrowed for the call. */
typedef struct run_file_args {
    const char *path;
    int n_ranks;
    int64_t vocab_size; /* width of /sampling/logits */
    int64_t max_new;
    const char *command_line, *effective_config_json; /* effective_config_json: the options in force */
    const char *rank_hosts;                           /* of every rank, separated by commas */
    const char *model_config_json, *model_digest;
    const char *backend, *gpus, *driver, *cuda, *nccl, *mpi; /* "" where there is none */
    const int32_t *prompt;
    size_t n_prompt;
    const char *prompt_text; /* NULL without a tokenizer */
    bool has_logits, has_ops;
    int n_top_logprobs;
    const run_route_t *routes;
    size_t n_routes;
    const clock_offset_t *clocks; /* [n_ranks] */
    /* What a token must move on each rank, by group, and what the device moves in a second (model/cost.h); 0 where that
     * is not known. */
    double floor_bytes[OP_N_GROUPS];
    double bytes_per_s;
} run_file_args_t;

/* What one generated token adds. Arrays are borrowed for the call. */
typedef struct run_step {
    int32_t token;
    int64_t start_ns, wall_ns, host_gap_ns; /* start_ns: since the run's start */
    const int64_t *device_ns;               /* [n_ranks] */
    const token_pair_t *pairs;              /* [n_ranks]; NULL unless greedy */
    const float *logits;                    /* [vocab_size]; NULL unless asked for */
    const float *top_logprobs;              /* [n_top_logprobs]; NULL unless asked for */
    const int32_t *top_tokens;              /* [n_top_logprobs] */
    const int64_t *group_ns;                /* [n_ranks, OP_N_GROUPS], host_gap included; the rest is the remainder */
} run_step_t;

/* Creates the file. It is made under the name PATH.part and comes to its own name when readers can open it, so an older
 * run file of this path is replaced at one stroke. STATUS_USAGE if something else than an HDF5 file is there,
 * STATUS_DEVICE if the file cannot be written. */
status_t run_file_create(const run_file_args_t *args, run_file_t **file);

/* Appends one row everywhere. What was appended goes to the thread, which writes and flushes it, when 100 ms have
 * passed since it last did. STATUS_DEVICE if an earlier row could not be written (disk full, say): no more rows are
 * taken then, and what was flushed before stays readable. */
status_t run_file_append(run_file_t *file, const run_step_t *step);

/* Appends one rank's operators of step `step` to /ops (has_ops). Their start_ns is on the clock of the steps'
 * start_ns, as far as the offsets at the start tell. For each step the ranks come one after another, with the same
 * operators in the same order. */
status_t run_file_append_ops(run_file_t *file, int64_t step, int rank, const op_record_t *records, size_t n_records);

/* What is known at the end only. All borrowed for the call. */
typedef struct run_end {
    const char *text; /* may be NULL */
    size_t text_bytes;
    const run_memory_t *memory; /* [n_ranks] */
    const char *stop_reason;    /* "eos", "length", "signal" ... */
    const run_route_t *routes;  /* as the run took them, in place of those of the start */
    size_t n_routes;
    const clock_offset_t *clocks; /* [n_ranks]; NULL if they were not measured again */
} run_end_t;

/* Leaves SWMR, writes what is known at the end only and the token hash, and closes. The file is freed also on failure.
 */
status_t run_file_finish(run_file_t *file, const run_end_t *end);

/* Closes after a failure: what was appended stays, `complete` stays 0. NULL is allowed. */
void run_file_abandon(run_file_t *file);

#ifdef __cplusplus
}
#endif
#endif
