#ifndef GALVANI_KERNELS_PUSH_H
#define GALVANI_KERNELS_PUSH_H

#include <stddef.h>
#include <stdint.h>

#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PUSH_MAX_RANKS = 8,
    PUSH_MAX_BLOCKS = 32,   /* few enough that kernels of all ranks fit one device together */
    PUSH_BLOCK_ITEMS = 4096 /* FP16 values of one block at most */
};

/* What a rank's block of device memory holds for the others to write into. */
typedef struct push_mailbox {
    /* The values that rank r's block b sent, for odd and for even rounds of that block. */
    uint16_t values[2][PUSH_MAX_RANKS][PUSH_MAX_BLOCKS][PUSH_BLOCK_ITEMS];
    uint32_t flags[2][PUSH_MAX_RANKS][PUSH_MAX_BLOCKS]; /* the round that they belong to */
    uint32_t rounds[PUSH_MAX_BLOCKS];                   /* this rank's own count of each block's rounds */
} push_mailbox_t;

/* A mailbox has the same size for any number of ranks; this for each rank of two or more is never too little. */
#define PUSH_PEER_BYTES (sizeof(push_mailbox_t) / 2)

/* data[i] = sum over ranks of data[i], added in rank order in FP32 and rounded once, the same bits on every rank.
 *
 * Each call is one round of its blocks. Block b of a rank writes its values into every rank's mailbox, then raises its
 * flag there to the round's number, waits in its own mailbox until every rank's flag for b is at that number, and adds
 * up.
 *
 * Visibility: a block's writes come before its __syncthreads, after which thread q raises the flag at rank q with a
 * release at system scope; the reader's thread q acquires at system scope before a __syncthreads, behind which the
 * block reads. So whoever sees the flag sees the values. They are read past L1, which peers' writes do not reach.
 *
 * Reuse: values and flags of round n are overwritten in round n + 2. A rank writes those only after its own round n +
 * 1, in which it saw the flag of every rank's block b for n + 1. That rank raised it in a kernel that its stream
 * started after its round n had ended. So all have read round n before anyone overwrites it, and a rank that is ahead
 * is never more than one round ahead. As blocks count their own rounds, calls of different sizes mix freely.
 *
 * Numbers: rounds count modulo 2^32. A flag is compared for equality with n while it can only hold n - 2 or n, which
 * differ.
 *
 * A wait longer than limit_ns writes 1 + the missing rank to *fault, and from then on nothing waits: the sums are
 * wrong, and the host, which looks at *fault at its next synchronisation, ends the job. */
typedef struct push_args {
    int tp_rank, tp_size;
    push_mailbox_t *mailboxes[PUSH_MAX_RANKS]; /* [tp_size], [tp_rank] is this rank's own */
    int32_t *fault;                            /* in mapped host memory, 0 at first */
    int64_t limit_ns;
    activation_t *data; /* [n_items], aligned to 16 bytes */
    size_t n_items;     /* any; more than PUSH_MAX_BLOCKS * PUSH_BLOCK_ITEMS take several launches */
} push_args_t;

status_t launch_push(const push_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
