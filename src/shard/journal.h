#ifndef GALVANI_SHARD_JOURNAL_H
#define GALVANI_SHARD_JOURNAL_H

/* The list of datasets that an unfinished shard file already holds: a text file, first a line that says which
 * conversion it belongs to, then one line per dataset. What is read from it is checked against the data. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct journal_entry {
    bool is_done;
    uint64_t xxh3;    /* of the dataset's bytes */
    uint64_t content; /* checksum of its source */
} journal_entry_t;

/* Reads the journal at `path` into entries[n_entries]. False if there is none, it belongs to another conversion, or it
 * is not well formed; a last line that was cut off is left out. */
bool journal_read(const char *path, const char *conversion, journal_entry_t *entries, size_t n_entries);

/* Starts a new journal. STATUS_DEVICE if it cannot be written. */
status_t journal_create(const char *path, const char *conversion);

/* Adds entry `index`. */
status_t journal_append(const char *path, size_t index, const journal_entry_t *entry);

#ifdef __cplusplus
}
#endif
#endif
