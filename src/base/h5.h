#ifndef GALVANI_BASE_H5_H
#define GALVANI_BASE_H5_H

/* What every user of HDF5 here needs: its errors as one message of ours, and attributes read and written in one call.
 * HDF5 calls return negative values on failure. */

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To be called before other HDF5 calls, any number of times. HDF5 then prints nothing by itself, and does not come
 * back to files at exit that could not be closed (it would try for ever on a full disk). */
void h5_init(void);

/* For commands that do nothing but read files: from here on a crash of this process ends it with STATUS_INPUT and a
 * message. HDF5 1.10 follows some damaged structures (global heaps, which hold texts, have no checksum) to memory that
 * is not there. */
void h5_survive_damage(void);

/* Records "cannot <action> <path>: <reason>" for the last HDF5 call that failed on this thread. The reason is the
 * operating system's if it gave one, else the innermost message of HDF5. A refused file lock says what to do. */
status_t h5_fail(status_t status, const char *action, const char *path);

/* Opens a file for reading, whether it is closed, still being written in SWMR mode, or left so by a writer that died.
 * `*is_open_for_write` tells the last two from the first; it may be NULL. Takes no lock, so never disturbs a writer.
 * STATUS_INPUT. The caller closes it with H5Fclose. */
status_t h5_open_for_read(const char *path, hid_t *file, bool *is_open_for_write);

/* File access list. `lock`: take HDF5's file lock where the file system has locks (HDF5_USE_FILE_LOCKING in the
 * environment overrides it). Negative on failure; the caller closes it with H5Pclose. */
hid_t h5_access_list(bool lock);

/* Attributes of an open object. An existing attribute is replaced. Negative on failure. h5_put_text writes
 * variable-length UTF-8, as h5py does, which gives it as str. In the 1.10 format such a text is not under the checksum
 * of its object, and HDF5 1.10 crashes on a damaged one: not for files that must be survived when damaged. */
herr_t h5_put_text(hid_t object, const char *name, const char *text);
herr_t h5_put_int(hid_t object, const char *name, int64_t value);

/* Reads a text attribute of either length kind. `path` is for messages. The caller frees `*text` with memory_free.
 * STATUS_INPUT if it is missing or not one text. */
status_t h5_get_text(hid_t object, const char *name, const char *path, char **text);
status_t h5_get_int(hid_t object, const char *name, const char *path, int64_t *value);

#ifdef __cplusplus
}
#endif
#endif
