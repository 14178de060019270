#include "backend/gemm_cuda.h"

#include <cublas_v2.h>

#include "backend/check_cuda.h"
#include "linear/dense8.h"

/* An 8-bit matrix as FP16, in the scratch; the order of the stream keeps it until its product is done. */
static status_t widen(const device_queue_t *queue, matrix_t *weight) {
    matrix_t wide = {.data = queue->gemm_scratch, .dtype = DTYPE_F16, .rows = weight->rows, .columns = weight->columns};
    if (!wide.data) return status_fail(STATUS_DEVICE, "there is no room to turn an 8-bit matrix into FP16");
    TRY(launch_dense8_dequantize(&(dense8_args_t){.source = *weight, .target = wide}, queue));
    *weight = wide;
    return STATUS_OK;
}

/* cuBLAS matrices are column-major: weight [rows, columns] is its columns x rows matrix, transposed in the product. */
static status_t gemm(const device_queue_t *queue, const gemm_args_t *args) {
    const float one = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    matrix_t weight = args->weight;
    queue_stamp(queue);
    if (dense8_is_format(weight.dtype)) TRY(widen(queue, &weight));
    int rows = (int)weight.rows, columns = (int)weight.columns, n_tokens = (int)args->n_tokens;
    cublasStatus_t status =
        cublasGemmEx(queue->gemm_context, CUBLAS_OP_T, CUBLAS_OP_N, rows, n_tokens, columns, &one, weight.data,
                     CUDA_R_16F, columns, args->x, CUDA_R_16F, columns, &beta, args->y,
                     args->y_is_f32 ? CUDA_R_32F : CUDA_R_16F, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "cuBLAS: the product of %d x %d weights with %d tokens failed: %s", rows, columns,
                       n_tokens, cublasGetStatusString(status));
}

status_t gemm_create(device_queue_t *queue) {
    cublasHandle_t handle;
    cublasStatus_t status = cublasCreate(&handle);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasSetStream(handle, queue->stream);
        if (status != CUBLAS_STATUS_SUCCESS) cublasDestroy(handle);
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return status_fail(STATUS_DEVICE, "cuBLAS cannot be started: %s", cublasGetStatusString(status));
    queue->gemm = gemm;
    queue->gemm_context = handle;
    return STATUS_OK;
}

void gemm_destroy(device_queue_t *queue) {
    if (queue->gemm_context) cublasDestroy(queue->gemm_context);
    queue->gemm_context = NULL;
}
