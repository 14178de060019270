#ifndef GALVANI_BACKEND_MEMORY_CUDA_H
#define GALVANI_BACKEND_MEMORY_CUDA_H

/* Memory on the device and pinned memory on the host: the entries of backend_ops_t (backend.h) of these names. */

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

status_t cuda_check_memory(backend_t *backend, const size_t needed[MEMORY_N_LABELS]);
status_t cuda_available(backend_t *backend, int n_ranks, size_t *bytes);
status_t cuda_alloc(backend_t *backend, memory_label_t label, size_t bytes, void **pointer);
void cuda_free(backend_t *backend, void *pointer);
status_t cuda_zero(backend_t *backend, void *pointer, size_t bytes);
void *cuda_host_address(backend_t *backend, void *pointer);

/* Tells base/memory.h how much of the device is taken now, by whomever. */
void cuda_note_memory(void);

#ifdef __cplusplus
}
#endif
#endif
