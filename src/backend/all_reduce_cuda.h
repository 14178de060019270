#ifndef GALVANI_BACKEND_ALL_REDUCE_CUDA_H
#define GALVANI_BACKEND_ALL_REDUCE_CUDA_H

/* Sums of FP16 partial results over the ranks, in device memory, stream-ordered. Collective throughout. */

#include <stdbool.h>

#include "comm/comm.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum all_reduce_route {
    ALL_REDUCE_AUTO,
    ALL_REDUCE_PUSH, /* one host: each rank writes into its peers' buffers (kernels/push) */
    ALL_REDUCE_NCCL,
    ALL_REDUCE_MPI, /* works everywhere, cannot be recorded; through pinned host memory where MPI takes no device's */
} all_reduce_route_t;

typedef struct all_reduce all_reduce_t;

typedef struct all_reduce_args {
    comm_t *comm; /* borrowed, as is the queue */
    const device_queue_t *queue;
    all_reduce_route_t route;
} all_reduce_args_t;

/* STATUS_DEVICE where the route asked for cannot be had; ALL_REDUCE_AUTO takes the first of push, nccl and mpi that
 * can.
 */
status_t all_reduce_create(const all_reduce_args_t *args, all_reduce_t **all_reduce);
void all_reduce_destroy(all_reduce_t *all_reduce); /* NULL is allowed */

/* data[i] = sum over ranks of data[i], the same bits on every rank. */
status_t all_reduce_run(all_reduce_t *all_reduce, activation_t *data, size_t n);

/* After a synchronisation: STATUS_DEVICE if a sum before it could not be made, naming the rank that was missing. */
status_t all_reduce_check(const all_reduce_t *all_reduce);

/* What was chosen. */
all_reduce_route_t all_reduce_get_route(const all_reduce_t *all_reduce);
const char *all_reduce_route_name(all_reduce_route_t route);

/* The ranks' mailboxes where push was chosen, else NULL. The all_reduce's. */
const struct push_args *all_reduce_get_push(const all_reduce_t *all_reduce);

/* Inverse of all_reduce_route_name; false for anything else. */
bool all_reduce_route_from_name(const char *name, all_reduce_route_t *route);

/* Route cuda_aware_mpi: whether the next call to MPI gets device memory. The same on every rank. */
bool all_reduce_takes_device(const comm_t *comm, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
