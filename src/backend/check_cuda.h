#ifndef GALVANI_BACKEND_CHECK_CUDA_H
#define GALVANI_BACKEND_CHECK_CUDA_H

/* CUDA and cuBLAS calls as statuses. */

#include <cuda_runtime_api.h>

#include "base/status.h"

/* STATUS_OK or STATUS_DEVICE with what was attempted and CUDA's reason. */
static inline status_t check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "CUDA: %s failed: %s", what, cudaGetErrorString(error));
}

#endif
