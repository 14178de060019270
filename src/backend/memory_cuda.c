#include "backend/memory_cuda.h"

#include "backend/check_cuda.h"
#include "backend/pinned_cuda.h"
#include "backend/state_cuda.h"

static bool is_pinned(memory_label_t label) { return label == MEMORY_PLE_TABLE || label == MEMORY_PINNED; }

static double gib(size_t bytes) { return (double)bytes / (1024.0 * 1024.0 * 1024.0); }

/* How many of `n_local` ranks of this host share this rank's device: of those that run it is known, others would be
 * dealt out in turn. */
static size_t n_sharing(const backend_t *backend, int n_local) {
    int n_devices = 1;
    if (n_local == comm_local_size(backend->comm)) return state_of(backend)->n_sharing;
    cudaGetDeviceCount(&n_devices);
    size_t n = 0;
    for (int rank = 0; rank < n_local; rank++) {
        if (rank % n_devices == comm_local_rank(backend->comm) % n_devices) n++;
    }
    return n;
}

status_t cuda_check_memory(backend_t *backend, const size_t needed[MEMORY_N_LABELS]) {
    size_t device_bytes = 0, pinned_bytes = 0, device_free, device_total,
           sharing = n_sharing(backend, comm_local_size(backend->comm));
    for (int label = 0; label < MEMORY_N_LABELS; label++) {
        size_t *sum = is_pinned((memory_label_t)label) ? &pinned_bytes : &device_bytes;
        if (__builtin_add_overflow(*sum, needed[label], sum))
            return status_fail(STATUS_MEMORY, "the memory needed does not fit in 64 bits");
    }
    TRY(check_cuda(cudaMemGetInfo(&device_free, &device_total), "asking for the free memory"));
    if (device_bytes > device_free / sharing)
        return status_fail(STATUS_MEMORY,
                           "not enough device memory: a rank needs %.2f GiB (weights %.2f, KV cache %.2f, states %.2f, "
                           "workspace %.2f); %s has %.2f GiB free of %.2f, for %zu rank(s)",
                           gib(device_bytes), gib(needed[MEMORY_WEIGHTS]), gib(needed[MEMORY_KV_CACHE]),
                           gib(needed[MEMORY_STATE]), gib(needed[MEMORY_WORKSPACE]), state_of(backend)->device_name,
                           gib(device_free), gib(device_total), sharing);
    size_t host_bytes, host_free = memory_available_bytes();
    TRY(memory_product(pinned_bytes, (size_t)comm_local_size(backend->comm), &host_bytes));
    if (host_bytes > host_free)
        return status_fail(STATUS_MEMORY,
                           "not enough host memory: %d rank(s) need %.2f GiB each for the PLE table, in pinned memory; "
                           "%.2f GiB are available",
                           comm_local_size(backend->comm), gib(pinned_bytes), gib(host_free));
    return STATUS_OK;
}

/* What the libraries have taken already counts as available. */
status_t cuda_available(backend_t *backend, int n_ranks, size_t *bytes) {
    size_t device_free, device_total;
    TRY(check_cuda(cudaMemGetInfo(&device_free, &device_total), "asking for the free memory"));
    *bytes = device_free / n_sharing(backend, n_ranks) + backend->ops->runtime_bytes;
    return STATUS_OK;
}

status_t cuda_alloc(backend_t *backend, memory_label_t label, size_t bytes, void **pointer) {
    cuda_state_t *state = state_of(backend);
    void *memory, *record;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(block_t), &record));
    size_t asked = bytes ? bytes : 1;
    cudaError_t error = is_pinned(label) ? pinned_alloc(asked, &memory) : cudaMalloc(&memory, asked);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        memory_free(record);
        return status_fail(STATUS_MEMORY, "no %s for %s: %.1f MiB needed: %s%s",
                           is_pinned(label) ? "pinned host memory" : "device memory", memory_label_name(label),
                           (double)bytes / 1048576.0, cudaGetErrorString(error),
                           is_pinned(label) ? " (see ulimit -l, and the memory limit of the job)" : "");
    }
    if (!is_pinned(label)) error = cudaMemsetAsync(memory, 0, asked, state->queue.stream);
    block_t *block = record;
    *block = (block_t){.next = state->blocks, .pointer = memory, .bytes = asked, .label = label};
    state->blocks = block;
    memory_account(label, asked);
    *pointer = memory;
    return check_cuda(error, "clearing memory");
}

void cuda_free(backend_t *backend, void *pointer) {
    if (!pointer) return;
    for (block_t **link = &state_of(backend)->blocks; *link; link = &(*link)->next) {
        block_t *block = *link;
        if (block->pointer != pointer) continue;
        *link = block->next;
        if (is_pinned(block->label))
            pinned_free(pointer, block->bytes);
        else
            cudaFree(pointer);
        memory_unaccount(block->label, block->bytes);
        memory_free(block);
        return;
    }
}

status_t cuda_zero(backend_t *backend, void *pointer, size_t bytes) {
    queue_stamp(&state_of(backend)->queue);
    return check_cuda(cudaMemsetAsync(pointer, 0, bytes, state_of(backend)->queue.stream), "clearing memory");
}

void *cuda_host_address(backend_t *backend, void *pointer) {
    for (const block_t *block = state_of(backend)->blocks; block; block = block->next) {
        if (block->pointer == pointer) return is_pinned(block->label) ? pointer : NULL;
    }
    return NULL;
}

void cuda_note_memory(void) {
    size_t device_free, device_total;
    if (cudaMemGetInfo(&device_free, &device_total) == cudaSuccess) memory_note_device(device_total - device_free);
}
