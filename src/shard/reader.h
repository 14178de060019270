#ifndef GALVANI_SHARD_READER_H
#define GALVANI_SHARD_READER_H

/* Reads one rank's shard file, DIRECTORY/model.rank<r>of<T>.h5. HDF5 gives the names, types, offsets and digests; the
 * bytes are then read with pread at the dataset's offset. Not collective: each rank opens its own. */

#include <stddef.h>

#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shard_reader shard_reader_t;

/* What the root attributes say. */
typedef struct shard_info {
    schema_options_t options;
    model_config_t config;
    const char *config_json; /* owned by the reader */
    const char *source;      /* owned by the reader: JSON list of {name, bytes, digest} */
    char model_digest[65];   /* SHA-256 over the source; equal on all ranks of one model */
    const char *created_by;  /* owned by the reader */
} shard_info_t;

/* Opens and checks format, version, rank, size, and that every tensor of the schema is there with its shape, dtype and
 * contiguous layout inside the file. STATUS_INPUT otherwise; if the directory holds shards of another tp_size, the
 * message says with how many ranks to start. */
status_t shard_reader_open(const char *directory, int tp_rank, int tp_size, shard_reader_t **reader);
void shard_reader_close(shard_reader_t *reader); /* NULL is allowed */

const shard_info_t *shard_reader_info(const shard_reader_t *reader);

/* The tensors in file order. */
const schema_tensor_t *shard_reader_tensors(const shard_reader_t *reader, size_t *n_tensors);

/* Reads the whole of tensor `index` into `data` and checks its digest while it passes. */
status_t shard_reader_read(shard_reader_t *reader, size_t index, void *data);

/* Where a tensor goes piece by piece. Functions are called by the thread that reads the tensor. */
typedef struct shard_sink {
    void *context;
    size_t piece_bytes;
    int n_pieces; /* that may be in work at once, up to PIECE_READER_MOST */

    /* Memory for the piece at `offset` of the tensor, which several threads fill; they may be ahead. */
    status_t (*place)(void *context, size_t offset, void **memory);

    /* The next piece is read, in order of offsets. NULL where there is nothing to do. */
    status_t (*take)(void *context, size_t offset, size_t bytes, void *memory);
} shard_sink_t;

/* Reads the whole of tensor `index` with several threads and checks its digest, of which the sink hears at the end. */
status_t shard_reader_stream(shard_reader_t *reader, size_t index, const shard_sink_t *sink);

/* Checks the digests of all tensors, as `inspect --verify` does. */
status_t shard_reader_verify(shard_reader_t *reader);

#ifdef __cplusplus
}
#endif
#endif
