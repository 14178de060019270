#include "backend/all_reduce_cuda.h"

#include <string.h>

#include "backend/check_cuda.h"
#include "backend/nccl_cuda.h"
#include "backend/push_cuda.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "device/route.h"
#include "rank_sum/rank_sum.h"

/* Values that pass through the host at once. */
enum { HOST_CHUNK = 1 << 18 };

/* Fewer values are summed sooner on the host: a call of MPI for device memory takes some 20 us. */
enum { MIN_DEVICE_ITEMS = 1024 };

struct all_reduce {
    comm_t *comm;
    const device_queue_t *queue;
    all_reduce_route_t route;
    nccl_t *nccl;
    push_t *push;
    uint16_t *halves; /* [HOST_CHUNK], pinned */
    float *floats;    /* [HOST_CHUNK] */
    void *parts;      /* [tp_size, HOST_CHUNK] halves on the device; NULL where MPI takes no device memory */
};

const char *all_reduce_route_name(all_reduce_route_t route) {
    static const char *const names[] = {
        [ALL_REDUCE_AUTO] = "auto", [ALL_REDUCE_PUSH] = "push", [ALL_REDUCE_NCCL] = "nccl", [ALL_REDUCE_MPI] = "mpi"};
    return names[route];
}

bool all_reduce_route_from_name(const char *name, all_reduce_route_t *route) {
    for (int i = ALL_REDUCE_AUTO; i <= ALL_REDUCE_MPI; i++) {
        if (strcmp(name, all_reduce_route_name((all_reduce_route_t)i)) != 0) continue;
        *route = (all_reduce_route_t)i;
        return true;
    }
    return false;
}

all_reduce_route_t all_reduce_get_route(const all_reduce_t *all_reduce) { return all_reduce->route; }

const struct push_args *all_reduce_get_push(const all_reduce_t *all_reduce) {
    return all_reduce->route == ALL_REDUCE_PUSH ? push_get_args(all_reduce->push) : NULL;
}

static status_t create_buffers(all_reduce_t *all_reduce) {
    void *memory;
    TRY(memory_alloc(MEMORY_COMM, HOST_CHUNK, sizeof(float), &memory));
    all_reduce->floats = memory;
    TRY(check_cuda(cudaHostAlloc(&memory, HOST_CHUNK * sizeof(uint16_t), cudaHostAllocDefault), "pinning host memory"));
    all_reduce->halves = memory;
    if (!comm_takes_device(all_reduce->comm)) return STATUS_OK;
    size_t bytes = (size_t)comm_tp_size(all_reduce->comm) * HOST_CHUNK * sizeof(uint16_t);
    TRY(check_cuda(cudaMalloc(&memory, bytes), "allocating a buffer for MPI"));
    all_reduce->parts = memory;
    return STATUS_OK;
}

/* Collective: what one rank cannot have, none uses. */
static status_t create_route(all_reduce_t *all_reduce, all_reduce_route_t wanted) {
    comm_t *comm = all_reduce->comm;
    if (wanted == ALL_REDUCE_AUTO || wanted == ALL_REDUCE_PUSH) {
        status_t status = comm_agree(comm, push_create(comm, all_reduce->queue, 0, &all_reduce->push));
        if (status == STATUS_OK) {
            all_reduce->route = ALL_REDUCE_PUSH;
            return STATUS_OK;
        }
        push_destroy(all_reduce->push);
        all_reduce->push = NULL;
        if (wanted == ALL_REDUCE_PUSH) return status;
        status_clear();
    }
    if (wanted == ALL_REDUCE_AUTO || wanted == ALL_REDUCE_NCCL) {
        status_t status = comm_agree(comm, nccl_create(comm, all_reduce->queue->stream, &all_reduce->nccl));
        if (status == STATUS_OK) {
            all_reduce->route = ALL_REDUCE_NCCL;
            return STATUS_OK;
        }
        nccl_destroy(all_reduce->nccl);
        all_reduce->nccl = NULL;
        if (wanted == ALL_REDUCE_NCCL) return status;
        status_clear();
    }
    all_reduce->route = ALL_REDUCE_MPI;
    return comm_agree(comm, create_buffers(all_reduce));
}

