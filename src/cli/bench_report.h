#ifndef GALVANI_CLI_BENCH_REPORT_H
#define GALVANI_CLI_BENCH_REPORT_H

/* What galvani bench has measured, as a table and as JSON. Rank 0's alone. */

#include <stdio.h>

#include "base/hash.h"
#include "base/json.h"
#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's steady decode, a mean over its tokens. */
typedef struct bench_rank {
    double group_ms[OP_N_GROUPS]; /* they add up to the step's wall time */
} bench_rank_t;

/* One pass over the lane. */
typedef struct bench_repeat {
    bool is_control;
    double prefill_ms;     /* until the last prompt token's logits were there */
    double ttft_ms;        /* until the first token was chosen */
    double prompt_rate;    /* prompt tokens a second of prefill */
    double ms_per_token;   /* steady decode, as all of the below */
    double token_rate;     /* tokens a second */
    double p50_ms, p99_ms; /* of a token */
    double n_launches;     /* kernels that a recorded decode step launches; 0 if none was recorded */
    char token_hash[HASH_SHA256_TEXT_BYTES];
    bench_rank_t *ranks; /* [n_ranks] */
} bench_repeat_t;

/* Everything borrowed. */
typedef struct bench_report {
    const char *model, *model_digest, *backend, *command_line;
    const json_t *options;
    const char *control; /* the routes that differ in the control, as given; NULL without one */
    int n_ranks;
    int64_t prompt_len, max_new, warmup;
    const bench_repeat_t *repeats; /* [n_repeats], in the order in which they ran */
    size_t n_repeats;
    const run_memory_t *memory; /* [n_ranks] */
    const run_route_t *routes;  /* [n_routes], as the last pass of the candidate took them */
    size_t n_routes;
} bench_report_t;

void bench_report_print(const bench_report_t *report, FILE *stream);

/* The same figures; the caller releases it with json_decref. NULL if there is no memory. */
json_t *bench_report_json(const bench_report_t *report);

#ifdef __cplusplus
}
#endif
#endif
