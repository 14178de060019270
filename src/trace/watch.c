#include "trace/watch.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/json.h"
#include "trace/run_reader.h"

/* Steps over which the present speed is taken. */
enum { RECENT_STEPS = 32 };

/* --max-new of the run, 0 if it is not known. */
static int64_t max_new(const run_record_t *record) {
    json_t *options = json_loads(record->effective_config, 0, NULL);
    int64_t value = (int64_t)json_integer_value(json_object_get(options, "max-new"));
    json_decref(options);
    return value > 0 ? value : 0;
}

static void print_progress(FILE *stream, const run_record_t *record, const char *begin, const char *end) {
    size_t n = record->n_steps;
    int64_t limit = max_new(record);
    fprintf(stream, "%s%zu", begin, n);
    if (limit) fprintf(stream, " of %" PRId64, limit);
    fprintf(stream, " token%s", n == 1 && !limit ? "" : "s");
    if (n > 0) fprintf(stream, ", first after %.1f ms", (double)record->wall_ns[0] / 1e6);
    size_t n_recent = n > RECENT_STEPS ? RECENT_STEPS : n > 0 ? n - 1 : 0;
    if (n_recent > 0) {
        int64_t sum_ns = 0;
        for (size_t step = n - n_recent; step < n; step++)
            sum_ns += record->wall_ns[step];
        double ms = (double)sum_ns / 1e6 / (double)n_recent;
        fprintf(stream, ", %.3f ms a token now (%.1f tokens/s)", ms, 1e3 / ms);
        if (record->state == RUN_RUNNING && limit > (int64_t)n)
            fprintf(stream, ", at most %.0f s more", ms * (double)(limit - (int64_t)n) / 1e3);
    }
    fputs(end, stream);
    fflush(stream);
}

status_t watch_run(FILE *stream, const char *path, int64_t interval_ms) {
    bool is_terminal = isatty(fileno(stream));
    size_t n_printed = SIZE_MAX;
    for (;;) {
        run_record_t *record;
        TRY(run_record_load(path, false, &record));
        run_state_t state = record->state;
        bool has_ended = state != RUN_RUNNING && state != RUN_ELSEWHERE;
        /* On a terminal the line is overwritten; \033[K clears what is left of a longer one. */
        if (record->n_steps != n_printed || has_ended)
            print_progress(stream, record, is_terminal ? "\r\033[K" : "", is_terminal && !has_ended ? "" : "\n");
        n_printed = record->n_steps;
        run_record_free(record);
        if (state == RUN_COMPLETE) return STATUS_OK;
        if (has_ended) return status_fail(STATUS_INPUT, "%s: %s", path, run_state_text(state));
        usleep((useconds_t)interval_ms * 1000);
    }
}
