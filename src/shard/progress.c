#include "shard/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR_CELLS = 24 };

/* Time between two drawings, on a terminal and elsewhere. */
static const int64_t redraw_ns = 200000000, line_ns = 2000000000;

void progress_start(progress_t *progress, const char *what, uint64_t total_bytes, bool is_shown) {
    *progress = (progress_t){
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .what = what,
        .total_bytes = total_bytes,
        .start_ns = clock_now_ns(),
        .is_shown = is_shown,
        .is_terminal = isatty(STDERR_FILENO) == 1,
    };
    progress->drawn_ns = progress->start_ns;
}

static void draw(progress_t *progress, int64_t now_ns) {
    double seconds = (double)(now_ns - progress->start_ns) / 1e9;
    double worked = (double)(progress->done_bytes - progress->skipped_bytes);
    double speed = seconds > 0 ? worked / seconds : 0.0;
    double share = progress->total_bytes ? (double)progress->done_bytes / (double)progress->total_bytes : 1.0;
    int64_t left = speed > 0 ? (int64_t)((double)(progress->total_bytes - progress->done_bytes) / speed) : 0;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(share * BAR_CELLS) ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "%s%s [%s] %3d%%  %.2f of %.2f GB  %.0f MB/s  ETA %" PRId64 ":%02d%s",
            progress->is_terminal ? "\r" : "", progress->what, bar, (int)(share * 100),
            (double)progress->done_bytes / 1e9, (double)progress->total_bytes / 1e9, speed / 1e6, left / 60,
            (int)(left % 60), progress->is_terminal ? "   " : "\n");
    progress->drawn_ns = now_ns;
}

/* Draws where it is time to. */
static void refresh(progress_t *progress) {
    if (!progress->is_shown || progress->total_bytes == 0) return;
    int64_t now_ns = clock_now_ns();
    if (now_ns - progress->drawn_ns < (progress->is_terminal ? redraw_ns : line_ns)) return;
    int tenths = (int)((double)progress->done_bytes * 10 / (double)progress->total_bytes);
    if (!progress->is_terminal && tenths == progress->shown_tenths) return;
    progress->shown_tenths = tenths;
    draw(progress, now_ns);
}

void progress_add(progress_t *progress, uint64_t bytes) {
    pthread_mutex_lock(&progress->lock);
    progress->done_bytes += bytes;
    refresh(progress);
    pthread_mutex_unlock(&progress->lock);
}

void progress_skip(progress_t *progress, uint64_t bytes) {
    pthread_mutex_lock(&progress->lock);
    progress->skipped_bytes += bytes;
    progress->done_bytes += bytes;
    pthread_mutex_unlock(&progress->lock);
}

void progress_end(progress_t *progress) {
    if (!progress->is_shown || !progress->is_terminal) return;
    draw(progress, clock_now_ns());
    fputc('\n', stderr);
}
