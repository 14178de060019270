#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/watchdog.h"

typedef enum option_type {
    OPTION_FLAG,   /* --name, or on|off in a file */
    OPTION_SWITCH, /* --name on|off */
    OPTION_INT,
    OPTION_BYTES, /* a number of bytes, KiB, MiB, GiB or TiB */
    OPTION_REAL,
    OPTION_TEXT,
    OPTION_CHOICE, /* one of `choices`, which are separated by | */
    OPTION_ROUTE,  /* NAME=on|off, may be repeated */
    OPTION_CONTROL /* a list of those, separated by commas */
} option_type_t;

typedef struct option_spec {
    const char *section; /* heading in --help, at the first option of a section */
    const char *name;
    option_type_t type;
    unsigned commands; /* command_bit_t */
    bool per_request;
    size_t offset; /* in options_t */
    const char *argument;
    const char *choices;
    double minimum, maximum;
    const char *help;
} option_spec_t;

/* Whole numbers are held exactly by a double up to 2^53. */
#define LARGEST_INT 9007199254740992.0

#define AT(field) offsetof(options_t, field)

#define COMMAND_ALL (COMMAND_RUN | COMMAND_SHARD | COMMAND_BENCH | COMMAND_MICROBENCH)

static const option_spec_t specs[] = {
    {"Model", "model", OPTION_TEXT, COMMAND_MICROBENCH, false, AT(model), "MODEL", NULL, 0, 0,
     "whose shapes: synthetic:NAME, or a directory with a config.json; no weights are read (synthetic:full)"},
    {"Model", "model", OPTION_TEXT, COMMAND_RUN | COMMAND_BENCH, false, AT(model), "MODEL", NULL, 0, 0,
     "directory of shards (galvani shard makes it), or synthetic:NAME with made-up weights; NAME is full, nano or the "
     "path of a config.json"},
    {NULL, "synthetic-seed", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(synthetic_seed), "N", NULL, 0,
     LARGEST_INT, "seed of a synthetic model's weights (0)"},
    {"Prompt", "prompt", OPTION_TEXT, COMMAND_RUN, false, AT(prompt), "TEXT", NULL, 0, 0, "the prompt"},
    {NULL, "prompt-file", OPTION_TEXT, COMMAND_RUN, false, AT(prompt_file), "FILE", NULL, 0, 0,
     "read the prompt from FILE (- is stdin)"},
    {NULL, "tokens", OPTION_TEXT, COMMAND_RUN, false, AT(tokens), "1,2,3", NULL, 0, 0, "the prompt as token ids"},
    {NULL, "tokens-file", OPTION_TEXT, COMMAND_RUN, false, AT(tokens_file), "FILE", NULL, 0, 0,
     "token ids from FILE, separated by commas or white space"},
    {"Chat", "chat", OPTION_FLAG, COMMAND_RUN, true, AT(chat), NULL, NULL, 0, 0,
     "make the prompt a user turn of the model's chat template"},
    {NULL, "system", OPTION_TEXT, COMMAND_RUN, true, AT(system), "TEXT", NULL, 0, 0, "system message before it"},
    {NULL, "think", OPTION_SWITCH, COMMAND_RUN, true, AT(think), "on|off", NULL, 0, 0,
     "let the model think before it answers (on)"},
    {NULL, "reasoning-effort", OPTION_CHOICE, COMMAND_RUN, true, AT(reasoning_effort), "LEVEL", "xhigh|medium|low", 0,
     0, "how long it may think (xhigh)"},
    {NULL, "preserve-thinking", OPTION_SWITCH, COMMAND_RUN, true, AT(preserve_thinking), "on|off", NULL, 0, 0,
     "keep earlier turns' reasoning in the prompt (on)"},
    {"Many requests", "requests", OPTION_TEXT, COMMAND_RUN, false, AT(requests), "FILE.jsonl", NULL, 0, 0,
     "one request a line, one after another; --out is then a directory"},
    {"Generation", "max-new", OPTION_INT, COMMAND_RUN, true, AT(max_new), "N", NULL, 1, 1 << 24,
     "tokens to generate at most (128)"},
    {NULL, "ignore-eos", OPTION_FLAG, COMMAND_RUN, true, AT(ignore_eos), NULL, NULL, 0, 0, "go on past end tokens"},
    {NULL, "temperature", OPTION_REAL, COMMAND_RUN, true, AT(temperature), "X", NULL, 0, 1e6,
     "0 takes the likeliest token (0)"},
    {NULL, "top-p", OPTION_REAL, COMMAND_RUN, true, AT(top_p), "X", NULL, 0, 1,
     "sample from the likeliest tokens that hold this probability (1)"},
    {NULL, "top-k", OPTION_INT, COMMAND_RUN, true, AT(top_k), "N", NULL, 0, 1 << 24,
     "sample from the N likeliest tokens; 0 is all (0)"},
    {NULL, "seed", OPTION_INT, COMMAND_RUN, true, AT(seed), "N", NULL, 0, LARGEST_INT, "seed of the sampler (0)"},
    {NULL, "logits", OPTION_FLAG, COMMAND_RUN, true, AT(logits), NULL, NULL, 0, 0,
     "store every step's logits in the run file"},
    {NULL, "top-logprobs", OPTION_INT, COMMAND_RUN, true, AT(top_logprobs), "N", NULL, 0, 1024,
     "store the N best log-probabilities of every step (0)"},
    {"Benchmark", "prompt-len", OPTION_INT, COMMAND_BENCH, false, AT(prompt_len), "N", NULL, 1, 1 << 24,
     "prompt tokens, made up from the seed (8192)"},
    {NULL, "max-new", OPTION_INT, COMMAND_BENCH, false, AT(max_new), "N", NULL, 2, 1 << 24, "tokens to generate (512)"},
    {NULL, "warmup", OPTION_INT, COMMAND_BENCH, false, AT(warmup), "N", NULL, 1, 1 << 24,
     "tokens before those that count as steady decode (32)"},
    {NULL, "repeats", OPTION_INT, COMMAND_BENCH, false, AT(repeats), "N", NULL, 1, 1000, "passes (3)"},
    {NULL, "control", OPTION_CONTROL, COMMAND_BENCH, false, AT(control), "NAME=off,...", NULL, 0, 0,
     "take turns with the same run with these routes switched, and print the difference"},
    {NULL, "seed", OPTION_INT, COMMAND_BENCH, false, AT(seed), "N", NULL, 0, LARGEST_INT, "seed of the prompt (0)"},
    {NULL, "json", OPTION_TEXT, COMMAND_BENCH, false, AT(json), "FILE", NULL, 0, 0, "write the figures as JSON"},
    {"Microbenchmark", "tokens", OPTION_INT, COMMAND_MICROBENCH, false, AT(n_tokens), "N", NULL, 1, 1 << 16,
     "tokens of one call: 1 is decode, more are a chunk of prefill (1)"},
    {NULL, "context", OPTION_INT, COMMAND_MICROBENCH, false, AT(context), "N", NULL, 1, 1 << 24,
     "tokens of the sequence, those of the call included (8192, or all that the model takes)"},
    {NULL, "tp", OPTION_INT, COMMAND_MICROBENCH, false, AT(tp), "T", NULL, 1, 1024,
     "take the shapes of one of T ranks (as many as mpirun started)"},
    {NULL, "repeats", OPTION_INT, COMMAND_MICROBENCH, false, AT(passes), "N", NULL, 1, 1000,
     "timed passes, whose median counts (9)"},
    {NULL, "bandwidth", OPTION_REAL, COMMAND_MICROBENCH, false, AT(bandwidth), "GB/S", NULL, 0, 1e6,
     "memory bandwidth that the floor is made from (that of a copy, measured first)"},
    {NULL, "json", OPTION_TEXT, COMMAND_MICROBENCH, false, AT(json), "FILE", NULL, 0, 0, "write the figures as JSON"},
    {"System", "backend", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(backend), "NAME",
     "auto|cpu|cuda", 0, 0, "where to compute (auto)"},
    {NULL, "out", OPTION_TEXT, COMMAND_BENCH, false, AT(out), "FILE", NULL, 0, 0,
     "write the run file of the last pass without the control"},
    {NULL, "out", OPTION_TEXT, COMMAND_RUN, false, AT(out), "FILE", NULL, 0, 0,
     "write the run file (with --requests: a directory of them)"},
    {NULL, "comm", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(comm), "NAME",
     "auto|push|nccl|mpi", 0, 0, "what carries sums between ranks (auto)"},
    {NULL, "dense", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(dense), "FORMAT",
     "auto|fp16|q8|qpn8", 0, 0,
     "form of the projections of GR, GDN and QSA on GPUs, made while loading; auto is q8 in bench and fp16 elsewhere "
     "(auto)"},
    {NULL, "route", OPTION_ROUTE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(routes), "NAME=on|off",
     NULL, 0, 0, "switch a fast path (docs/cuda.md lists them); may be repeated"},
    {NULL, "prefill-chunk", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(prefill_chunk), "N", NULL, 1, 1 << 20,
     "prompt tokens computed at once (on a GPU 8192, or fewer where memory is short; else 256)"},
    {NULL, "trace", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH, true, AT(trace), "LEVEL", "off|steps|ops", 0, 0,
     "what the run file records of time (steps)"},
    {"Memory plan", "plan", OPTION_FLAG, COMMAND_RUN | COMMAND_BENCH, false, AT(plan), NULL, NULL, 0, 0,
     "print what each rank will take and which contexts fit, and stop; needs neither weights nor a GPU"},
    {NULL, "tp", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(tp), "T", NULL, 1, 1024,
     "plan for T ranks (those that mpirun started)"},
    {NULL, "max-context", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(max_context), "N", NULL, 1, 1 << 30,
     "make room for N tokens (what the prompts need; a plan without a prompt: 8704)"},
    {NULL, "device-memory", OPTION_BYTES, COMMAND_RUN | COMMAND_BENCH, false, AT(device_memory), "SIZE", NULL, 1,
     LARGEST_INT, "plan for GPUs of that size, such as 32GiB (the GPU that is here)"},
    {"Conversion", "checkpoint", OPTION_TEXT, COMMAND_SHARD, false, AT(checkpoint), "DIR", NULL, 0, 0,
     "Hugging Face checkpoint: config.json and safetensors"},
    {NULL, "out", OPTION_TEXT, COMMAND_SHARD, false, AT(out), "DIR", NULL, 0, 0, "directory for model.rank<r>of<T>.h5"},
    {NULL, "tp", OPTION_INT, COMMAND_SHARD, false, AT(tp), "T", NULL, 1, 1024, "number of tensor-parallel ranks"},
    {NULL, "quantize-experts", OPTION_CHOICE, COMMAND_SHARD, false, AT(quantize_experts), "FORMAT", "nvfp4", 0, 0,
     "quantise unquantised experts; without it they are kept as FP16"},
    {"Common", "config", OPTION_TEXT, COMMAND_ALL, false, AT(config), "FILE", NULL, 0, 0,
     "JSON object of these options; the command line wins"},
    {NULL, "quiet", OPTION_FLAG, COMMAND_ALL, false, AT(quiet), NULL, NULL, 0, 0, "no progress and no summary"},
    {NULL, "log-level", OPTION_CHOICE, COMMAND_ALL, false, AT(log_level), "LEVEL", "error|warning|info|debug", 0, 0,
     "what to say on stderr (info)"},
    {NULL, "stall-limit", OPTION_INT, COMMAND_ALL, false, AT(stall_limit), "SECONDS", NULL, 0, 86400,
     "end the job when a rank stands still for that long; 0: never (30)"},
    {NULL, "help", OPTION_FLAG, COMMAND_ALL, false, AT(help), NULL, NULL, 0, 0, "print this and stop"},
};
enum { N_SPECS = sizeof specs / sizeof specs[0] };

