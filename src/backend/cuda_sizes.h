#ifndef GALVANI_BACKEND_CUDA_SIZES_H
#define GALVANI_BACKEND_CUDA_SIZES_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What cannot be counted before it is there, as measured on an H200 (driver 580, CUDA 13.0) and a margin. */
enum {
    /* Measured: 1,026, for T = 1 and T = 2 (results/h200-tp1-q8 and h200-tp2-q8: what the device held, less what was
     * allocated with its rounding, and the recording). Of it the context alone is 527. NCCL is not in it. */
    CUDA_RUNTIME_MIB = 1088,
    /* Measured: 4 MiB for the two forms of a step of 48 layers, of 460 kernels each. */
    CUDA_RECORDED_LAYER_KIB = 256,
    /* cudaMalloc takes whole pages of 2 MiB for more than 1 MiB, and shares them among what is smaller. */
    CUDA_ALLOC_GRANULE_MIB = 2
};

/* The CUDA backend's sizes for a memory plan made where it was not built in. Workspace is what its ops take or a little
 * more. */
extern const backend_ops_t cuda_sizes;

#ifdef __cplusplus
}
#endif
#endif
