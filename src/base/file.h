#ifndef GALVANI_BASE_FILE_H
#define GALVANI_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a whole file ("-" is stdin) into memory with a NUL behind the last byte. The caller frees `*text` with
 * memory_free. STATUS_INPUT if it cannot be read. */
status_t file_read_all(const char *path, char **text, size_t *text_bytes);

/* Reads exactly `bytes` at `offset`, in spite of short reads and signals. `path` is for messages. STATUS_INPUT if the
 * file ends before. */
status_t file_read_at(int fd, const char *path, void *data, size_t bytes, uint64_t offset);

/* Writes exactly `bytes`. STATUS_DEVICE (disk full, say) names the path. */
status_t file_write_at(int fd, const char *path, const void *data, size_t bytes, uint64_t offset);

/* STATUS_DEVICE if no file can be made or written at `path`, as far as that can be known without doing so: what is
 * worth keeping takes time to make. */
status_t file_check_writable(const char *path);

bool file_exists(const char *path);
bool file_is_directory(const char *path);

/* Joins directory and name with one slash into `path`; STATUS_USAGE if it does not fit. */
status_t file_join(const char *directory, const char *name, char *path, size_t path_bytes);

#ifdef __cplusplus
}
#endif
#endif
