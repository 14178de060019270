#include "device/launch.cuh"

status_t queue_check_launch(const char *op) {
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "CUDA: %s cannot be launched: %s", op, cudaGetErrorString(error));
}

static __global__ void stamp_kernel(stamp_t stamp) { previous_wait(stamp); }

void queue_stamp(const device_queue_t *queue) {
    if (queue->due->n) launch_kernel(queue, stamp_kernel, 1, 1, 0);
}

static __global__ void empty_kernel() {}

status_t queue_check_device(const char *device_name, int *code_arch) {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, empty_kernel);
    if (error == cudaSuccess) {
        *code_arch = attributes.ptxVersion;
        return STATUS_OK;
    }
    return status_fail(STATUS_DEVICE, "this galvani has no code for %s: %s; build it with CUDA_ARCHS for that device",
                       device_name, cudaGetErrorString(error));
}
