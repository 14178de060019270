/* galvani trace: one function a command. */
#include <stdio.h>
#include <string.h>

#include "base/h5.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "trace/export.h"
#include "trace/plot.h"
#include "trace/report.h"
#include "trace/watch.h"

enum { PATH_BYTES = 4096 };

static const char usage[] = "galvani trace COMMAND FILE... [options]\n"
                            "\n"
                            "Commands\n"
                            "  report FILE...   time per token, its parts by rank, waiting, skew, the slowest steps\n"
                            "  diff A B         two runs side by side\n"
                            "  export FILE      steps or operators for other programs\n"
                            "  plot FILE        a picture\n"
                            "  watch FILE       the progress of a run, until it ends";

/* Place of the word that an option of these choices holds. */
static int place_of(const char *const *choices, const char *word) {
    int place = 0;
    while (strcmp(choices[place], word) != 0)
        place++;
    return place;
}

static status_t trace_report(const options_t *options, int n_files, const char *const *files) {
    for (int i = 0; i < n_files; i++) {
        run_record_t *record;
        TRY(run_record_load(files[i], true, &record));
        if (i) putchar('\n');
        status_t status = report_print(stdout, files[i], record, options->skip, 1e9 * options->bandwidth);
        run_record_free(record);
        TRY(status);
    }
    return STATUS_OK;
}

static status_t trace_diff(const options_t *options, int n_files, const char *const *files) {
    (void)n_files;
    run_record_t *a, *b;
    TRY(run_record_load(files[0], false, &a));
    status_t status = run_record_load(files[1], false, &b);
    if (status == STATUS_OK) {
        status = report_print_diff(stdout, (const char *const[]){files[0], files[1]},
                                   (const run_record_t *const[]){a, b}, options->skip);
        run_record_free(b);
    }
    run_record_free(a);
    return status;
}

static status_t trace_export(const options_t *options, int n_files, const char *const *files) {
    static const char *const formats[] = {
        [EXPORT_PERFETTO] = "perfetto", [EXPORT_CSV] = "csv", [EXPORT_OPS_CSV] = "ops-csv"};
    (void)n_files;
    run_record_t *record;
    TRY(run_record_load(files[0], true, &record));
    export_format_t format = (export_format_t)place_of(formats, options->format);
    status_t status = export_write(record, format, options->out ? options->out : "-");
    run_record_free(record);
    return status;
}

static status_t trace_plot(const options_t *options, int n_files, const char *const *files) {
    static const char *const kinds[] = {
        [PLOT_TPOT] = "tpot", [PLOT_DECOMPOSITION] = "decomposition", [PLOT_TIMELINE] = "timeline"};
    (void)n_files;
    char path[PATH_BYTES];
    /* run.h5 becomes run.tpot.svg. */
    size_t stem = strlen(files[0]);
    if (stem > 3 && strcmp(files[0] + stem - 3, ".h5") == 0) stem -= 3;
    int n = snprintf(path, sizeof path, "%.*s.%s.svg", (int)stem, files[0], options->kind);
    if (n < 0 || n >= PATH_BYTES) return status_fail(STATUS_USAGE, "the path %s is too long", files[0]);
    run_record_t *record;
    TRY(run_record_load(files[0], true, &record));
    const plot_args_t args = {.record = record,
                              .kind = (plot_kind_t)place_of(kinds, options->kind),
                              .skip = options->skip,
                              .step = options->step,
                              .name = files[0],
                              .path = options->out ? options->out : path};
    status_t status = plot_write(&args);
    if (status == STATUS_OK) printf("%s\n", args.path);
    run_record_free(record);
    return status;
}

static status_t trace_watch(const options_t *options, int n_files, const char *const *files) {
    (void)n_files;
    return watch_run(stdout, files[0], options->interval_ms);
}

typedef struct trace_command {
    const char *name;
    status_t (*run)(const options_t *options, int n_files, const char *const *files);
    int min_files, max_files; /* max 0: any number */
} trace_command_t;

static const trace_command_t commands[] = {
    {"report", trace_report, 1, 0}, {"diff", trace_diff, 2, 2},   {"export", trace_export, 1, 1},
    {"plot", trace_plot, 1, 1},     {"watch", trace_watch, 1, 1},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static status_t trace(options_t *options) {
    if (options->n_words == 0)
        return status_fail(STATUS_USAGE, "galvani trace needs a command; see galvani trace --help");
    const char *name = options->words[0];
    int n_files = options->n_words - 1;
    for (int i = 0; i < N_COMMANDS; i++) {
        const trace_command_t *command = &commands[i];
        if (strcmp(command->name, name) != 0) continue;
        if (n_files < command->min_files || (command->max_files && n_files > command->max_files))
            return status_fail(STATUS_USAGE, "galvani trace %s takes %s; see galvani trace --help", name,
                               command->max_files == 2   ? "two run files"
                               : command->max_files == 1 ? "one run file"
                                                         : "one run file or more");
        return command->run(options, n_files, options->words + 1);
    }
    return status_fail(STATUS_USAGE, "\"%s\" is not a command of galvani trace; see galvani trace --help", name);
}

status_t cli_trace(int argc, char **argv, comm_t *comm) {
    (void)comm;
    h5_survive_damage();
    return options_run(COMMAND_TRACE, usage, argc, argv, trace);
}
