#ifndef GALVANI_CLI_OPTION_TABLE_H
#define GALVANI_CLI_OPTION_TABLE_H

/* The one table of options, in the order of --help. options.c reads the command line, --config files and request lines
 * by it. */

#include <stddef.h>

#include "cli/options.h"

#ifdef __cplusplus
extern "C" {
#endif

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

enum { OPTION_TABLE_MAX = 128 };
extern const option_spec_t option_table[];
extern const int n_option_table; /* at most OPTION_TABLE_MAX */

/* The options of a subcommand when none is given. */
options_t option_defaults(command_bit_t command);

#ifdef __cplusplus
}
#endif
#endif
