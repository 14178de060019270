#include "trace/run_file.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "trace/run_tables.h"

/* Rows are put down in one of two pages, while a thread writes the other one into the file. A page changes hands when
 * FLUSH_NS have passed since the last one did and the thread is idle, or when it is full. */

static const int64_t flush_ns = 100000000;

enum {
    PAGE_BYTES = 1 << 20,
    PAGE_ROWS = 4,   /* a page has room for at least so many steps */
    OPS_A_ROW = 4096 /* operators that are put down as one row */
};

/* A step, or operators of one rank's step. What it points to lies behind it. */
typedef struct row {
    size_t bytes; /* to the next row */
    bool is_step;
    run_step_t step;
    int64_t op_step;
    int op_rank;
    size_t n_ops;
    const op_record_t *ops;
} row_t;

typedef struct page {
    unsigned char *bytes; /* [page_bytes] */
    size_t used;
} page_t;

struct run_file {
    run_tables_t *tables; /* the thread's while it runs */
    size_t n_ranks, vocab_size, n_top_logprobs;
    size_t page_bytes;
    page_t pages[2];
    int filling; /* the page that rows are put down in */
    int64_t handed_ns;
    pthread_t writer;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_handed; /* the other page is the writer's */
    bool is_ending;
    status_t status; /* of writing */
};

static status_t write_page(run_tables_t *tables, const page_t *page) {
    for (size_t at = 0; at < page->used;) {
        const row_t *row = (const row_t *)(page->bytes + at);
        if (row->is_step)
            TRY(run_tables_append(tables, &row->step));
        else
            TRY(run_tables_append_ops(tables, row->op_step, row->op_rank, row->ops, row->n_ops));
        at += row->bytes;
    }
    return run_tables_flush(tables);
}

static void *write_pages(void *argument) {
    run_file_t *file = argument;
    pthread_mutex_lock(&file->lock);
    for (;;) {
        while (!file->is_handed && !file->is_ending)
            pthread_cond_wait(&file->changed, &file->lock);
        if (!file->is_handed) break;
        page_t *page = &file->pages[1 - file->filling];
        pthread_mutex_unlock(&file->lock);
        status_t status = write_page(file->tables, page);
        page->used = 0;
        pthread_mutex_lock(&file->lock);
        if (file->status == STATUS_OK) file->status = status;
        file->is_handed = false;
        pthread_cond_signal(&file->changed);
    }
    pthread_mutex_unlock(&file->lock);
    return NULL;
}

/* Gives the page to the writer; `wait`: also if it must first finish the other. */
static status_t hand_over(run_file_t *file, bool wait) {
    pthread_mutex_lock(&file->lock);
    while (file->is_handed && wait)
        pthread_cond_wait(&file->changed, &file->lock);
    if (!file->is_handed && file->pages[file->filling].used > 0) {
        file->filling = 1 - file->filling;
        file->is_handed = true;
        file->handed_ns = clock_now_ns();
        pthread_cond_signal(&file->changed);
    }
    status_t status = file->status;
    pthread_mutex_unlock(&file->lock);
    return status;
}

static size_t aligned(size_t bytes) { return (bytes + 7) / 8 * 8; }

/* Room for what a row points to: it is counted before and copied after. */
static const void *put(page_t *page, const void *data, size_t bytes) {
    if (!data) return NULL;
    void *place = page->bytes + page->used;
    memcpy(place, data, bytes);
    page->used += aligned(bytes);
    return place;
}

static size_t step_bytes(const run_file_t *file) {
    size_t n_ranks = file->n_ranks, n_top = file->n_top_logprobs;
    return aligned(sizeof(row_t)) + aligned(n_ranks * sizeof(int64_t)) + aligned(n_ranks * sizeof(token_pair_t)) +
           aligned(file->vocab_size * sizeof(float)) + aligned(n_top * sizeof(float)) +
           aligned(n_top * sizeof(int32_t)) + aligned(n_ranks * OP_N_GROUPS * sizeof(int64_t));
}

/* A new row with room for `bytes` in all behind it; its own `bytes` are set when it is filled. */
static status_t begin_row(run_file_t *file, size_t bytes, page_t **page, row_t **row) {
    if (file->pages[file->filling].used + bytes > file->page_bytes) TRY(hand_over(file, true));
    *page = &file->pages[file->filling];
    *row = (row_t *)((*page)->bytes + (*page)->used);
    (*page)->used += aligned(sizeof(row_t));
    return STATUS_OK;
}

