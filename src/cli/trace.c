#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/commands.h"
#include "trace/report.h"

static const char help[] =
    "usage: galvani trace COMMAND FILE... [options]\n"
    "\n"
    "  report FILE...     time per token, its parts by rank, skew, the slowest steps\n"
    "  diff A B           two runs side by side\n"
    "\n"
    "  --skip N           leave out the first N steps (32 if as many remain, else the prefill alone)\n"
    "  --help             print this and stop\n";

typedef struct trace_options {
    int64_t skip; /* negative: the default */
} trace_options_t;

static status_t trace_report(const trace_options_t *options, int n_files, char **files) {
    for (int i = 0; i < n_files; i++) {
        run_record_t *record;
        TRY(run_record_load(files[i], true, &record));
        if (i) putchar('\n');
        status_t status = report_print(stdout, files[i], record, options->skip);
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

typedef struct trace_command {
    const char *name;
    status_t (*run)(const trace_options_t *options, int n_files, char **files);
    int min_files, max_files; /* max 0: any number */
} trace_command_t;

static const trace_command_t commands[] = {
    {"report", trace_report, 1, 0},
    {"diff", trace_diff, 2, 2},
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

static status_t parse_options(int argc, char **argv, trace_options_t *options, bool *is_help) {
    static const struct option table[] = {
        {"skip", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    opterr = 0;
    optind = 1;
    int option;
    while ((option = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        switch (option) {
        case 's':
            TRY(parse_count("skip", optarg, &options->skip));
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
    trace_options_t options = {.skip = -1};
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