status_t all_reduce_create(const all_reduce_args_t *args, all_reduce_t **all_reduce) {
    void *memory;
    TRY(comm_agree(args->comm, memory_alloc(MEMORY_OTHER, 1, sizeof(all_reduce_t), &memory)));
    all_reduce_t *created = memory;
    created->comm = args->comm;
    created->queue = args->queue;
    status_t status = create_route(created, args->route);
    if (status != STATUS_OK) {
        all_reduce_destroy(created);
        return status;
    }
    *all_reduce = created;
    return STATUS_OK;
}

void all_reduce_destroy(all_reduce_t *all_reduce) {
    if (!all_reduce) return;
    nccl_destroy(all_reduce->nccl);
    push_destroy(all_reduce->push);
    if (all_reduce->halves) cudaFreeHost(all_reduce->halves);
    if (all_reduce->parts) cudaFree(all_reduce->parts);
    memory_free(all_reduce->floats);
    memory_free(all_reduce);
}

bool all_reduce_takes_device(const comm_t *comm, const device_queue_t *queue) {
    return route_take(queue, ROUTE_CUDA_AWARE_MPI, comm_takes_device(comm) ? NULL : "MPI takes no device memory");
}

/* MPI gathers the parts on the device, which sums them in rank order in FP32 with one rounding. */
static status_t run_mpi_on_device(all_reduce_t *all_reduce, activation_t *data, size_t n) {
    for (size_t start = 0; start < n; start += HOST_CHUNK) {
        size_t count = n - start < HOST_CHUNK ? n - start : HOST_CHUNK;
        void *at = (unsigned char *)data + start * sizeof(uint16_t);
        TRY(check_cuda(cudaStreamSynchronize(all_reduce->queue->stream), "the work on the device"));
        comm_all_gather(all_reduce->comm, at, count * sizeof(uint16_t), all_reduce->parts);
        const rank_sum_args_t sum = {.n_ranks = comm_tp_size(all_reduce->comm),
                                     .n_items = (int64_t)count,
                                     .parts = all_reduce->parts,
                                     .data = at};
        TRY(launch_rank_sum(&sum, all_reduce->queue));
    }
    return STATUS_OK;
}

/* The same on the host. */
static status_t run_mpi_on_host(all_reduce_t *all_reduce, activation_t *data, size_t n) {
    cudaStream_t stream = all_reduce->queue->stream;
    unsigned char *device = (unsigned char *)data;
    for (size_t start = 0; start < n; start += HOST_CHUNK) {
        size_t count = n - start < HOST_CHUNK ? n - start : HOST_CHUNK, bytes = count * sizeof(uint16_t);
        void *at = device + start * sizeof(uint16_t);
        TRY(check_cuda(cudaMemcpyAsync(all_reduce->halves, at, bytes, cudaMemcpyDeviceToHost, stream),
                       "a copy from the device"));
        TRY(check_cuda(cudaStreamSynchronize(stream), "the work on the device"));
        for (size_t i = 0; i < count; i++)
            all_reduce->floats[i] = f16_to_float(all_reduce->halves[i]);
        TRY(comm_all_reduce_sum(all_reduce->comm, all_reduce->floats, count));
        for (size_t i = 0; i < count; i++)
            all_reduce->halves[i] = f16_from_float(all_reduce->floats[i]);
        TRY(check_cuda(cudaMemcpyAsync(at, all_reduce->halves, bytes, cudaMemcpyHostToDevice, stream),
                       "a copy to the device"));
        TRY(check_cuda(cudaStreamSynchronize(stream), "the work on the device"));
    }
    return STATUS_OK;
}

status_t all_reduce_run(all_reduce_t *all_reduce, activation_t *data, size_t n) {
    if (all_reduce->route == ALL_REDUCE_PUSH) return push_all_reduce(all_reduce->push, data, n);
    queue_stamp(all_reduce->queue);
    if (all_reduce->route == ALL_REDUCE_NCCL) return nccl_all_reduce(all_reduce->nccl, data, n);
    if (n >= MIN_DEVICE_ITEMS && all_reduce_takes_device(all_reduce->comm, all_reduce->queue))
        return run_mpi_on_device(all_reduce, data, n);
    return run_mpi_on_host(all_reduce, data, n);
}

status_t all_reduce_check(const all_reduce_t *all_reduce) {
    return all_reduce->route == ALL_REDUCE_PUSH ? push_check(all_reduce->push) : STATUS_OK;
}
