#ifndef GALVANI_BACKEND_TRANSFER_CUDA_H
#define GALVANI_BACKEND_TRANSFER_CUDA_H

/* Copies to and from the device, and waiting for it: the entries of backend_ops_t (backend.h) of these names. */

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

status_t cuda_synchronize(backend_t *backend);
status_t cuda_await(backend_t *backend, const uint64_t *word, uint64_t value);
status_t cuda_upload(backend_t *backend, void *destination, const void *host, size_t bytes);
status_t cuda_download(backend_t *backend, void *host, const void *source, size_t bytes);
status_t cuda_copy(backend_t *backend, void *destination, const void *source, size_t bytes);
status_t cuda_stage(backend_t *backend, int index, void **host);
status_t cuda_stage_upload(backend_t *backend, int index, void *destination, size_t bytes);

/* Ends what cuda_stage began; the copies from the stages are complete. */
void cuda_free_stages(backend_t *backend);

#ifdef __cplusplus
}
#endif
#endif