static const options_t defaults = {
    .think = true,
    .preserve_thinking = true,
    .reasoning_effort = "xhigh",
    .max_new = 128,
    .prompt_len = 8192,
    .repeats = 3,
    .warmup = 32,
    .n_tokens = 1,
    .passes = 9,
    .top_p = 1,
    .backend = "auto",
    .comm = "auto",
    .dense = "auto",
    .trace = "steps",
    .log_level = "info",
    .stall_limit = WATCHDOG_DEFAULT_LIMIT_S,
};

/* Texts taken from files, kept in a list. */
typedef struct kept_text {
    struct kept_text *next;
    char text[];
} kept_text_t;

struct option_store {
    kept_text_t *first;
};

status_t option_store_create(option_store_t **store) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(option_store_t), &memory));
    *store = memory;
    return STATUS_OK;
}

void option_store_destroy(option_store_t *store) {
    if (!store) return;
    while (store->first) {
        kept_text_t *next = store->first->next;
        memory_free(store->first);
        store->first = next;
    }
    memory_free(store);
}

static status_t keep_text(option_store_t *store, const char *text, const char **kept) {
    size_t bytes = strlen(text) + 1;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(kept_text_t) + bytes, &memory));
    kept_text_t *entry = memory;
    memcpy(entry->text, text, bytes);
    entry->next = store->first;
    store->first = entry;
    *kept = entry->text;
    return STATUS_OK;
}

