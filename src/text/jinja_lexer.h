#ifndef GALVANI_TEXT_JINJA_LEXER_H
#define GALVANI_TEXT_JINJA_LEXER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cuts the statements, {% ... %}, of a Jinja template into tokens. Text, comments and {{ output }} are passed over. */

typedef enum jinja_kind { JINJA_NAME, JINJA_STRING, JINJA_OTHER } jinja_kind_t;

typedef struct jinja_token {
    jinja_kind_t kind;
    const char *start; /* in the template; for a string, what lies between its quotes */
    size_t bytes;
} jinja_token_t;

enum { JINJA_MAX_TOKENS = 256 };

typedef struct jinja_statement {
    jinja_token_t tokens[JINJA_MAX_TOKENS];
    size_t n;
} jinja_statement_t;

/* Reads the next statement at or after `*next`, and moves `*next` behind it. `*found` is false at the end of the
 * template. A statement of more than JINJA_MAX_TOKENS tokens, or one that does not end, is STATUS_INPUT. */
status_t jinja_next_statement(const char **next, const char *where, jinja_statement_t *statement, bool *found);

/* Whether the token is there (`i` in range), is no string, and reads `text`. */
bool jinja_is(const jinja_statement_t *statement, size_t i, const char *text);

/* Whether the token is there and is a string literal. */
bool jinja_is_string(const jinja_statement_t *statement, size_t i);

/* Appends the value of a string literal, escapes resolved as Jinja (that is, Python) does, to `value`, which has room
 * for the token's bytes and a NUL. Returns false for an escape that names no character. */
bool jinja_append_string(const jinja_token_t *token, char *value, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
