#ifndef GALVANI_TESTS_RUN_STEPS_H
#define GALVANI_TESTS_RUN_STEPS_H

/* Steps of a run on two ranks, made by rule, so that a reader knows what each row must be. */

#include <string.h>

#include "trace/run_file.h"

enum { STEPS_N_RANKS = 2, STEPS_VOCAB_SIZE = 6, STEPS_N_TOP = 3, STEPS_GAP_NS = 5000, STEPS_REST_NS = 700 };

typedef struct steps_row {
    int64_t device_ns[STEPS_N_RANKS], group_ns[STEPS_N_RANKS * OP_N_GROUPS];
    token_pair_t pairs[STEPS_N_RANKS];
    float logits[STEPS_VOCAB_SIZE], top_logprobs[STEPS_N_TOP];
    int32_t top_tokens[STEPS_N_TOP];
    run_step_t step;
} steps_row_t;

/* Row `index`: token 100 + index; group g of rank r takes (g + 1) * 1000 + 10 * r + index ns; rank 0 is left with
 * STEPS_REST_NS that no group claims. */
static inline void steps_fill(int64_t index, steps_row_t *row) {
    memset(row, 0, sizeof *row);
    for (int rank = 0; rank < STEPS_N_RANKS; rank++) {
        for (int group = 0; group < OP_GROUP_HOST_GAP; group++) {
            int64_t ns = (group + 1) * 1000 + 10 * rank + index;
            row->group_ns[rank * OP_N_GROUPS + group] = ns;
            row->device_ns[rank] += ns;
        }
        row->group_ns[rank * OP_N_GROUPS + OP_GROUP_HOST_GAP] = STEPS_GAP_NS;
        row->pairs[rank] = (token_pair_t){.value = 0.5f + (float)index, .token = (int32_t)(100 * rank + index)};
    }
    for (int i = 0; i < STEPS_VOCAB_SIZE; i++)
        row->logits[i] = (float)(10 * index + i);
    for (int i = 0; i < STEPS_N_TOP; i++) {
        row->top_tokens[i] = (int32_t)(index + i);
        row->top_logprobs[i] = -1.0f - (float)i;
    }
    row->step = (run_step_t){.token = (int32_t)(100 + index),
                             .start_ns = 1000000 * index,
                             .wall_ns = row->device_ns[0] + STEPS_GAP_NS + STEPS_REST_NS,
                             .host_gap_ns = STEPS_GAP_NS,
                             .device_ns = row->device_ns,
                             .pairs = row->pairs,
                             .logits = row->logits,
                             .top_logprobs = row->top_logprobs,
                             .top_tokens = row->top_tokens,
                             .group_ns = row->group_ns};
}

static const int32_t steps_prompt[] = {7, 0, 65536, 248319, 3};
static const run_route_t steps_routes[] = {
    {"fused_gr", "on", "sizes fit"},
    {"push", "off", "one host has no peer access"},
};

static const clock_offset_t steps_clocks[STEPS_N_RANKS] = {{0, 0}, {.offset_ns = 7000, .round_trip_ns = 90}};

static inline run_file_args_t steps_args(const char *path, int64_t max_new) {
    return (run_file_args_t){.path = path,
                             .n_ranks = STEPS_N_RANKS,
                             .vocab_size = STEPS_VOCAB_SIZE,
                             .max_new = max_new,
                             .command_line = "galvani run --prompt \"\xe6\xb0\xb4\"",
                             .effective_config_json = "{\"max_new\": 5}",
                             .model_config_json = "{\"hidden_size\": 64}",
                             .model_digest = "d1",
                             .backend = "cpu",
                             .gpus = "",
                             .driver = "",
                             .cuda = "",
                             .nccl = "",
                             .mpi = "Open MPI v4.1.4",
                             .rank_hosts = "host",
                             .prompt = steps_prompt,
                             .n_prompt = sizeof steps_prompt / sizeof steps_prompt[0],
                             .prompt_text = "\xe6\xb0\xb4?",
                             .has_logits = true,
                             .has_ops = true,
                             .n_top_logprobs = STEPS_N_TOP,
                             .routes = steps_routes,
                             .n_routes = 2,
                             .clocks = steps_clocks,
                             .floor_bytes = {[OP_GROUP_GR] = 2e9, [OP_GROUP_LM_HEAD] = 12345},
                             .bytes_per_s = 4e12};
}

#endif