/* Whether `text` is one of the words of `choices`. */
static bool is_choice(const char *choices, const char *text) {
    size_t length = strlen(text);
    for (const char *word = choices; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL)
        if (length && strncmp(word, text, length) == 0 && (word[length] == '|' || word[length] == '\0')) return true;
    return false;
}

static bool read_switch(const char *text, bool *value) {
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) return false;
    *value = strcmp(text, "on") == 0;
    return true;
}

/* A number with a unit of 1024^n behind it, or of bytes. */
static bool read_bytes(const char *text, double minimum, double maximum, int64_t *bytes) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    char *end;
    double value = strtod(text, &end);
    if (end == text) return false;
    for (int i = 0; i < 5; i++) {
        if (strcmp(end, units[i]) == 0) {
            value = ldexp(value, 10 * i);
            if (!(value >= minimum && value <= maximum)) return false;
            *bytes = (int64_t)value;
            return true;
        }
    }
    return false;
}

static status_t set_route(option_store_t *store, const char *text, const char *where, status_t fault,
                          route_choice_t *routes, int *n_routes) {
    const char *equals = strchr(text, '=');
    bool on;
    if (!equals || equals == text || !read_switch(equals + 1, &on))
        return status_fail(fault, "%s is \"%s\", but must be NAME=on or NAME=off", where, text);
    if (*n_routes == OPTIONS_MAX_ROUTES) return status_fail(fault, "%s is given too often", where);
    char name[64];
    if ((size_t)(equals - text) >= sizeof name)
        return status_fail(fault, "%s: there is no route of such a long name", where);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = '\0';
    route_choice_t *route = &routes[*n_routes];
    TRY(keep_text(store, name, &route->name));
    route->on = on;
    (*n_routes)++;
    return STATUS_OK;
}

