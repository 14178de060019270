#ifndef GALVANI_BACKEND_CUDA_SIZES_H
#define GALVANI_BACKEND_CUDA_SIZES_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What cannot be counted before it is there. */
enum {
    CUDA_RUNTIME_MIB = 768, /* an allowance for the context, the program's code, cuBLAS and NCCL */
    /* 0.16 GiB for the 1,928 kernels of a step of 48 layers, as published for the same model on V100s. */
    CUDA_RECORDED_LAYER_KIB = 3500
};

/* The CUDA backend's sizes for a memory plan made where it was not built in. Workspace is what its ops take or a little
 * more. */
extern const backend_ops_t cuda_sizes;

#ifdef __cplusplus
}
#endif
#endif
