#include "shard/piece_reader.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

typedef struct slot {
    piece_t piece;
    bool is_done;
    status_t status;
} slot_t;

struct piece_reader {
    int fd;
    const char *path;
    pthread_mutex_t lock;
    pthread_cond_t submitted, hashed, done;
    /* under the lock; a piece has the slot of its number modulo PIECE_READER_MOST */
    slot_t slots[PIECE_READER_MOST];
    uint64_t n_submitted, n_taken, n_hashed, n_waited;
    bool is_closed;

    int n_threads;
    pthread_t threads[];
};

/* Waits for a piece to read; false at the end. */
static bool take(piece_reader_t *reader, uint64_t *number) {
    while (reader->n_taken == reader->n_submitted && !reader->is_closed)
        pthread_cond_wait(&reader->submitted, &reader->lock);
    if (reader->n_taken == reader->n_submitted) return false;
    *number = reader->n_taken++;
    return true;
}

static void *work(void *context) {
    piece_reader_t *reader = context;
    uint64_t number;
    pthread_mutex_lock(&reader->lock);
    while (take(reader, &number)) {
        slot_t *slot = &reader->slots[number % PIECE_READER_MOST];
        piece_t piece = slot->piece;
        pthread_mutex_unlock(&reader->lock);
        status_t status = file_read_at(reader->fd, reader->path, piece.memory, piece.bytes, piece.offset);
        pthread_mutex_lock(&reader->lock);
        while (reader->n_hashed < number)
            pthread_cond_wait(&reader->hashed, &reader->lock);
        pthread_mutex_unlock(&reader->lock);
        if (status == STATUS_OK) hash_xxh3_update(piece.hash, piece.memory, piece.bytes);
        pthread_mutex_lock(&reader->lock);
        reader->n_hashed++;
        slot->status = status;
        slot->is_done = true;
        pthread_cond_broadcast(&reader->hashed);
        pthread_cond_signal(&reader->done);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

status_t piece_reader_create(int fd, const char *path, int n_threads, piece_reader_t **reader) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(piece_reader_t) + (size_t)n_threads * sizeof(pthread_t), &memory));
    piece_reader_t *created = memory;
    created->fd = fd;
    created->path = path;
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->submitted, NULL);
    pthread_cond_init(&created->hashed, NULL);
    pthread_cond_init(&created->done, NULL);
    int failure = 0;
    while (created->n_threads < n_threads && failure == 0) {
        failure = pthread_create(&created->threads[created->n_threads], NULL, work, created);
        if (failure == 0) created->n_threads++;
    }
    if (created->n_threads == 0) {
        piece_reader_destroy(created);
        return status_fail(STATUS_DEVICE, "no thread to read %s with: %s", path, strerror(failure));
    }
    *reader = created;
    return STATUS_OK;
}

void piece_reader_destroy(piece_reader_t *reader) {
    if (!reader) return;
    pthread_mutex_lock(&reader->lock);
    reader->is_closed = true;
    pthread_cond_broadcast(&reader->submitted);
    pthread_mutex_unlock(&reader->lock);
    for (int i = 0; i < reader->n_threads; i++)
        pthread_join(reader->threads[i], NULL);
    pthread_cond_destroy(&reader->done);
    pthread_cond_destroy(&reader->hashed);
    pthread_cond_destroy(&reader->submitted);
    pthread_mutex_destroy(&reader->lock);
    memory_free(reader);
}

void piece_reader_submit(piece_reader_t *reader, const piece_t *piece) {
    pthread_mutex_lock(&reader->lock);
    reader->slots[reader->n_submitted++ % PIECE_READER_MOST] = (slot_t){.piece = *piece};
    pthread_cond_signal(&reader->submitted);
    pthread_mutex_unlock(&reader->lock);
}

status_t piece_reader_wait(piece_reader_t *reader) {
    pthread_mutex_lock(&reader->lock);
    const slot_t *slot = &reader->slots[reader->n_waited++ % PIECE_READER_MOST];
    while (!slot->is_done)
        pthread_cond_wait(&reader->done, &reader->lock);
    status_t status = slot->status;
    pthread_mutex_unlock(&reader->lock);
    return status;
}
