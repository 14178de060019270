#ifndef GALVANI_CLI_OPTIONS_H
#define GALVANI_CLI_OPTIONS_H

/* The options in force, from the command line, --config files and request lines; cli/option_table.h lists them. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The subcommands; a bit each. */
typedef enum command_bit {
    COMMAND_RUN = 1,
    COMMAND_SHARD = 2,
    COMMAND_BENCH = 4,
    COMMAND_MICROBENCH = 8,
    COMMAND_MODEL = 16,
    COMMAND_INSPECT = 32,
    COMMAND_TRACE = 64
} command_bit_t;

enum { OPTIONS_MAX_ROUTES = 32 };

/* --route NAME=on|off */
typedef struct route_choice {
    const char *name;
    bool on;
} route_choice_t;

/* The options in force. Strings live as long as the option_store that they came through. */
typedef struct options {
    command_bit_t command; /* whose they are */
    /* prompt */
    const char *prompt, *prompt_file, *tokens, *tokens_file;
    /* chat */
    bool chat, think, preserve_thinking;
    const char *system, *reasoning_effort;
    /* many */
    const char *requests;
    /* generation */
    int64_t max_new, top_k, top_logprobs;
    bool ignore_eos, logits;
    double temperature, top_p;
    int64_t seed;
    /* model */
    int64_t synthetic_seed, max_context;
    /* bench */
    int64_t prompt_len, repeats, warmup;
    const char *json, *control;
    route_choice_t control_routes[OPTIONS_MAX_ROUTES]; /* those of `control` */
    int n_control_routes;
    /* microbench */
    int64_t n_tokens, passes;
    double bandwidth; /* GB/s; 0: measured, or the run file's (trace) */
    /* microbench and model */
    int64_t context;
    /* model */
    const char *device, *measured;
    /* inspect */
    bool verify, mend;
    /* trace */
    int64_t skip, step; /* negative: the default */
    int64_t interval_ms;
    const char *format, *kind;
    /* microbench's operators, inspect's file, trace's command and files: [n_words], of argv, behind the options */
    const char *const *words;
    int n_words;
    /* plan */
    bool plan;
    int64_t device_memory; /* bytes */
    /* system */
    const char *model, *out, *backend, *comm, *dense, *trace, *log_level, *config;
    int64_t prefill_chunk;
    int64_t stall_limit; /* seconds */
    bool quiet;
    route_choice_t routes[OPTIONS_MAX_ROUTES];
    int n_routes;
    /* shard */
    const char *checkpoint, *quantize_experts;
    /* plan, shard, microbench and model */
    int64_t tp;
    /* what was asked for instead of work */
    bool help;
} options_t;

/* Owns the texts that options point to. */
typedef struct option_store option_store_t;
status_t option_store_create(option_store_t **store);
void option_store_destroy(option_store_t *store); /* NULL is allowed */

/* Reads the command line of one subcommand (argv[0] is its name, and is permuted as getopt does), and the --config file
 * that it may name; what stands on the command line wins. STATUS_USAGE names the option that is wrong. */
status_t options_parse(option_store_t *store, command_bit_t command, int argc, char **argv, options_t *options);

/* Puts those in force that the whole process goes by: --log-level, --quiet and --stall-limit. */
void options_apply(const options_t *options);

/* Sets the options that a request line gives (any that may differ from request to request, with _ for -); keys named in
 * `known`, a NULL-terminated list, are the caller's. STATUS_INPUT otherwise. */
status_t options_apply_request(option_store_t *store, const json_t *request, const char *where,
                               const char *const *known, options_t *options);

/* The options in force as a JSON object, for the run file. The caller releases it with json_decref. */
json_t *options_to_json(command_bit_t command, const options_t *options);

/* "galvani" and the arguments behind it, separated by blanks. The caller frees `*line` with memory_free. */
status_t options_join(int argc, char **argv, char **line);

/* Prints usage and the options of a subcommand. */
void options_help(FILE *stream, command_bit_t command, const char *usage);

/* A subcommand for one process: parses, then prints help or calls `run` with the options. */
status_t options_run(command_bit_t command, const char *usage, int argc, char **argv,
                     status_t (*run)(options_t *options));

#ifdef __cplusplus
}
#endif
#endif
