#ifndef GALVANI_KERNELS_QSA_M1_SPLIT_CUH
#define GALVANI_KERNELS_QSA_M1_SPLIT_CUH

/* How one token's attention is split: SPLIT_BLOCKS blocks of tokens a split, the tail being a block of its own behind
 * the selected ones. */

#include "qsa/qsa.h"
#include "qsa/qsa_m1.cuh"

enum { SPLIT_BLOCKS = 8, SPLIT_TOKENS = SPLIT_BLOCKS * QSA_RATIO, MAX_SPLITS = QSA_MAX_SELECT / SPLIT_BLOCKS + 1 };

/* A share of every query head's softmax: its largest score, its sum of exponentials, its weighted values. */
struct partials {
    float *largest, *sum; /* [n_heads, n_splits] */
    float *values;        /* [n_heads, n_splits, DIM] */
    int n_splits;
};

/* Of the query at this position: how many blocks it sees, how many of them it takes, and tokens behind the last one. */
struct visible {
    int n_blocks, n_taken, n_tail;
    bool is_all; /* the list is not written then */
    __device__ visible(int64_t position, int n_select) {
        n_blocks = (int)((position + 1) / QSA_RATIO);
        n_tail = (int)((position + 1) % QSA_RATIO);
        is_all = n_blocks <= n_select;
        n_taken = min(n_blocks, n_select);
    }
    __device__ int n_splits() const { return (n_taken + (n_tail > 0) + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS; }
};

/* What block `index` of a split holds. */
struct token_block {
    int64_t first;
    int n_tokens; /* 0 behind the last one */
    __device__ token_block(const qsa_attend_args_t &args, const visible &seen, int index) {
        n_tokens = index < seen.n_taken ? QSA_RATIO : index == seen.n_taken ? seen.n_tail : 0;
        int listed =
            args.blocks[min(index, (int)args.shape.n_select - 1)]; /* read anyway: no branch before the loads */
        first = (int64_t)(index >= seen.n_taken ? seen.n_blocks : seen.is_all ? index : listed) * QSA_RATIO;
    }
};

#endif
