#ifndef GALVANI_SHARD_PROGRESS_H
#define GALVANI_SHARD_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A progress line on stderr: bytes, MB/s and time left. On a terminal it is redrawn in place, elsewhere a line appears
 * at every tenth part, at most one in two seconds. Threads may add to it. */
typedef struct progress {
    pthread_mutex_t lock;
    const char *what;
    uint64_t total_bytes, done_bytes;
    uint64_t skipped_bytes; /* of done_bytes: not worked on now, so they do not count for the speed */
    int64_t start_ns, drawn_ns;
    int shown_tenths;
    bool is_shown, is_terminal;
} progress_t;

void progress_start(progress_t *progress, const char *what, uint64_t total_bytes, bool is_shown);
void progress_add(progress_t *progress, uint64_t bytes);
void progress_skip(progress_t *progress, uint64_t bytes);

/* Draws the last state and ends the line. */
void progress_end(progress_t *progress);

#ifdef __cplusplus
}
#endif
#endif
