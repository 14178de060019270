#include "shard/verifier.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"

typedef struct task {
    shard_writer_t *writer;
    size_t index;
} task_t;

struct verifier {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    size_t n_submitted, n_done;
    bool is_closed, is_stopped;
    status_t status;

    size_t capacity;
    task_t tasks[];
};

/* Waits for a task; false at the end. */
static bool take(verifier_t *verifier, task_t *task) {
    pthread_mutex_lock(&verifier->lock);
    while (verifier->n_done == verifier->n_submitted && !verifier->is_closed)
        pthread_cond_wait(&verifier->changed, &verifier->lock);
    bool taken = verifier->n_done < verifier->n_submitted && !verifier->is_stopped && verifier->status == STATUS_OK;
    if (taken) *task = verifier->tasks[verifier->n_done];
    pthread_mutex_unlock(&verifier->lock);
    return taken;
}

static void *work(void *context) {
    verifier_t *verifier = context;
    task_t task;
    while (take(verifier, &task)) {
        status_t status = shard_writer_verify(task.writer, task.index);
        pthread_mutex_lock(&verifier->lock);
        verifier->n_done++;
        verifier->status = status;
        pthread_mutex_unlock(&verifier->lock);
    }
    return NULL;
}

status_t verifier_start(size_t capacity, verifier_t **verifier) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(verifier_t) + capacity * sizeof(task_t), &memory));
    verifier_t *started = memory;
    started->capacity = capacity;
    pthread_mutex_init(&started->lock, NULL);
    pthread_cond_init(&started->changed, NULL);
    int failure = pthread_create(&started->thread, NULL, work, started);
    if (failure) {
        pthread_cond_destroy(&started->changed);
        pthread_mutex_destroy(&started->lock);
        memory_free(started);
        return status_fail(STATUS_MEMORY, "cannot start a thread: %s", strerror(failure));
    }
    *verifier = started;
    return STATUS_OK;
}

status_t verifier_submit(verifier_t *verifier, shard_writer_t *writer, size_t index) {
    pthread_mutex_lock(&verifier->lock);
    if (verifier->n_submitted < verifier->capacity) verifier->tasks[verifier->n_submitted++] = (task_t){writer, index};
    status_t status = verifier->status;
    pthread_cond_signal(&verifier->changed);
    pthread_mutex_unlock(&verifier->lock);
    return status;
}

status_t verifier_finish(verifier_t *verifier, bool stop_early) {
    if (!verifier) return STATUS_OK;
    pthread_mutex_lock(&verifier->lock);
    verifier->is_closed = true;
    verifier->is_stopped = stop_early;
    pthread_cond_signal(&verifier->changed);
    pthread_mutex_unlock(&verifier->lock);
    pthread_join(verifier->thread, NULL);
    status_t status = verifier->status;
    pthread_cond_destroy(&verifier->changed);
    pthread_mutex_destroy(&verifier->lock);
    memory_free(verifier);
    return status;
}
