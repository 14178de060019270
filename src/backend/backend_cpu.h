#ifndef GALVANI_BACKEND_BACKEND_CPU_H
#define GALVANI_BACKEND_BACKEND_CPU_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host memory, OpenMP within a rank, MPI between ranks; every op is done when it returns. Sets the number of OpenMP
 * threads to this rank's share of the cores, unless OMP_NUM_THREADS is set. */
status_t backend_cpu_create(comm_t *comm, backend_t **backend);

const backend_ops_t *backend_cpu_ops(void);

#ifdef __cplusplus
}
#endif
#endif
