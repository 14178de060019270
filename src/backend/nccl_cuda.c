#include "backend/nccl_cuda.h"

#ifdef GALVANI_NCCL

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/memory.h"

#define INIT_LIMIT_NS 60000000000

struct nccl {
    ncclComm_t comm;
    struct CUstream_st *stream;
};

const char *nccl_version(void) {
    static char text[32];
    int version;
    if (ncclGetVersion(&version) != ncclSuccess) return "";
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

/* Waits for what a non-blocking call began. */
static status_t wait_for(ncclComm_t comm, const char *what) {
    int64_t limit_ns = clock_now_ns() + INIT_LIMIT_NS;
    ncclResult_t result = ncclInProgress;
    heartbeat_set_waiting(true);
    while (result == ncclInProgress && clock_now_ns() <= limit_ns) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
        if (asked != ncclSuccess) result = asked;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    heartbeat_set_waiting(false);
    if (result == ncclSuccess) return STATUS_OK;
    if (result == ncclInProgress)
        return status_fail(STATUS_DEVICE, "NCCL: %s is not done after 60 s; NCCL_DEBUG=INFO tells more", what);
    return status_fail(STATUS_DEVICE, "NCCL: %s failed: %s", what, ncclGetErrorString(result));
}

/* NCCL hangs or fails late where two ranks have one device, so that is found out here. Collective. */
static status_t check_own_device(comm_t *comm) {
    struct {
        char bus[32], host[224];
    } own, *all;
    int device, n_ranks = comm_tp_size(comm);
    memset(&own, 0, sizeof own);
    cudaGetDevice(&device);
    cudaDeviceGetPCIBusId(own.bus, sizeof own.bus, device);
    gethostname(own.host, sizeof own.host - 1);
    void *memory;
    status_t status = memory_alloc(MEMORY_OTHER, (size_t)n_ranks, sizeof own, &memory);
    TRY(comm_agree(comm, status));
    all = memory;
    comm_all_gather(comm, &own, sizeof own, all);
    for (int rank = 0; rank < n_ranks && status == STATUS_OK; rank++) {
        if (rank != comm_tp_rank(comm) && memcmp(&all[rank], &own, sizeof own) == 0)
            status = status_fail(STATUS_DEVICE, "NCCL needs a device for each rank, and ranks %d and %d share one",
                                 comm_tp_rank(comm), rank);
    }
    memory_free(memory);
    return comm_agree(comm, status);
}

status_t nccl_create(comm_t *comm, struct CUstream_st *stream, nccl_t **nccl) {
    void *memory;
    TRY(check_own_device(comm));
    TRY(comm_agree(comm, memory_alloc(MEMORY_OTHER, 1, sizeof(nccl_t), &memory)));
    nccl_t *created = memory;
    created->stream = stream;
    *nccl = created;

    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    status_t status = STATUS_OK;
    if (comm_tp_rank(comm) == 0) {
        ncclResult_t result = ncclGetUniqueId(&id);
        if (result != ncclSuccess)
            status = status_fail(STATUS_DEVICE, "NCCL cannot be started: %s", ncclGetErrorString(result));
    }
    TRY(comm_agree(comm, status));
    comm_broadcast(comm, &id, sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = ncclCommInitRankConfig(&created->comm, comm_tp_size(comm), id, comm_tp_rank(comm), &config);
    if (result != ncclSuccess && result != ncclInProgress)
        return status_fail(STATUS_DEVICE, "NCCL: joining the ranks failed: %s", ncclGetErrorString(result));
    return wait_for(created->comm, "joining the ranks");
}

void nccl_destroy(nccl_t *nccl) {
    if (!nccl) return;
    if (nccl->comm) ncclCommAbort(nccl->comm);
    memory_free(nccl);
}

status_t nccl_all_reduce(nccl_t *nccl, activation_t *data, size_t n) {
    ncclResult_t result = ncclAllReduce(data, data, n, ncclFloat16, ncclSum, nccl->comm, nccl->stream);
    if (result == ncclSuccess) return STATUS_OK;
    if (result == ncclInProgress) return wait_for(nccl->comm, "an all-reduce");
    return status_fail(STATUS_DEVICE, "NCCL: an all-reduce failed: %s", ncclGetErrorString(result));
}

#else

const char *nccl_version(void) { return ""; }

status_t nccl_create(comm_t *comm, struct CUstream_st *stream, nccl_t **nccl) {
    (void)comm;
    (void)stream;
    (void)nccl;
    return status_fail(STATUS_DEVICE, "this galvani was built without NCCL; use --comm push or --comm mpi");
}

void nccl_destroy(nccl_t *nccl) { (void)nccl; }

status_t nccl_all_reduce(nccl_t *nccl, activation_t *data, size_t n) {
    (void)nccl;
    (void)data;
    (void)n;
    return status_fail(STATUS_DEVICE, "this galvani was built without NCCL");
}

#endif
