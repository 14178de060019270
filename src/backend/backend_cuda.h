#ifndef GALVANI_BACKEND_BACKEND_CUDA_H
#define GALVANI_BACKEND_BACKEND_CUDA_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this process sees a CUDA device. */
bool backend_cuda_available(void);

/* One device a rank, chosen by the rank's number on its host (several ranks share one where there are fewer), FP16
 * activations, one stream. The PLE table lies in pinned host memory, everything else on the device. Collective.
 * STATUS_DEVICE without a device that this build has code for. */
status_t backend_cuda_create(const backend_args_t *args, backend_t **backend);

const backend_ops_t *backend_cuda_ops(void);

void backend_cuda_print_version(FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
