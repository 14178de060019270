#ifndef GALVANI_SHARD_PIECE_READER_H
#define GALVANI_SHARD_PIECE_READER_H

/* Threads that read pieces of one file, several at a time, while the caller works on those that are there. */

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct piece_reader piece_reader_t;

/* Pieces that may be submitted and not yet waited for. */
enum { PIECE_READER_MOST = 16 };

/* `path` is for messages; it and the open file are borrowed. STATUS_DEVICE if no thread can be had. */
status_t piece_reader_create(int fd, const char *path, int n_threads, piece_reader_t **reader);

/* Waits for what is being read. */
void piece_reader_destroy(piece_reader_t *reader); /* NULL is allowed */

/* Begins reading `bytes` at `offset` into memory, which stays the reader's until the piece has been waited for. */
void piece_reader_submit(piece_reader_t *reader, void *memory, size_t bytes, uint64_t offset);

/* Waits for the oldest piece that has not been waited for; its own status. */
status_t piece_reader_wait(piece_reader_t *reader);

#ifdef __cplusplus
}
#endif
#endif
