#ifndef GALVANI_SHARD_WRITER_H
#define GALVANI_SHARD_WRITER_H

/* Writes one rank's shard file. HDF5 lays out the datasets; their bytes are then written with pwrite, and a digest is
 * taken of what passes. The file has the name ....partial until it is whole; a journal beside it notes which datasets
 * are, so that a later run goes on where an earlier one was stopped. Not collective. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shard_writer shard_writer_t;

/* Attributes of one dataset. */
typedef struct shard_note {
    char source_name[2 * 160 + 8];
    char slice[32];
} shard_note_t;

/* Borrowed by the writer until it is closed. */
typedef struct shard_writer_args {
    const char *directory;
    const schema_options_t *options;
    const schema_tensor_t *tensors; /* the rank's schema */
    const shard_note_t *notes;      /* [n_tensors] */
    size_t n_tensors;
    const char *config_json, *model_type, *source, *created_by; /* root attributes */
    /* Texts that change whenever the contents of the file would (source, options), and whenever the parts that earlier
     * runs noted in the journal would mean something else. */
    const char *conversion, *journal_kind;
} shard_writer_args_t;

/* Whether DIRECTORY already holds this rank's whole file of the same conversion; `*content` is then its source
 * checksum. */
bool shard_writer_is_done(const shard_writer_args_t *args, uint64_t *content);

/* Opens the unfinished file of an earlier run of the same conversion, if there is one, and reads back the datasets that
 * its journal names; else starts a new one and reserves its space. STATUS_DEVICE if it cannot be written. */
status_t shard_writer_open(const shard_writer_args_t *args, shard_writer_t **writer);

/* Removes nothing: an unfinished file stays for a later run. NULL is allowed. */
void shard_writer_close(shard_writer_t *writer);

/* Closes and removes the unfinished file and its journal. NULL is allowed. */
void shard_writer_discard(shard_writer_t *writer);

/* Whether dataset `index` is there whole; `*content` is then the source checksum that was noted with it. */
bool shard_writer_has(const shard_writer_t *writer, size_t index, uint64_t *content);

/* One dataset being written from its first byte to its last. Several may be open at a time, in several threads; each
 * dataset belongs to one of them. */
typedef struct shard_stream shard_stream_t;

status_t shard_stream_open(shard_writer_t *writer, size_t index, shard_stream_t **stream);
status_t shard_stream_append(shard_stream_t *stream, const void *data, size_t bytes);

/* Ends a whole dataset, notes it in the journal and frees the stream. `content` is noted with it. */
status_t shard_stream_close(shard_stream_t *stream, uint64_t content);

/* Frees a stream without ending it. NULL is allowed. */
void shard_stream_abandon(shard_stream_t *stream);

/* Reads dataset `index` back from the file and compares its digest. STATUS_DEVICE if it differs. By one thread at a
 * time. */
status_t shard_writer_verify(shard_writer_t *writer, size_t index);

/* Writes the last attributes, syncs and gives the file its final name. All datasets must be there. */
status_t shard_writer_finish(shard_writer_t *writer, uint64_t content);

#ifdef __cplusplus
}
#endif
#endif