static status_t set_control(option_store_t *store, const char *text, const char *where, status_t fault,
                            options_t *options) {
    TRY(keep_text(store, text, &options->control));
    for (bool is_last = false; !is_last;) {
        char choice[80];
        size_t length = strcspn(text, ",");
        if (length >= sizeof choice) return status_fail(fault, "%s: there is no route of such a long name", where);
        memcpy(choice, text, length);
        choice[length] = '\0';
        TRY(set_route(store, choice, where, fault, options->control_routes, &options->n_control_routes));
        is_last = text[length] == '\0';
        text += length + 1;
    }
    return STATUS_OK;
}

/* Checks one value and stores it. `where` is how the user wrote the option. */
static status_t set_option(option_store_t *store, const option_spec_t *spec, const char *text, const char *where,
                           status_t fault, options_t *options) {
    char *field = (char *)options + spec->offset;
    char *end;
    errno = 0;
    switch (spec->type) {
    case OPTION_FLAG:
    case OPTION_SWITCH:
        if (!read_switch(text, (bool *)field))
            return status_fail(fault, "%s is \"%s\", but must be on or off", where, text);
        return STATUS_OK;
    case OPTION_INT: {
        long long value = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)value < spec->minimum || (double)value > spec->maximum)
            return status_fail(fault, "%s is \"%s\", but must be a whole number from %.0f to %.0f", where, text,
                               spec->minimum, spec->maximum);
        *(int64_t *)(void *)field = value;
        return STATUS_OK;
    }
    case OPTION_BYTES:
        if (!read_bytes(text, spec->minimum, spec->maximum, (int64_t *)(void *)field))
            return status_fail(fault, "%s is \"%s\", but must be a number of bytes, or of KiB, MiB, GiB or TiB: 32GiB",
                               where, text);
        return STATUS_OK;
    case OPTION_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end || !isfinite(value) || value < spec->minimum || value > spec->maximum)
            return status_fail(fault, "%s is \"%s\", but must be a number from %g to %g", where, text, spec->minimum,
                               spec->maximum);
        *(double *)(void *)field = value;
        return STATUS_OK;
    }
    case OPTION_CHOICE:
        if (!is_choice(spec->choices, text))
            return status_fail(fault, "%s is \"%s\", but must be one of %s", where, text, spec->choices);
        return keep_text(store, text, (const char **)(void *)field);
    case OPTION_TEXT:
        return keep_text(store, text, (const char **)(void *)field);
    case OPTION_ROUTE:
        return set_route(store, text, where, fault, options->routes, &options->n_routes);
    case OPTION_CONTROL:
        return set_control(store, text, where, fault, options);
    }
    return STATUS_OK;
}

