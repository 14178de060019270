#include "cli/option_table.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/watchdog.h"

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
    for (int i = 0; i < n_option_table; i++)
        if (strcmp(option_table[i].name, name) == 0 && (option_table[i].commands & commands)) return &option_table[i];
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
    return status_fail(fault, "%s has a value of the wrong type", where);
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
        if (given && given[spec - option_table]) continue;
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
    if (json_read_file(path, &root) != STATUS_OK) return STATUS_USAGE;
    status_t status = json_is_object(root)
                          ? apply_object(store, commands, false, root, path, NULL, given, STATUS_USAGE, options)
                          : status_fail(STATUS_USAGE, "%s must hold one JSON object of options", path);
    json_decref(root);
    return status;
}

status_t options_parse(option_store_t *store, command_bit_t command, int argc, char **argv, options_t *options) {
    /* getopt_long does the reading; `val` is the place in option_table, above the range of characters. */
    enum { FIRST_VALUE = 1000 };
    struct option table[OPTION_TABLE_MAX + 1];
    memset(table, 0, sizeof table);
    int n = 0;
    for (int i = 0; i < n_option_table; i++)
        if (option_table[i].commands & command)
            table[n++] =
                (struct option){.name = option_table[i].name,
                                .has_arg = option_table[i].type == OPTION_FLAG ? no_argument : required_argument,
                                .val = FIRST_VALUE + i};

    options_t parsed = option_defaults(command);
    bool given[OPTION_TABLE_MAX] = {false};
    opterr = 0;
    optind = 1;
    int value;
    while ((value = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (value == ':') return status_fail(STATUS_USAGE, "%s needs a value", argv[optind - 1]);
        if (value == '?')
            return status_fail(STATUS_USAGE, "%s is not an option of galvani %s; see galvani %s --help",
                               argv[optind - 1], argv[0], argv[0]);
        const option_spec_t *spec = &option_table[value - FIRST_VALUE];
        char where[80];
        snprintf(where, sizeof where, "--%s", spec->name);
        if (given[spec - option_table] && spec->type != OPTION_ROUTE)
            return status_fail(STATUS_USAGE, "%s is given twice", where);
        given[spec - option_table] = true;
        TRY(set_option(store, spec, spec->type == OPTION_FLAG ? "on" : optarg, where, STATUS_USAGE, &parsed));
    }
    if (command & (COMMAND_MICROBENCH | COMMAND_INSPECT | COMMAND_TRACE)) {
        parsed.words = (const char *const *)argv + optind;
        parsed.n_words = argc - optind;
    } else if (optind < argc)
        return status_fail(STATUS_USAGE, "\"%s\" is not expected here: options are written --name value", argv[optind]);
    if (parsed.config && !parsed.help) TRY(apply_config_file(store, command, parsed.config, given, &parsed));
    *options = parsed;
    return STATUS_OK;
}

void options_apply(const options_t *options) {
    log_level_t level = LOG_INFO;
    log_level_from_name(options->log_level, &level);
    log_set_level(options->quiet && level > LOG_WARNING ? LOG_WARNING : level);
    watchdog_set_limit((int)options->stall_limit);
}

json_t *options_to_json(command_bit_t command, const options_t *options) {
    json_t *object = json_object();
    for (int i = 0; i < n_option_table; i++) {
        const option_spec_t *spec = &option_table[i];
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
    for (int i = 0; i < n_option_table; i++) {
        const option_spec_t *spec = &option_table[i];
        if (!(spec->commands & command)) continue;
        if (spec->section) fprintf(stream, "\n%s\n", spec->section);
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", spec->name, spec->argument ? " " : "",
                 spec->argument ? spec->argument : "");
        fprintf(stream, "  %-30s %s%s%s\n", left, spec->help, spec->choices ? ": " : "",
                spec->choices ? spec->choices : "");
    }
}

status_t options_run(command_bit_t command, const char *usage, int argc, char **argv,
                     status_t (*run)(options_t *options)) {
    option_store_t *store;
    TRY(option_store_create(&store));
    options_t options;
    status_t status = options_parse(store, command, argc, argv, &options);
    if (status == STATUS_OK && options.help) {
        options_help(stdout, command, usage);
    } else if (status == STATUS_OK) {
        options_apply(&options);
        status = run(&options);
    }
    option_store_destroy(store);
    return status;
}
