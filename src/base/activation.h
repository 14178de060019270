#ifndef GALVANI_BASE_ACTIVATION_H
#define GALVANI_BASE_ACTIVATION_H

/* The type of an activation in backend memory: FP32 on the CPU, FP16 on CUDA. One contract in kernels/<op>/<op>.h
 * serves both. To host C every activation is a float, so that the CPU ops read as they compute; a pointer to CUDA's
 * memory is only ever passed on by the host, which never indexes or reads through it. Sizes come from the backend
 * (backend_ops_t.activation_bytes), not from sizeof. */

#ifdef __CUDACC__
#include <cuda_fp16.h>
typedef __half activation_t;
#else
typedef float activation_t;
#endif

#endif