static void end_row(const page_t *page, row_t *row) {
    row->bytes = (size_t)(page->bytes + page->used - (const unsigned char *)row);
}

status_t run_file_append(run_file_t *file, const run_step_t *step) {
    page_t *page;
    row_t *row;
    TRY(begin_row(file, step_bytes(file), &page, &row));
    size_t n_ranks = file->n_ranks, n_top = file->n_top_logprobs;
    *row = (row_t){.is_step = true, .step = *step};
    row->step.device_ns = put(page, step->device_ns, n_ranks * sizeof(int64_t));
    row->step.pairs = put(page, step->pairs, n_ranks * sizeof(token_pair_t));
    row->step.logits = put(page, file->vocab_size ? step->logits : NULL, file->vocab_size * sizeof(float));
    row->step.top_logprobs = put(page, n_top ? step->top_logprobs : NULL, n_top * sizeof(float));
    row->step.top_tokens = put(page, n_top ? step->top_tokens : NULL, n_top * sizeof(int32_t));
    row->step.group_ns = put(page, step->group_ns, n_ranks * OP_N_GROUPS * sizeof(int64_t));
    end_row(page, row);
    return clock_now_ns() - file->handed_ns >= flush_ns ? hand_over(file, false) : STATUS_OK;
}

status_t run_file_append_ops(run_file_t *file, int64_t step, int rank, const op_record_t *records, size_t n_records) {
    for (size_t done = 0; done < n_records;) {
        size_t n = n_records - done < OPS_A_ROW ? n_records - done : OPS_A_ROW;
        page_t *page;
        row_t *row;
        TRY(begin_row(file, aligned(sizeof(row_t)) + aligned(n * sizeof *records), &page, &row));
        *row = (row_t){.op_step = step, .op_rank = rank, .n_ops = n};
        row->ops = put(page, records + done, n * sizeof *records);
        end_row(page, row);
        done += n;
    }
    return STATUS_OK;
}

/* The thread takes no signals: they are for the rest of the program. */
static status_t start_writer(run_file_t *file) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&file->writer, NULL, write_pages, file);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? status_fail(STATUS_DEVICE, "cannot start a thread: %s", strerror(error)) : STATUS_OK;
}

static void destroy(run_file_t *file) {
    for (int i = 0; i < 2; i++)
        memory_free(file->pages[i].bytes);
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    memory_free(file);
}

status_t run_file_create(const run_file_args_t *args, run_file_t **file) {
    void *memory;
    status_t status;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(run_file_t), &memory));
    run_file_t *created = memory;
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->changed, NULL);
    created->n_ranks = (size_t)args->n_ranks;
    created->vocab_size = args->has_logits ? (size_t)args->vocab_size : 0;
    created->n_top_logprobs = (size_t)args->n_top_logprobs;
    created->page_bytes = PAGE_ROWS * step_bytes(created);
    if (created->page_bytes < PAGE_BYTES) created->page_bytes = PAGE_BYTES;
    for (int i = 0; i < 2; i++) {
        TRY_GOTO(memory_alloc(MEMORY_OTHER, created->page_bytes, 1, &memory), failed);
        created->pages[i].bytes = memory;
    }
    TRY_GOTO(run_tables_create(args, &created->tables), failed);
    TRY_GOTO(start_writer(created), failed);
    *file = created;
    return STATUS_OK;

failed:
    run_tables_abandon(created->tables);
    destroy(created);
    return status;
}

/* Writes what was put down and ends the thread; the tables are the caller's again. */
static void end_writer(run_file_t *file) {
    hand_over(file, true);
    pthread_mutex_lock(&file->lock);
    file->is_ending = true;
    pthread_cond_signal(&file->changed);
    pthread_mutex_unlock(&file->lock);
    pthread_join(file->writer, NULL);
}

status_t run_file_finish(run_file_t *file, const run_end_t *end) {
    end_writer(file);
    status_t status = run_tables_finish(file->tables, end);
    destroy(file);
    return status;
}

void run_file_abandon(run_file_t *file) {
    if (!file) return;
    end_writer(file);
    run_tables_abandon(file->tables);
    destroy(file);
}
