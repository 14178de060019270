#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/h5.h"
#include "cli/commands.h"
#include "trace/export.h"
#include "trace/plot.h"
#include "trace/report.h"
#include "trace/watch.h"

enum { PATH_BYTES = 4096 };

static const char help[] =
    "usage: galvani trace COMMAND FILE... [options]\n"
    "\n"
    "  report FILE...   time per token, its parts by rank, waiting, skew, the slowest steps\n"
    "  diff A B         two runs side by side\n"
    "  export FILE      --format perfetto (JSON for ui.perfetto.dev), csv (steps) or ops-csv (operators)\n"
    "  plot FILE        --kind tpot, decomposition or timeline (the operators of one step)\n"
    "  watch FILE       the progress of a run, until it ends\n"
    "\n"
    "  --skip N          leave out the first N steps (32 if as many remain, else the prefill alone)\n"
    "  --format NAME     of export (perfetto)\n"
    "  --kind NAME       of plot (tpot)\n"
    "  --step N          of plot --kind timeline (the step of median duration)\n"
    "  --out PATH        of export (standard output), of plot (FILE's name with .KIND.svg; or .png)\n"
    "  --bandwidth GB/S  of report: that of the device's memory, for the share of the byte floor (what the run file "
    "says)\n"
    "  --interval MS     of watch (500)\n"
    "  --help            print this and stop\n";

typedef struct trace_options {
    int64_t skip, step;             /* negative: the default */
    int64_t interval_ms, bandwidth; /* GB/s; 0: the run file's */
    int format;                     /* export_format_t */
    int kind;                       /* plot_kind_t */
    const char *kind_name, *out;
} trace_options_t;

static status_t trace_report(const trace_options_t *options, int n_files, char **files) {
    for (int i = 0; i < n_files; i++) {
        run_record_t *record;
        TRY(run_record_load(files[i], true, &record));
        if (i) putchar('\n');
        status_t status = report_print(stdout, files[i], record, options->skip, 1e9 * (double)options->bandwidth);
        run_record_free(record);
        TRY(status);
    }
    return STATUS_OK;
}

static status_t trace_diff(const trace_options_t *options, int n_files, char **files) {
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

static status_t trace_export(const trace_options_t *options, int n_files, char **files) {
    (void)n_files;
    run_record_t *record;
    TRY(run_record_load(files[0], true, &record));
    status_t status = export_write(record, (export_format_t)options->format, options->out ? options->out : "-");
    run_record_free(record);
    return status;
}

static status_t trace_plot(const trace_options_t *options, int n_files, char **files) {
    (void)n_files;
    char path[PATH_BYTES];
    /* run.h5 becomes run.tpot.svg. */
    size_t stem = strlen(files[0]);
    if (stem > 3 && strcmp(files[0] + stem - 3, ".h5") == 0) stem -= 3;
    int n = snprintf(path, sizeof path, "%.*s.%s.svg", (int)stem, files[0], options->kind_name);
    if (n < 0 || n >= PATH_BYTES) return status_fail(STATUS_USAGE, "the path %s is too long", files[0]);
    run_record_t *record;
    TRY(run_record_load(files[0], true, &record));
    const plot_args_t args = {.record = record,
                              .kind = (plot_kind_t)options->kind,
                              .skip = options->skip,
                              .step = options->step,
                              .name = files[0],
                              .path = options->out ? options->out : path};
    status_t status = plot_write(&args);
    if (status == STATUS_OK) printf("%s\n", args.path);
    run_record_free(record);
    return status;
}

static status_t trace_watch(const trace_options_t *options, int n_files, char **files) {
    (void)n_files;
    return watch_run(stdout, files[0], options->interval_ms);
}

typedef struct trace_command {
    const char *name;
    status_t (*run)(const trace_options_t *options, int n_files, char **files);
    int min_files, max_files; /* max 0: any number */
} trace_command_t;

static const trace_command_t commands[] = {
    {"report", trace_report, 1, 0}, {"diff", trace_diff, 2, 2},   {"export", trace_export, 1, 1},
    {"plot", trace_plot, 1, 1},     {"watch", trace_watch, 1, 1},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static status_t parse_count(const char *name, const char *text, int64_t *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < 0)
        return status_fail(STATUS_USAGE, "--%s is \"%s\", but must be a whole number from 0", name, text);
    *value = number;
    return STATUS_OK;
}

/* Place of `text` in a list of words. */
static status_t parse_word(const char *name, const char *text, const char *const *words, int *place) {
    char list[128] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            *place = i;
            return STATUS_OK;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    }
    return status_fail(STATUS_USAGE, "--%s is \"%s\", but must be one of %s", name, text, list);
}

