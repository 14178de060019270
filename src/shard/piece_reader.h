#ifndef GALVANI_SHARD_PIECE_READER_H
#define GALVANI_SHARD_PIECE_READER_H

/* Threads that read pieces of one file, several at a time, while the caller works on those that are there. The thread
 * that has read a piece also adds it to its digest, when the pieces before are in it: it has the bytes in its cache. */

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
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

/* A piece: `bytes` at `offset`. Memory and digest are the reader's until the piece has been waited for. */
typedef struct piece {
    void *memory;
    size_t bytes;
    uint64_t offset;
    hash_xxh3_t *hash; /* pieces are added to it in the order in which they are submitted */
} piece_t;

void piece_reader_submit(piece_reader_t *reader, const piece_t *piece);

/* Waits for the oldest piece that has not been waited for, read and in its digest; its own status. */
status_t piece_reader_wait(piece_reader_t *reader);

#ifdef __cplusplus
}
#endif
#endif
