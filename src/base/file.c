#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

status_t file_read_all(const char *path, char **text, size_t *text_bytes) {
    bool is_stdin = strcmp(path, "-") == 0;
    if (!is_stdin && file_is_directory(path)) return status_fail(STATUS_INPUT, "%s is a directory, not a file", path);
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (!file) return status_fail(STATUS_INPUT, "cannot open %s: %s", path, strerror(errno));

    status_t status = STATUS_OK;
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    for (;;) {
        /* Grown by doubling rather than sized by stat: the input may be a pipe. */
        if (capacity - used < 2) {
            size_t larger = capacity ? 2 * capacity : 65536;
            void *memory;
            TRY_GOTO(memory_alloc(MEMORY_OTHER, larger, 1, &memory), fail);
            if (used) memcpy(memory, buffer, used);
            memory_free(buffer);
            buffer = memory;
            capacity = larger;
        }
        size_t n = fread(buffer + used, 1, capacity - used - 1, file);
        used += n;
        if (n == 0) break;
    }
    if (ferror(file)) {
        status = status_fail(STATUS_INPUT, "cannot read %s: %s", path, strerror(errno));
        goto fail;
    }
    buffer[used] = '\0';
    if (!is_stdin) fclose(file);
    *text = buffer;
    *text_bytes = used;
    return STATUS_OK;

fail:
    if (!is_stdin) fclose(file);
    memory_free(buffer);
    return status;
}

status_t file_read_at(int fd, const char *path, void *data, size_t bytes, uint64_t offset) {
    unsigned char *next = data;
    while (bytes) {
        ssize_t n = pread(fd, next, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return status_fail(STATUS_INPUT, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            return status_fail(STATUS_INPUT, "%s is cut off: it ends %zu bytes before its content does", path, bytes);
        next += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return STATUS_OK;
}

status_t file_write_at(int fd, const char *path, const void *data, size_t bytes, uint64_t offset) {
    const unsigned char *next = data;
    while (bytes) {
        ssize_t n = pwrite(fd, next, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(errno));
        next += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return STATUS_OK;
}

status_t file_check_writable(const char *path) {
    if (file_is_directory(path)) return status_fail(STATUS_DEVICE, "cannot write %s: it is a directory", path);
    if (file_exists(path)) {
        if (access(path, W_OK) == 0) return STATUS_OK;
        return status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(errno));
    }
    const char *slash = strrchr(path, '/');
    char directory[PATH_MAX] = ".";
    if (slash) snprintf(directory, sizeof directory, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (access(directory, W_OK | X_OK) == 0) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "cannot create %s: %s", path, strerror(errno));
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

bool file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

status_t file_join(const char *directory, const char *name, char *path, size_t path_bytes) {
    size_t length = strlen(directory);
    const char *slash = length && directory[length - 1] == '/' ? "" : "/";
    int n = snprintf(path, path_bytes, "%s%s%s", directory, slash, name);
    if (n < 0 || (size_t)n >= path_bytes)
        return status_fail(STATUS_USAGE, "the path %s/%s is too long", directory, name);
    return STATUS_OK;
}