static status_t parse_options(int argc, char **argv, trace_options_t *options, bool *is_help) {
    static const struct option table[] = {
        {"skip", required_argument, NULL, 's'},
        {"step", required_argument, NULL, 'n'},
        {"format", required_argument, NULL, 'f'},
        {"kind", required_argument, NULL, 'k'},
        {"out", required_argument, NULL, 'o'},
        {"interval", required_argument, NULL, 'i'},
        {"bandwidth", required_argument, NULL, 'b'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const char *const formats[] = {
        [EXPORT_PERFETTO] = "perfetto", [EXPORT_CSV] = "csv", [EXPORT_OPS_CSV] = "ops-csv", NULL};
    static const char *const kinds[] = {
        [PLOT_TPOT] = "tpot", [PLOT_DECOMPOSITION] = "decomposition", [PLOT_TIMELINE] = "timeline", NULL};
    opterr = 0;
    optind = 1;
    int option;
    while ((option = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        switch (option) {
        case 's':
            TRY(parse_count("skip", optarg, &options->skip));
            break;
        case 'n':
            TRY(parse_count("step", optarg, &options->step));
            break;
        case 'f':
            TRY(parse_word("format", optarg, formats, &options->format));
            break;
        case 'k':
            TRY(parse_word("kind", optarg, kinds, &options->kind));
            options->kind_name = optarg;
            break;
        case 'o':
            options->out = optarg;
            break;
        case 'i':
            TRY(parse_count("interval", optarg, &options->interval_ms));
            break;
        case 'b':
            TRY(parse_count("bandwidth", optarg, &options->bandwidth));
            break;
        case 'h':
            *is_help = true;
            break;
        case ':':
            return status_fail(STATUS_USAGE, "%s needs a value", argv[optind - 1]);
        default:
            return status_fail(STATUS_USAGE, "%s is not an option of galvani trace; see galvani trace --help",
                               argv[optind - 1]);
        }
    }
    return STATUS_OK;
}

status_t cli_trace(int argc, char **argv, comm_t *comm) {
    (void)comm;
    h5_survive_damage();
    trace_options_t options = {.skip = -1, .step = -1, .interval_ms = 500, .kind_name = "tpot"};
    bool is_help = false;
    TRY(parse_options(argc, argv, &options, &is_help));
    if (is_help) {
        fputs(help, stdout);
        return STATUS_OK;
    }
    if (optind == argc) return status_fail(STATUS_USAGE, "galvani trace needs a command; see galvani trace --help");
    const char *name = argv[optind];
    int n_files = argc - optind - 1;
    for (int i = 0; i < N_COMMANDS; i++) {
        const trace_command_t *command = &commands[i];
        if (strcmp(command->name, name) != 0) continue;
        if (n_files < command->min_files || (command->max_files && n_files > command->max_files))
            return status_fail(STATUS_USAGE, "galvani trace %s takes %s; see galvani trace --help", name,
                               command->max_files == 2   ? "two run files"
                               : command->max_files == 1 ? "one run file"
                                                         : "one run file or more");
        return command->run(&options, n_files, argv + optind + 1);
    }
    return status_fail(STATUS_USAGE, "\"%s\" is not a command of galvani trace; see galvani trace --help", name);
}
