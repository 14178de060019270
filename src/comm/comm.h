#ifndef GALVANI_COMM_COMM_H
#define GALVANI_COMM_COMM_H

/* The tensor-parallel group: one MPI process per rank. Every function but the accessors is collective: all ranks call
 * it in the same order. An MPI failure ends the job with STATUS_DEVICE, so there is nothing to return for it. */

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct comm comm_t;

/* What comm_init takes for each rank of the job where there are several. */
enum { COMM_PEER_BYTES = 256 << 10 };

/* Starts MPI (once per process). STATUS_DEVICE if it cannot be started. */
status_t comm_init(comm_t **comm);

/* Ends MPI. All ranks must arrive: call it only after comm_agree_at_end. */
void comm_finalize(comm_t *comm);

int comm_tp_rank(const comm_t *comm);
int comm_tp_size(const comm_t *comm);

/* Rank among the processes of this host, and how many they are. */
int comm_local_rank(const comm_t *comm);
int comm_local_size(const comm_t *comm);

/* How many threads this rank should use: the cores of its affinity mask, each divided by the ranks that share it, but
 * no more than the control group's quota allows; at least 1. */
int comm_local_cores(const comm_t *comm);

/* Name and version of the MPI library, one line; owned by the comm. */
const char *comm_library(const comm_t *comm);

/* Whether the functions below that move plain bytes (gather, all_gather, broadcast) take a CUDA device's memory: the
 * MPI library of every rank says so at run time. It knows nothing of streams, so work on the memory must be done. */
bool comm_takes_device(const comm_t *comm);

/* The host of every rank, "a,a,b,b" in rank order; owned by the comm. */
const char *comm_hosts(const comm_t *comm);

/* Makes one outcome of many: returns the status of the lowest rank that failed, on every rank, and gives every rank
 * that rank's message (naming the rank, if it is neither all of them nor rank 0). STATUS_OK if none failed. */
status_t comm_agree(comm_t *comm, status_t status);

/* comm_agree for the last time, from wherever a rank comes. A rank that failed alone, while the others wait for it in
 * another call, finds that they do not arrive here within two seconds; it prints its message and ends the job. So no
 * failure that is returned can leave the others waiting. */
status_t comm_agree_at_end(comm_t *comm, status_t status);

/* data[i] = sum over ranks of data[i], added in rank order in FP32, so that every rank gets the same bits whatever the
 * library's algorithm is. */
status_t comm_all_reduce_sum(comm_t *comm, float *data, size_t n);

/* Rank r's `bytes` stand at gathered + r * bytes, on rank 0 only (`gathered` may be NULL elsewhere). */
void comm_gather(comm_t *comm, const void *data, size_t bytes, void *gathered);

/* The same on every rank. */
void comm_all_gather(comm_t *comm, const void *data, size_t bytes, void *gathered);

/* Rank 0's bytes to all. */
void comm_broadcast(comm_t *comm, void *data, size_t bytes);

/* Returns when every rank has called it. */
void comm_barrier(comm_t *comm);

/* Ends every rank at once with `status` as mpirun's exit status, for a fault met where the others cannot be reached. */
void comm_abort(comm_t *comm, status_t status) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