static const option_spec_t *find_spec(const char *name, unsigned commands) {
    for (int i = 0; i < N_SPECS; i++)
        if (strcmp(specs[i].name, name) == 0 && (specs[i].commands & commands)) return &specs[i];
    return NULL;
}

/* Stores the value that a JSON member gives. */
static status_t set_from_json(option_store_t *store, const option_spec_t *spec, const json_t *value, const char *where,
                              status_t fault, options_t *options) {
    char text[64];
    if (spec->type == OPTION_ROUTE && json_is_array(value)) {
        size_t i;
        const json_t *item;
        json_array_foreach(value, i, item) TRY(set_from_json(store, spec, item, where, fault, options));
        return STATUS_OK;
    }
    bool is_number = spec->type == OPTION_INT || spec->type == OPTION_REAL || spec->type == OPTION_BYTES;
    if (json_is_string(value) && (!is_number || spec->type == OPTION_BYTES))
        return set_option(store, spec, json_string_value(value), where, fault, options);
    if (json_is_boolean(value) && (spec->type == OPTION_FLAG || spec->type == OPTION_SWITCH))
        return set_option(store, spec, json_is_true(value) ? "on" : "off", where, fault, options);
    if (json_is_integer(value) && is_number) {
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return set_option(store, spec, text, where, fault, options);
    }
    if (json_is_real(value) && spec->type == OPTION_REAL) {
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
        return set_option(store, spec, text, where, fault, options);
    }
    return status_fail(fault, "%s has a value of the wrong type; see galvani run --help", where);
}

/* Applies every member of a JSON object. `given` marks options that stand on the command line and win; it may be NULL.
 */
static status_t apply_object(option_store_t *store, unsigned commands, bool requests_only, const json_t *object,
                             const char *where, const char *const *known, const bool *given, status_t fault,
                             options_t *options) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        bool is_known = false;
        for (const char *const *word = known; word && *word; word++)
            is_known |= strcmp(*word, key) == 0;
        if (is_known) continue;
        char name[64];
        snprintf(name, sizeof name, "%s", key);
        for (char *c = name; *c; c++)
            if (*c == '_') *c = '-';
        const option_spec_t *spec = find_spec(name, commands);
        if (!spec || (requests_only && !spec->per_request) || strcmp(name, "config") == 0 || strcmp(name, "help") == 0)
            return status_fail(fault, "%s: \"%s\" is not an option that may stand here", where, key);
        if (given && given[spec - specs]) continue;
        char place[512];
        snprintf(place, sizeof place, "%s: \"%s\"", where, key);
        TRY(set_from_json(store, spec, value, place, fault, options));
    }
    return STATUS_OK;
}

status_t options_apply_request(option_store_t *store, const json_t *request, const char *where,
                               const char *const *known, options_t *options) {
    return apply_object(store, COMMAND_RUN, true, request, where, known, NULL, STATUS_INPUT, options);
}

static status_t apply_config_file(option_store_t *store, unsigned commands, const char *path, const bool *given,
                                  options_t *options) {
    json_t *root;
    TRY(json_read_file(path, &root));
    status_t status = json_is_object(root)
                          ? apply_object(store, commands, false, root, path, NULL, given, STATUS_USAGE, options)
                          : status_fail(STATUS_USAGE, "%s must hold one JSON object of options", path);
    json_decref(root);
    return status;
}

