#ifndef GALVANI_SHARD_SEAL_H
#define GALVANI_SHARD_SEAL_H

/* A digest of everything in a shard file that no dataset's digest covers: HDF5's own structures and the attributes. It
 * is checked before HDF5 opens the file, since HDF5 1.10 crashes on some damaged structures (a global heap, which holds
 * texts, has no checksum). The seal stands behind HDF5's last byte, where HDF5 does not look; a program that edits the
 * file through HDF5 cuts it off, and an unsealed file is opened as it is. */

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one dataset, covered by its own digest. */
typedef struct seal_range {
    uint64_t offset, bytes;
} seal_range_t;

/* Seals a closed HDF5 file, open for reading and writing at `fd`. `ranges` is put in order of offset. STATUS_DEVICE if
 * it cannot be written, STATUS_INPUT if it cannot be read. */
status_t seal_write(int fd, const char *path, seal_range_t *ranges, size_t n_ranges);

/* STATUS_INPUT if the file has a seal and is not what was sealed. */
status_t seal_check(int fd, const char *path);

#ifdef __cplusplus
}
#endif
#endif
