#include "base/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ALIGNMENT = 64 };

/* Stands right before each block, so that memory_free knows what to give back. */
typedef struct block_header {
    void *base; /* what calloc gave */
    size_t bytes;
    memory_label_t label;
} block_header_t;

static pthread_mutex_t account_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t label_bytes[MEMORY_N_LABELS];
static size_t total_bytes;
static size_t peak_bytes;
static size_t peak_device_bytes;

const char *memory_label_name(memory_label_t label) {
    static const char *const names[MEMORY_N_LABELS] = {
        [MEMORY_WEIGHTS] = "weights",       [MEMORY_PLE_TABLE] = "ple_table", [MEMORY_KV_CACHE] = "kv_cache",
        [MEMORY_STATE] = "state",           [MEMORY_WORKSPACE] = "workspace", [MEMORY_COMM] = "comm",
        [MEMORY_CUDA_GRAPH] = "cuda_graph", [MEMORY_PINNED] = "pinned",       [MEMORY_OTHER] = "other",
    };
    return names[label];
}

status_t memory_product(size_t a, size_t b, size_t *product) {
    if (__builtin_mul_overflow(a, b, product))
        return status_fail(STATUS_MEMORY, "a size of %zu x %zu bytes does not fit in 64 bits", a, b);
    return STATUS_OK;
}

void memory_account(memory_label_t label, size_t bytes) {
    pthread_mutex_lock(&account_lock);
    label_bytes[label] += bytes;
    total_bytes += bytes;
    if (total_bytes > peak_bytes) peak_bytes = total_bytes;
    pthread_mutex_unlock(&account_lock);
}

void memory_unaccount(memory_label_t label, size_t bytes) {
    pthread_mutex_lock(&account_lock);
    label_bytes[label] -= bytes;
    total_bytes -= bytes;
    pthread_mutex_unlock(&account_lock);
}

status_t memory_alloc(memory_label_t label, size_t n, size_t item_bytes, void **pointer) {
    size_t bytes, room = sizeof(block_header_t) + ALIGNMENT;
    TRY(memory_product(n, item_bytes, &bytes));
    /* calloc: large blocks come zeroed from the kernel, page by page as they are used. */
    void *base = bytes <= SIZE_MAX - room ? calloc(1, bytes + room) : NULL;
    if (!base)
        return status_fail(STATUS_MEMORY, "no memory for %s: %.1f MiB needed, %.1f MiB available",
                           memory_label_name(label), (double)bytes / 1048576.0,
                           (double)memory_available_bytes() / 1048576.0);
    uintptr_t aligned = ((uintptr_t)base + room) / ALIGNMENT * ALIGNMENT;
    block_header_t *header = (block_header_t *)aligned - 1;
    *header = (block_header_t){.base = base, .bytes = bytes, .label = label};
    pthread_mutex_lock(&account_lock);
    label_bytes[label] += bytes;
    total_bytes += bytes;
    if (total_bytes > peak_bytes) peak_bytes = total_bytes;
    pthread_mutex_unlock(&account_lock);
    *pointer = (void *)aligned;
    return STATUS_OK;
}

void memory_free(void *pointer) {
    if (!pointer) return;
    const block_header_t *header = (const block_header_t *)pointer - 1;
    pthread_mutex_lock(&account_lock);
    label_bytes[header->label] -= header->bytes;
    total_bytes -= header->bytes;
    pthread_mutex_unlock(&account_lock);
    free(header->base);
}

void memory_note_device(size_t bytes) {
    pthread_mutex_lock(&account_lock);
    if (bytes > peak_device_bytes) peak_device_bytes = bytes;
    pthread_mutex_unlock(&account_lock);
}

size_t memory_peak_device_bytes(void) { return peak_device_bytes; }

size_t memory_bytes(memory_label_t label) { return label_bytes[label]; }

size_t memory_peak_bytes(void) { return peak_bytes; }

/* First number of the first line of `path` that starts with `key` ("" for any); SIZE_MAX if there is none. */
static size_t read_number(const char *path, const char *key) {
    FILE *file = fopen(path, "r");
    if (!file) return SIZE_MAX;
    char line[256];
    size_t value = SIZE_MAX;
    while (value == SIZE_MAX && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            uintmax_t number;
            if (sscanf(line + strlen(key), "%" SCNuMAX, &number) == 1) value = (size_t)number;
        }
    }
    fclose(file);
    return value;
}

size_t memory_available_bytes(void) {
    size_t available = read_number("/proc/meminfo", "MemAvailable:");
    if (available != SIZE_MAX) available *= 1024;
    /* A container's own limit (cgroup v2) may be lower than what the host has. */
    size_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    size_t used = read_number("/sys/fs/cgroup/memory.current", "");
    if (limit != SIZE_MAX && used != SIZE_MAX) {
        size_t room = limit > used ? limit - used : 0;
        if (room < available) available = room;
    }
    struct rlimit address_space; /* ulimit -v */
    if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
        size_t mapped = read_number("/proc/self/status", "VmSize:");
        size_t limit_room = mapped != SIZE_MAX && address_space.rlim_cur / 1024 > mapped
                                ? (size_t)address_space.rlim_cur - mapped * 1024
                                : 0;
        if (limit_room < available) available = limit_room;
    }
    return available;
}

size_t memory_peak_rss_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}
