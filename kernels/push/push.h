#ifndef GALVANI_KERNELS_PUSH_H
#define GALVANI_KERNELS_PUSH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PUSH_MAX_RANKS = 8,
    PUSH_MAX_BLOCKS = 128,
    PUSH_SHARED_BLOCKS = 64, /* where ranks share a device: few enough that kernels of all fit it together */
    PUSH_BLOCK_ITEMS = 4096, /* FP16 values that one block moves in one round at most */

    /* The form for few values. */
    PUSH_SMALL_MAX_BLOCKS = 32,
    PUSH_SMALL_THREADS = 128,
    PUSH_SMALL_BLOCK_ITEMS = 4 * PUSH_SMALL_THREADS,
    PUSH_SMALL_ITEMS = PUSH_SMALL_MAX_BLOCKS * PUSH_SMALL_BLOCK_ITEMS,

    PUSH_PART_ITEMS = 4096 /* most values of a sum that is deferred (push_part.cuh) */
};

/* Two 32-bit words of data, each with the round that it belongs to in the same 64 bits: data in the lower half. */
typedef struct push_word {
    uint64_t half[2];
} push_word_t;

/* A rank's own counts of the rounds that are over. */
typedef struct push_counts {
    uint32_t blocks[PUSH_MAX_BLOCKS], small_blocks[PUSH_SMALL_MAX_BLOCKS], pairs, parts;
} push_counts_t;

/* What a rank's block of device memory holds for the others to write into. [2]: for even and for odd rounds. */
typedef struct push_mailbox {
    uint16_t values[2][PUSH_MAX_RANKS][PUSH_MAX_BLOCKS][PUSH_BLOCK_ITEMS]; /* that rank r's block b sent */
    push_word_t small[2][PUSH_MAX_RANKS][PUSH_SMALL_MAX_BLOCKS][PUSH_SMALL_THREADS];
    push_word_t pairs[2][PUSH_MAX_RANKS];               /* of the exchange in push.cuh */
    uint32_t parts[2][PUSH_MAX_RANKS][PUSH_PART_ITEMS]; /* of deferred sums (push_part.cuh) */
    uint32_t flags[2][PUSH_MAX_RANKS][PUSH_MAX_BLOCKS]; /* the round that `values` belong to */
    push_counts_t counts;
} push_mailbox_t;

/* A mailbox has the same size for any number of ranks; this for each rank of two or more is never too little. */
#define PUSH_PEER_BYTES (sizeof(push_mailbox_t) / 2)

/* data[i] = sum over ranks of data[i], added in rank order in FP32 and rounded once, the same bits on every rank.
 *
 * Each call is one or more rounds of its blocks. In a round, block b of a rank writes values into the mailboxes of its
 * peers, waits in its own mailbox for those of every peer's block b, and adds up. The general form writes the values
 * and then a flag; the form for few values (PUSH_SMALL_ITEMS, route push_allreduce) writes them in words that carry the
 * number of the round, so that they need neither a flag nor a fence.
 *
 * Visibility, general form: a block's writes come before its __syncthreads, after which thread q raises the flag at
 * rank q with a release at system scope; the reader's thread q acquires at system scope before a __syncthreads, behind
 * which the block reads. So whoever sees the flag sees the values. They are read past L1, which peers' writes do not
 * reach. Small form: 64 bits are written and read as one, so whoever sees the round in one half sees the data in the
 * other.
 *
 * Reuse: what round n wrote is overwritten in round n + 2. A rank writes that only after its own round n + 1, in which
 * it saw something that every peer's block b wrote in n + 1. That peer wrote it when its block b had read all of round
 * n: in the general form a __syncthreads or the end of a kernel stands between that and the flag; in the small form
 * round n + 1 is a later kernel of its stream, which starts to write behind previous_wait. So all have read round n
 * before anyone overwrites it, and a rank that is ahead is never more than one round ahead. As blocks count their own
 * rounds, and the two forms have mailboxes and counts of their own, calls of different sizes mix freely.
 *
 * Numbers: rounds count modulo 2^32 and are compared for equality with n. A flag can only hold n - 2 or n then, which
 * differ. So can a word of the small form, because a block writes all its words in each of its rounds, those without
 * data too.
 *
 * A wait longer than limit_ns writes 1 + the missing rank to *fault, and from then on nothing waits: the sums are
 * wrong, and the host, which looks at *fault at its next synchronisation, ends the job. */
typedef struct push_args {
    int tp_rank, tp_size;
    push_mailbox_t *mailboxes[PUSH_MAX_RANKS]; /* [tp_size], [tp_rank] is this rank's own */
    int32_t *fault;                            /* in mapped host memory, 0 at first */
    int64_t limit_ns;
    bool has_own_device; /* no two ranks share one: blocks that wait take nothing from others. The same on all ranks */
    activation_t *data;  /* [n_items], aligned to 16 bytes */
    size_t n_items;      /* any */
} push_args_t;

status_t launch_push(const push_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
