#ifndef GALVANI_BACKEND_RECORDING_CUDA_H
#define GALVANI_BACKEND_RECORDING_CUDA_H

/* Recorded steps, as CUDA graphs: the entries of backend_ops_t (backend.h) of these names. */

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

status_t cuda_record_begin(backend_t *backend);
status_t cuda_record_end(backend_t *backend, void **recording);
size_t cuda_record_n_launches(const void *recording);
status_t cuda_replay(backend_t *backend, void *recording);
void cuda_record_free(backend_t *backend, void *recording);

#ifdef __cplusplus
}
#endif
#endif
