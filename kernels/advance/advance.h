#ifndef GALVANI_KERNELS_ADVANCE_H
#define GALVANI_KERNELS_ADVANCE_H

/* Greedy decode whose token stays on the device: behind a step, every rank takes the same token from all ranks' pairs
 * and makes it the next step's input, so that the step can be launched before the host has seen the token. The host
 * reads what was chosen from a ring of records in its own memory. For devices alone. */

#include "argmax/argmax.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

struct push_args; /* push/push.h */

enum {
    ADVANCE_MAX_RANKS = 8,
    ADVANCE_MAX_CONTEXT = 8,
    ADVANCE_N_RECORDS = 4 /* the host is one step behind the device; a record more is written then */
};

/* One choice, in mapped host memory. `number` is written last: 1 for the first choice of a ring, record i % N_RECORDS
 * holds number i + 1. */
typedef struct advance_record {
    uint64_t number;
    int64_t begin_ns, end_ns; /* of the step, on the device's clock */
    int32_t token;            /* the largest value of any pair, the lowest id among equals; -1: one was NaN or Inf */
    int32_t reserved;
    token_pair_t pairs[ADVANCE_MAX_RANKS]; /* [tp_size] */
} advance_record_t;

typedef struct advance_args {
    /* The step that was done, which becomes the next one. */
    int64_t n_tokens;         /* that it had; any */
    int64_t n_context;        /* up to ADVANCE_MAX_CONTEXT */
    const token_pair_t *pair; /* this rank's */
    int64_t *start_pos;       /* grows by n_tokens */
    int32_t *context;         /* [n_context]: the tokens before `tokens` become those before the new token */
    int32_t *tokens;          /* [n_tokens]; [0] becomes the new token, or 0 where that is -1 */

    /* The backend's. */
    const struct push_args *push; /* where there is more than one rank */
    int64_t *begin_ns;            /* of the step, on the device's clock; in device memory, as is n_records */
    uint64_t *n_records;          /* so far */
    advance_record_t *records;    /* [ADVANCE_N_RECORDS], in mapped host memory */
} advance_args_t;

/* Collective, in that each rank's kernel waits for every other's pair. */
status_t launch_advance(const advance_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
