#include "backend/facts_cuda.h"

#include <ctype.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/nccl_cuda.h"
#include "backend/state_cuda.h"
#include "base/log.h"

enum { DEVICE_TEXT_BYTES = 256 };

/* -1 where the kernel does not say. */
static int numa_node(const char *bus) {
    char path[96];
    int node = -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    for (char *c = path; *c; c++)
        *c = (char)tolower(*c);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &node) != 1) node = -1;
    fclose(file);
    return node;
}

/* How this device reaches the others of its host. Atomics reach a peer over NVLink, not over PCIe. */
static void describe_peers(int device, char *text, size_t text_bytes) {
    int n_devices = 1, n_peers = 0, n_nvlink = 0;
    cudaGetDeviceCount(&n_devices);
    for (int other = 0; other < n_devices; other++) {
        int reachable = 0, atomics = 0;
        if (other == device) continue;
        cudaDeviceCanAccessPeer(&reachable, device, other);
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, other);
        n_peers += reachable != 0;
        n_nvlink += reachable && atomics;
    }
    if (n_devices == 1)
        snprintf(text, text_bytes, "no peers");
    else
        snprintf(text, text_bytes, "reaches %d of %d peers, %d by NVLink", n_peers, n_devices - 1, n_nvlink);
}

/* Collective. A device is known by host and bus: CUDA_VISIBLE_DEVICES may give each rank another list of them. */
status_t cuda_count_sharing(backend_t *backend) {
    struct {
        char bus[32], host[224];
    } own, *all;
    cuda_state_t *state = state_of(backend);
    size_t n_ranks = (size_t)comm_tp_size(backend->comm);
    void *memory;
    memset(&own, 0, sizeof own);
    cudaDeviceGetPCIBusId(own.bus, sizeof own.bus, state->device);
    gethostname(own.host, sizeof own.host - 1);
    TRY(comm_agree(backend->comm, memory_alloc(MEMORY_OTHER, n_ranks, sizeof own, &memory)));
    all = memory;
    comm_all_gather(backend->comm, &own, sizeof own, all);
    for (size_t rank = 0; rank < n_ranks; rank++)
        state->n_sharing += memcmp(&all[rank], &own, sizeof own) == 0;
    memory_free(memory);
    return STATUS_OK;
}

/* Collective: fills the facts, and says on rank 0 which devices are used. */
status_t cuda_gather_facts(backend_t *backend) {
    cuda_state_t *state = state_of(backend);
    int n_ranks = comm_tp_size(backend->comm), driver = 0, runtime = 0;
    char own[DEVICE_TEXT_BYTES] = "", bus[32] = "", peers[64];
    void *memory = NULL;
    bool is_root = comm_tp_rank(backend->comm) == 0;
    status_t status = is_root ? memory_alloc(MEMORY_OTHER, (size_t)n_ranks, DEVICE_TEXT_BYTES, &memory) : STATUS_OK;
    TRY(comm_agree(backend->comm, status));
    state->devices = memory;
    cudaDeviceGetPCIBusId(bus, sizeof bus, state->device);
    describe_peers(state->device, peers, sizeof peers);
    snprintf(own, sizeof own, "rank %d: %.128s, bus %s, NUMA node %d, %s", comm_tp_rank(backend->comm),
             state->device_name, bus, numa_node(bus), peers);
    comm_gather(backend->comm, own, sizeof own, state->devices);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(state->driver, sizeof state->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(state->cuda, sizeof state->cuda, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (file) {
        if (fscanf(file, "%31s", state->driver) != 1) state->driver[0] = '\0';
        fclose(file);
    }
    backend->facts =
        (backend_facts_t){.devices = "", .driver = state->driver, .cuda = state->cuda, .nccl = nccl_version()};
    if (!is_root) return STATUS_OK;
    for (int rank = 0; rank < n_ranks; rank++)
        log_info("device   %s", state->devices + (size_t)rank * DEVICE_TEXT_BYTES);
    /* The texts move together, into one. */
    size_t length = strlen(state->devices);
    for (int rank = 1; rank < n_ranks; rank++) {
        const char *text = state->devices + (size_t)rank * DEVICE_TEXT_BYTES;
        size_t n = strlen(text);
        memcpy(state->devices + length, "; ", 2);
        memmove(state->devices + length + 2, text, n + 1);
        length += n + 2;
    }
    backend->facts.devices = state->devices;
    return STATUS_OK;
}