status_t options_parse(option_store_t *store, command_bit_t command, int argc, char **argv, options_t *options) {
    /* getopt_long does the reading; `val` is the place in specs, above the range of characters. */
    enum { FIRST_VALUE = 1000 };
    struct option table[N_SPECS + 1];
    memset(table, 0, sizeof table);
    int n = 0;
    for (int i = 0; i < N_SPECS; i++)
        if (specs[i].commands & command)
            table[n++] = (struct option){.name = specs[i].name,
                                         .has_arg = specs[i].type == OPTION_FLAG ? no_argument : required_argument,
                                         .val = FIRST_VALUE + i};

    options_t parsed = defaults;
    parsed.command = command;
    if (command == COMMAND_BENCH) parsed.max_new = 512;
    bool given[N_SPECS] = {false};
    opterr = 0;
    optind = 1;
    int value;
    while ((value = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (value == ':') return status_fail(STATUS_USAGE, "%s needs a value", argv[optind - 1]);
        if (value == '?')
            return status_fail(STATUS_USAGE, "%s is not an option of galvani %s; see galvani %s --help",
                               argv[optind - 1], argv[0], argv[0]);
        const option_spec_t *spec = &specs[value - FIRST_VALUE];
        char where[80];
        snprintf(where, sizeof where, "--%s", spec->name);
        if (given[spec - specs] && spec->type != OPTION_ROUTE)
            return status_fail(STATUS_USAGE, "%s is given twice", where);
        given[spec - specs] = true;
        TRY(set_option(store, spec, spec->type == OPTION_FLAG ? "on" : optarg, where, STATUS_USAGE, &parsed));
    }
    if (command == COMMAND_MICROBENCH) {
        parsed.ops = (const char *const *)argv + optind;
        parsed.n_ops = argc - optind;
    } else if (optind < argc)
        return status_fail(STATUS_USAGE, "\"%s\" is not expected here: options are written --name value", argv[optind]);
    if (parsed.config && !parsed.help) TRY(apply_config_file(store, command, parsed.config, given, &parsed));
    *options = parsed;
    return STATUS_OK;
}

json_t *options_to_json(command_bit_t command, const options_t *options) {
    json_t *object = json_object();
    for (int i = 0; i < N_SPECS; i++) {
        const option_spec_t *spec = &specs[i];
        const char *field = (const char *)options + spec->offset;
        if (!(spec->commands & command) || strcmp(spec->name, "help") == 0) continue;
        json_t *value = NULL;
        switch (spec->type) {
        case OPTION_FLAG:
        case OPTION_SWITCH:
            value = json_boolean(*(const bool *)field);
            break;
        case OPTION_INT:
        case OPTION_BYTES:
            value = json_integer(*(const int64_t *)(const void *)field);
            break;
        case OPTION_REAL:
            value = json_real(*(const double *)(const void *)field);
            break;
        case OPTION_TEXT:
        case OPTION_CHOICE:
        case OPTION_CONTROL: {
            const char *text = *(const char *const *)(const void *)field;
            value = text ? json_string_nocheck(text) : json_null();
            break;
        }
        case OPTION_ROUTE:
            value = json_object();
            for (int r = 0; r < options->n_routes; r++)
                json_object_set_new(value, options->routes[r].name, json_boolean(options->routes[r].on));
            break;
        }
        json_object_set_new(object, spec->name, value);
    }
    return object;
}

status_t options_join(int argc, char **argv, char **line) {
    size_t bytes = sizeof "galvani";
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    char *next = memory;
    next += sprintf(next, "galvani");
    for (int i = 0; i < argc; i++)
        next += sprintf(next, " %s", argv[i]);
    *line = memory;
    return STATUS_OK;
}

void options_help(FILE *stream, command_bit_t command, const char *usage) {
    fprintf(stream, "usage: %s\n", usage);
    for (int i = 0; i < N_SPECS; i++) {
        const option_spec_t *spec = &specs[i];
        if (!(spec->commands & command)) continue;
        if (spec->section) fprintf(stream, "\n%s\n", spec->section);
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", spec->name, spec->argument ? " " : "",
                 spec->argument ? spec->argument : "");
        fprintf(stream, "  %-30s %s%s%s\n", left, spec->help, spec->choices ? ": " : "",
                spec->choices ? spec->choices : "");
    }
}
