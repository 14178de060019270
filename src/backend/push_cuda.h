#ifndef GALVANI_BACKEND_PUSH_CUDA_H
#define GALVANI_BACKEND_PUSH_CUDA_H

/* The push all-reduce (kernels/push/push.h) over the ranks of one host: mailboxes in device memory, opened by every
 * rank through CUDA's inter-process handles. Ranks may share a device. */

#include "comm/comm.h"
#include "device/queue.h"
#include "push/push.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct push push_t;

/* Collective. `first_round` is where the counts of rounds start (0). STATUS_DEVICE if the ranks are on several hosts,
 * more than PUSH_MAX_RANKS, or cannot reach each other's memory. `*push` is to be destroyed also on failure. */
status_t push_create(comm_t *comm, const device_queue_t *queue, uint32_t first_round, push_t **push);
void push_destroy(push_t *push); /* collective; NULL is allowed */

/* What a kernel needs to write into the ranks' mailboxes; `data` and `n_items` are not set. The push's. */
const push_args_t *push_get_args(const push_t *push);

/* FP16 sum in place, stream-ordered. */
status_t push_all_reduce(push_t *push, activation_t *data, size_t n);

/* After a synchronisation: STATUS_DEVICE naming the rank that was missing for too long. */
status_t push_check(const push_t *push);

#ifdef __cplusplus
}
#endif
#endif
