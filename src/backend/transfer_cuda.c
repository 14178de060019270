#include "backend/transfer_cuda.h"

#include <sched.h>
#include <string.h>

#include "backend/check_cuda.h"
#include "backend/state_cuda.h"
#include "base/clock.h"
#include "base/heartbeat.h"

/* Around calls that return when the queued work is done, sums over ranks among it. */
static void set_on_device(const cuda_state_t *state, bool is_on_device) {
    if (state->all_reduce) heartbeat_set_on_device(is_on_device);
}

status_t cuda_synchronize(backend_t *backend) {
    const cuda_state_t *state = state_of(backend);
    set_on_device(state, true);
    cudaError_t error = cudaStreamSynchronize(state->queue.stream);
    set_on_device(state, false);
    TRY(check_cuda(error, "the work on the device"));
    return state->all_reduce ? all_reduce_check(state->all_reduce) : STATUS_OK;
}

/* Looks into memory, which costs the device nothing, and now and then asks whether there is still work to wait for. */
status_t cuda_await(backend_t *backend, const uint64_t *word, uint64_t value) {
    const int64_t patience_ns = 1000000;
    const cuda_state_t *state = state_of(backend);
    int64_t asked_ns = clock_now_ns();
    status_t status = STATUS_OK;
    set_on_device(state, true);
    while (status == STATUS_OK && __atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
        sched_yield();
        if (clock_now_ns() - asked_ns < patience_ns) continue;
        asked_ns = clock_now_ns();
        cudaError_t error = cudaStreamQuery(state->queue.stream);
        if (error == cudaErrorNotReady) continue;
        status = check_cuda(error, "the work on the device");
        if (status == STATUS_OK && __atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
            status = status_fail(STATUS_DEVICE, "the device has ended its work without saying so");
    }
    set_on_device(state, false);
    TRY(status);
    return state->all_reduce ? all_reduce_check(state->all_reduce) : STATUS_OK;
}

status_t cuda_upload(backend_t *backend, void *destination, const void *host, size_t bytes) {
    cuda_state_t *state = state_of(backend);
    queue_stamp(&state->queue);
    if (bytes <= CUDA_SLOT_BYTES) {
        if (state->next_slot == CUDA_N_SLOTS) { /* every slot may still be read */
            TRY(cuda_synchronize(backend));
            state->next_slot = 0;
        }
        void *slot = state->slots + (size_t)state->next_slot++ * CUDA_SLOT_BYTES;
        memcpy(slot, host, bytes);
        return check_cuda(cudaMemcpyAsync(destination, slot, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                          "a copy to the device");
    }
    TRY(check_cuda(cudaMemcpyAsync(destination, host, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                   "a copy to the device"));
    return cuda_synchronize(backend);
}

status_t cuda_download(backend_t *backend, void *host, const void *source, size_t bytes) {
    const cuda_state_t *state = state_of(backend);
    set_on_device(state, true); /* the copy itself waits where `host` is not pinned */
    cudaError_t error = cudaMemcpyAsync(host, source, bytes, cudaMemcpyDeviceToHost, state->queue.stream);
    set_on_device(state, false);
    TRY(check_cuda(error, "a copy from the device"));
    return cuda_synchronize(backend);
}

status_t cuda_copy(backend_t *backend, void *destination, const void *source, size_t bytes) {
    const device_queue_t *queue = &state_of(backend)->queue;
    queue_stamp(queue);
    return check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, queue->stream),
                      "a copy on the device");
}

status_t cuda_stage(backend_t *backend, int index, void **host) {
    cuda_state_t *state = state_of(backend);
    if (!state->stages) {
        void *memory;
        TRY(check_cuda(cudaHostAlloc(&memory, (size_t)BACKEND_N_STAGES * BACKEND_STAGE_BYTES, cudaHostAllocDefault),
                       "pinning host memory"));
        state->stages = memory;
        for (int i = 0; i < BACKEND_N_STAGES; i++)
            TRY(check_cuda(cudaEventCreateWithFlags(&state->staged[i], cudaEventDisableTiming), "creating an event"));
    }
    TRY(check_cuda(cudaEventSynchronize(state->staged[index]), "a copy to the device"));
    *host = state->stages + (size_t)index * BACKEND_STAGE_BYTES;
    return STATUS_OK;
}

status_t cuda_stage_upload(backend_t *backend, int index, void *destination, size_t bytes) {
    cuda_state_t *state = state_of(backend);
    const void *host = state->stages + (size_t)index * BACKEND_STAGE_BYTES;
    TRY(check_cuda(cudaMemcpyAsync(destination, host, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                   "a copy to the device"));
    return check_cuda(cudaEventRecord(state->staged[index], state->queue.stream), "a copy to the device");
}

void cuda_free_stages(backend_t *backend) {
    cuda_state_t *state = state_of(backend);
    if (!state->stages) return;
    for (int i = 0; i < BACKEND_N_STAGES; i++)
        if (state->staged[i]) cudaEventDestroy(state->staged[i]);
    cudaFreeHost(state->stages);
    state->stages = NULL;
}
