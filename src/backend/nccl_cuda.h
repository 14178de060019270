#ifndef GALVANI_BACKEND_NCCL_CUDA_H
#define GALVANI_BACKEND_NCCL_CUDA_H

/* NCCL over the ranks of a comm_t, bootstrapped through MPI. */

#include "comm/comm.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nccl nccl_t;

/* Collective. The communicator is made without blocking: STATUS_DEVICE with NCCL's reason if it is not complete within
 * a minute, if ranks share a device (NCCL needs one each), or if this galvani was built without NCCL. */
status_t nccl_create(comm_t *comm, struct CUstream_st *stream, nccl_t **nccl);
void nccl_destroy(nccl_t *nccl); /* NULL is allowed */

/* FP16 sum in place, stream-ordered. Errors that NCCL met since the last call are reported here. */
status_t nccl_all_reduce(nccl_t *nccl, activation_t *data, size_t n);

/* "2.28.9"; "" without NCCL. Static. */
const char *nccl_version(void);

#ifdef __cplusplus
}
#endif
#endif
