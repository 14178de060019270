#ifndef GALVANI_KERNELS_EXPERTS_GROUPED_CUH
#define GALVANI_KERNELS_EXPERTS_GROUPED_CUH

#include <cuda_fp16.h>

#include "experts/experts.h"

/* Routed experts for many tokens: the (token, choice) pairs are sorted by expert, and each expert's weights meet all of
 * its pairs in matrix products on the tensor cores. */
size_t experts_grouped_workspace_bytes(const experts_args_t *args);
status_t launch_experts_grouped(const experts_args_t *args, const device_queue_t *queue);

enum { EXPERT_TILE_PAIRS = 64 };

/* Up to EXPERT_TILE_PAIRS pairs of one expert, by their places in the sorted order. */
struct expert_tile {
    int32_t expert, first, n;
};

/* How the pairs were sorted, and what passes between the kernels. */
struct expert_plan {
    int32_t *n_tiles;
    int32_t *pairs;     /* [n_pairs]: token * top_k + choice, sorted by expert */
    int32_t *places;    /* [n_pairs]: where a pair went */
    expert_tile *tiles; /* [max_tiles] */
    __half *act;        /* [n_pairs, intermediate], sorted */
    __half *out;        /* [n_pairs, hidden_size], sorted */
    unsigned int max_tiles;
};

/* act and out for NVFP4 weights that become fragments of products in registers. */
const char *experts_tiles_refusal(const experts_args_t *args, const device_queue_t *queue);
void launch_experts_tiles(const experts_args_t *args, const expert_plan &plan, const device_queue_t *queue);

#endif
