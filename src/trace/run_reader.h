#ifndef GALVANI_TRACE_RUN_READER_H
#define GALVANI_TRACE_RUN_READER_H

/* Reads a run file in whatever state it is: whole, still being written, or left by a writer that died. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trace/run_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum run_state {
    RUN_COMPLETE,
    RUN_RUNNING,   /* its writer lives, on this host */
    RUN_STOPPED,   /* closed by its writer before the end */
    RUN_ABANDONED, /* its writer is gone without closing it */
    RUN_ELSEWHERE, /* not closed; the writer is or was on another host */
} run_state_t;

/* Everything but the logits. Read-only; owned by whoever loaded it. `part_ms[p]` is ms by run_part_name(p). */
typedef struct run_record {
    run_state_t state;
    bool is_open_for_write; /* not closed by its writer: other programs must open it as SWMR readers */
    int64_t format_version, n_ranks, pid;
    char *command_line, *effective_config, *model_digest, *git_commit, *host, *backend, *gpus;
    char *driver_version, *cuda_version, *nccl_version, *mpi_version, *hdf5_version, *start_time;
    char *end_time, *stop_reason, *token_hash; /* NULL until the run is complete */
    char *prompt_text, *text;                  /* NULL if there is none */
    size_t prompt_text_bytes, text_bytes;
    size_t n_prompt, n_steps;
    int32_t *prompt;                           /* [n_prompt] */
    int32_t *generated;                        /* [n_steps] */
    int64_t *start_ns, *wall_ns, *host_gap_ns; /* [n_steps] */
    int64_t *device_ns;                        /* [n_steps, n_ranks] */
    float *part_ms[RUN_N_PARTS];               /* [n_steps, n_ranks] each */
    /* Bytes that a token must move on each rank, and that the device moves in a second; 0 where not known. */
    int64_t floor_bytes[OP_N_GROUPS], bytes_per_s;
    token_pair_t *pairs;  /* [n_pairs, n_ranks] */
    size_t n_pairs;       /* n_steps, or 0 if the run was not greedy */
    run_memory_t *memory; /* [n_ranks]; NULL until the run is complete */
    run_route_t *routes;  /* [n_routes] */
    size_t n_routes;
    char *route_texts; /* what routes point into */
    bool has_ops, has_logits;
    size_t n_ops;
    run_op_t *ops; /* [n_ops]; NULL unless asked for. Where ranks' clocks drifted, start_ns is put right */
    clock_offset_t *clocks, *clocks_end; /* [n_ranks]: of ranks' clocks against rank 0's; NULL if not measured */
} run_record_t;

/* Loads a run file. While it is being written, the rows that all tables have are given. STATUS_INPUT: missing, not a
 * run file, of another format version, damaged. The caller frees `*record` with run_record_free. */
status_t run_record_load(const char *path, bool with_ops, run_record_t **record);
void run_record_free(run_record_t *record); /* NULL is allowed */

const char *run_state_text(run_state_t state);

/* Whether a whole run file stands at `path`: one whose generation came to its end, not to a signal. */
bool run_file_is_complete(const char *path);

#ifdef __cplusplus
}
#endif
#endif
