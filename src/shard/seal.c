#include "shard/seal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

enum { BUFFER_BYTES = 64 << 10 };

/* The last bytes of a sealed file; before them lies the table of ranges. Little-endian, as the machines that galvani
 * runs on. */
typedef struct seal_footer {
    uint64_t hdf5_bytes; /* where the table begins */
    uint64_t n_ranges;
    uint64_t digest; /* XXH3-64 of the bytes between the ranges, then of the table */
    char magic[8];
} seal_footer_t;

static const char magic[8] = {'g', 'a', 'l', 'v', 's', 'e', 'a', 'l'};

static int compare_offsets(const void *left, const void *right) {
    uint64_t a = ((const seal_range_t *)left)->offset, b = ((const seal_range_t *)right)->offset;
    return (a > b) - (a < b);
}

static status_t hash_bytes(int fd, const char *path, uint64_t begin, uint64_t end, void *buffer, hash_xxh3_t *hash) {
    while (begin < end) {
        size_t bytes = end - begin < BUFFER_BYTES ? (size_t)(end - begin) : BUFFER_BYTES;
        TRY(file_read_at(fd, path, buffer, bytes, begin));
        hash_xxh3_update(hash, buffer, bytes);
        begin += bytes;
    }
    return STATUS_OK;
}

/* Digest of what lies outside the ranges, which must be in order and inside the file. */
static status_t compute_digest(int fd, const char *path, const seal_range_t *ranges, size_t n_ranges,
                               uint64_t hdf5_bytes, uint64_t *digest) {
    hash_xxh3_t *hash;
    TRY(hash_xxh3_create(&hash));
    void *buffer = NULL;
    status_t status;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, BUFFER_BYTES, 1, &buffer), out);
    uint64_t next = 0;
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].offset < next || ranges[i].offset > hdf5_bytes ||
            ranges[i].bytes > hdf5_bytes - ranges[i].offset) {
            status = status_fail(STATUS_INPUT, "%s is damaged: its seal is wrong", path);
            goto out;
        }
        TRY_GOTO(hash_bytes(fd, path, next, ranges[i].offset, buffer, hash), out);
        next = ranges[i].offset + ranges[i].bytes;
    }
    TRY_GOTO(hash_bytes(fd, path, next, hdf5_bytes, buffer, hash), out);
    hash_xxh3_update(hash, ranges, n_ranges * sizeof *ranges);
    *digest = hash_xxh3_value(hash);
out:
    memory_free(buffer);
    hash_xxh3_destroy(hash);
    return status;
}

static status_t file_bytes(int fd, const char *path, uint64_t *bytes) {
    struct stat info;
    if (fstat(fd, &info) != 0) return status_fail(STATUS_INPUT, "cannot read %s: %s", path, strerror(errno));
    *bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

status_t seal_write(int fd, const char *path, seal_range_t *ranges, size_t n_ranges) {
    seal_footer_t footer = {.n_ranges = n_ranges};
    memcpy(footer.magic, magic, sizeof magic);
    qsort(ranges, n_ranges, sizeof *ranges, compare_offsets);
    TRY(file_bytes(fd, path, &footer.hdf5_bytes));
    TRY(compute_digest(fd, path, ranges, n_ranges, footer.hdf5_bytes, &footer.digest));
    TRY(file_write_at(fd, path, ranges, n_ranges * sizeof *ranges, footer.hdf5_bytes));
    return file_write_at(fd, path, &footer, sizeof footer, footer.hdf5_bytes + n_ranges * sizeof *ranges);
}

status_t seal_check(int fd, const char *path) {
    uint64_t bytes;
    seal_footer_t footer;
    TRY(file_bytes(fd, path, &bytes));
    if (bytes < sizeof footer) return STATUS_OK;
    TRY(file_read_at(fd, path, &footer, sizeof footer, bytes - sizeof footer));
    if (memcmp(footer.magic, magic, sizeof magic) != 0) return STATUS_OK;
    uint64_t table_bytes;
    if (__builtin_mul_overflow(footer.n_ranges, sizeof(seal_range_t), &table_bytes) ||
        table_bytes > bytes - sizeof footer || footer.hdf5_bytes != bytes - sizeof footer - table_bytes)
        return status_fail(STATUS_INPUT, "%s is damaged: its seal is wrong", path);

    void *ranges;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)footer.n_ranges, sizeof(seal_range_t), &ranges));
    uint64_t digest = 0;
    status_t status = file_read_at(fd, path, ranges, (size_t)table_bytes, footer.hdf5_bytes);
    if (status == STATUS_OK)
        status = compute_digest(fd, path, ranges, (size_t)footer.n_ranges, footer.hdf5_bytes, &digest);
    memory_free(ranges);
    if (status == STATUS_OK && digest != footer.digest)
        return status_fail(STATUS_INPUT, "%s is damaged: what HDF5 keeps about its datasets has changed", path);
    return status;
}
