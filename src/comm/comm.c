#include "comm/comm.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h> /* Open MPI's extensions; mpi.h must stand before */
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/watchdog.h"

/* How long a rank that failed waits for the others to arrive at the end. */
static const int64_t patience_ns = 2000000000;
static const int64_t poll_ns = 100000;

enum {
    /* Floats gathered from each rank at a time: bounds the buffer, and keeps the message sizes within an int. */
    REDUCE_CHUNK = COMM_PEER_BYTES / sizeof(float),
    MESSAGE_BYTES = 2048
};

struct comm {
    int tp_rank, tp_size, local_rank, local_size, local_cores;
    bool takes_device;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    float *gathered; /* [tp_size, REDUCE_CHUNK] */
    char *hosts;
    MPI_Comm at_end; /* of comm_agree_at_end alone */
    MPI_Errhandler errhandler;
};

/* An MPI call that waits for other ranks: this one is not to blame while it lasts. */
#define WAITING(call)                                                                                                  \
    do {                                                                                                               \
        heartbeat_set_waiting(true);                                                                                   \
        call;                                                                                                          \
        heartbeat_set_waiting(false);                                                                                  \
    } while (0)

/* mpirun may bind each rank to its own cores, or let all ranks of a host run on all of them. Collective over `host`. */
static int share_cores(MPI_Comm host, int local_size) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    sched_getaffinity(0, sizeof mask, &mask);
    int own[CPU_SETSIZE], users[CPU_SETSIZE];
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        own[core] = CPU_ISSET(core, &mask) ? 1 : 0;
    MPI_Allreduce(own, users, CPU_SETSIZE, MPI_INT, MPI_SUM, host);
    double share = 0.0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (own[core]) share += 1.0 / users[core];
    }
    share = fmin(share, cpu_quota() / local_size);
    return share < 1.0 ? 1 : (int)(share + 0.001);
}

/* Called by MPI. Where a rank died, the launcher ends the others; only if it does not, they must do it. */
static void on_mpi_error(MPI_Comm *communicator, int *code, ...) {
    (void)communicator;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(*code, text, &length);
    clock_sleep_ns(patience_ns);
    log_error("MPI failed: %s", text);
    MPI_Abort(MPI_COMM_WORLD, STATUS_DEVICE);
}

/* The header tells that the library can be asked, not what it answers: it may be another build of it. Collective. */
static bool ask_for_device_support(void) {
#ifdef MPIX_CUDA_AWARE_SUPPORT
    int own = MPIX_Query_cuda_support();
#else
    int own = 0;
#endif
    int all;
    MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all == 1;
}

/* Collective. */
static status_t name_hosts(int tp_size, char **hosts) {
    enum { NAME_BYTES = 64 };
    char own[NAME_BYTES] = "";
    gethostname(own, sizeof own - 1);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)tp_size + 1, NAME_BYTES, &memory));
    char *names = memory, *end = names;
    MPI_Allgather(own, NAME_BYTES, MPI_CHAR, names, NAME_BYTES, MPI_CHAR, MPI_COMM_WORLD);
    for (int rank = 0; rank < tp_size; rank++) {
        const char *name = names + (size_t)rank * NAME_BYTES;
        size_t length = strlen(name);
        if (rank > 0) *end++ = ',';
        memmove(end, name, length + 1);
        end += length;
    }
    *hosts = names;
    return STATUS_OK;
}

