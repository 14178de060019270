#ifndef GALVANI_BACKEND_GEMM_CUDA_H
#define GALVANI_BACKEND_GEMM_CUDA_H

/* cuBLAS behind device_queue_t.gemm. */

#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets queue->gemm and its context; queue->stream is set. STATUS_DEVICE. gemm_destroy ends it. */
status_t gemm_create(device_queue_t *queue);
void gemm_destroy(device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
