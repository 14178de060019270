#include "device/convert.h"
#include "device/device.cuh"

/* One thread a value, any size. Losses are rare, so a global atomic for each is no cost. */
static __global__ void bf16_to_f16_kernel(uint16_t *data, int64_t n, f16_losses_t *losses) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = __uint_as_float((uint32_t)data[i] << 16);
    __half half = __float2half_rn(fminf(fmaxf(value, -65504.0f), 65504.0f));
    if (isnan(value)) half = __float2half_rn(value);
    if (fabsf(value) > 65504.0f)
        atomicAdd(&losses->n_saturated, 1ull);
    else if (__half2float(half) != value && !isnan(value))
        atomicAdd(&losses->n_rounded, 1ull);
    data[i] = __half_as_ushort(half);
}

status_t launch_bf16_to_f16(void *data, int64_t n, f16_losses_t *losses, const device_queue_t *queue) {
    if (n == 0) return STATUS_OK;
    bf16_to_f16_kernel<<<blocks_for(n, 256), 256, 0, queue->stream>>>((uint16_t *)data, n, losses);
    return queue_check_launch("bf16_to_f16");
}