status_t comm_init(comm_t **comm) {
    int provided;
    /* A rank that waits gives its core away: Open MPI does so by itself only where it counts more ranks than cores, but
     * other processes, or a control group's quota, may leave fewer. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return status_fail(STATUS_DEVICE, "MPI cannot be started");
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(comm_t), &memory));
    comm_t *created = memory;
    MPI_Comm_rank(MPI_COMM_WORLD, &created->tp_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &created->tp_size);
    watchdog_set_rank(created->tp_rank);
    log_set_rank(created->tp_rank);
    MPI_Comm_create_errhandler(on_mpi_error, &created->errhandler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, created->errhandler);
    MPI_Comm_dup(MPI_COMM_WORLD, &created->at_end);

    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, created->tp_rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &created->local_rank);
    MPI_Comm_size(host, &created->local_size);
    created->local_cores = share_cores(host, created->local_size);
    MPI_Comm_free(&host);
    MPI_Barrier(MPI_COMM_WORLD);
    watchdog_set_connected();

    int length;
    MPI_Get_library_version(created->library, &length);
    created->library[strcspn(created->library, ",\n")] = '\0';

    created->takes_device = ask_for_device_support();
    status_t status = name_hosts(created->tp_size, &created->hosts);
    if (status == STATUS_OK && created->tp_size > 1)
        status = memory_alloc(MEMORY_COMM, (size_t)created->tp_size * REDUCE_CHUNK, sizeof(float), &memory);
    if (status != STATUS_OK) {
        memory_free(created->hosts);
        memory_free(created);
        return status;
    }
    created->gathered = created->tp_size > 1 ? memory : NULL;
    *comm = created;
    return STATUS_OK;
}

void comm_finalize(comm_t *comm) {
    MPI_Comm_free(&comm->at_end);
    MPI_Errhandler_free(&comm->errhandler);
    memory_free(comm->gathered);
    memory_free(comm->hosts);
    memory_free(comm);
    MPI_Finalize();
}

int comm_tp_rank(const comm_t *comm) { return comm->tp_rank; }

int comm_tp_size(const comm_t *comm) { return comm->tp_size; }

int comm_local_rank(const comm_t *comm) { return comm->local_rank; }

int comm_local_size(const comm_t *comm) { return comm->local_size; }

int comm_local_cores(const comm_t *comm) { return comm->local_cores; }

const char *comm_library(const comm_t *comm) { return comm->library; }

bool comm_takes_device(const comm_t *comm) { return comm->takes_device; }

const char *comm_hosts(const comm_t *comm) { return comm->hosts; }

/* Message sizes are ints in MPI; everything larger is cut into chunks before it comes here. */
static int as_count(size_t n) {
    if (n > INT_MAX) {
        log_error("a message of %zu bytes is too long for MPI", n);
        MPI_Abort(MPI_COMM_WORLD, STATUS_DEVICE);
    }
    return (int)n;
}

status_t comm_agree(comm_t *comm, status_t status) {
    if (comm->tp_size == 1) return status;
    int failed = status != STATUS_OK, n_failed;
    WAITING(MPI_Allreduce(&failed, &n_failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    if (n_failed == 0) return STATUS_OK;

    int candidate = failed ? comm->tp_rank : comm->tp_size, first;
    MPI_Allreduce(&candidate, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    struct {
        int status;
        char message[MESSAGE_BYTES];
    } outcome;
    memset(&outcome, 0, sizeof outcome);
    outcome.status = (int)status;
    snprintf(outcome.message, sizeof outcome.message, "%s", status_message());
    MPI_Bcast(&outcome, (int)sizeof outcome, MPI_BYTE, first, MPI_COMM_WORLD);

    status_clear();
    if (n_failed == comm->tp_size || first == 0) return status_fail((status_t)outcome.status, "%s", outcome.message);
    return status_fail((status_t)outcome.status, "rank %d: %s", first, outcome.message);
}

status_t comm_agree_at_end(comm_t *comm, status_t status) {
    int failed = status != STATUS_OK, n_failed, all_are_here = 0;
    MPI_Request request;
    MPI_Iallreduce(&failed, &n_failed, 1, MPI_INT, MPI_SUM, comm->at_end, &request);
    int64_t begin_ns = clock_now_ns();
    heartbeat_set_waiting(true);
    for (;;) {
        MPI_Test(&request, &all_are_here, MPI_STATUS_IGNORE);
        if (all_are_here) return comm_agree(comm, status);
        if (failed && clock_now_ns() - begin_ns > patience_ns) {
            log_error("%s", status_message());
            comm_abort(comm, status);
        }
        clock_sleep_ns(poll_ns);
    }
}

status_t comm_all_reduce_sum(comm_t *comm, float *data, size_t n) {
    if (comm->tp_size == 1) return STATUS_OK;
    for (size_t start = 0; start < n; start += REDUCE_CHUNK) {
        size_t count = n - start < REDUCE_CHUNK ? n - start : REDUCE_CHUNK;
        WAITING(
            MPI_Allgather(data + start, (int)count, MPI_FLOAT, comm->gathered, (int)count, MPI_FLOAT, MPI_COMM_WORLD));
        for (size_t i = 0; i < count; i++) {
            float sum = comm->gathered[i];
            for (int rank = 1; rank < comm->tp_size; rank++)
                sum += comm->gathered[(size_t)rank * count + i];
            data[start + i] = sum;
        }
    }
    return STATUS_OK;
}

void comm_gather(comm_t *comm, const void *data, size_t bytes, void *gathered) {
    (void)comm;
    int count = as_count(bytes);
    WAITING(MPI_Gather(data, count, MPI_BYTE, gathered, count, MPI_BYTE, 0, MPI_COMM_WORLD));
}

void comm_all_gather(comm_t *comm, const void *data, size_t bytes, void *gathered) {
    (void)comm;
    int count = as_count(bytes);
    WAITING(MPI_Allgather(data, count, MPI_BYTE, gathered, count, MPI_BYTE, MPI_COMM_WORLD));
}

void comm_broadcast(comm_t *comm, void *data, size_t bytes) {
    (void)comm;
    WAITING(MPI_Bcast(data, as_count(bytes), MPI_BYTE, 0, MPI_COMM_WORLD));
}

void comm_barrier(comm_t *comm) {
    (void)comm;
    WAITING(MPI_Barrier(MPI_COMM_WORLD));
}

void comm_abort(comm_t *comm, status_t status) {
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, (int)status);
    abort();
}
