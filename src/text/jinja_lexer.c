#include "text/jinja_lexer.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "text/utf8.h"

static bool is_name_start(char c) { return isalpha((unsigned char)c) || c == '_'; }
static bool is_name_part(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Reads one token at `text`, which is not white space. Returns where it ends, NULL for a string without an end. */
static const char *read_token(const char *text, jinja_token_t *token) {
    const char *end = text + 1;
    token->kind = JINJA_OTHER;
    token->start = text;
    if (*text == '\'' || *text == '"') {
        while (*end && *end != *text)
            end += end[0] == '\\' && end[1] ? 2 : 1;
        if (!*end) return NULL;
        token->kind = JINJA_STRING;
        token->start = text + 1;
        token->bytes = (size_t)(end - token->start);
        return end + 1;
    }
    if (is_name_start(*text)) {
        token->kind = JINJA_NAME;
        while (is_name_part(*end))
            ++end;
    } else if (strchr("=!<>", *text) && *end == '=') {
        ++end;
    }
    token->bytes = (size_t)(end - text);
    return end;
}

/* Reads tokens up to `close` ("%}" or "}}"); `*n` counts those that were kept. Returns where the block ends, NULL if it
 * does not. Braces of dictionaries nest, so that their ends are not taken for the block's. */
static const char *read_block(const char *text, const char *close, jinja_token_t *tokens, size_t *n) {
    int depth = 0;
    *n = 0;
    for (;;) {
        while (isspace((unsigned char)*text))
            ++text;
        const char *end = text + ((*text == '-' || *text == '+') && strncmp(text + 1, close, 2) == 0);
        if (depth == 0 && strncmp(end, close, 2) == 0) return end + 2;
        if (!*text) return NULL;
        if (*text == '{') ++depth;
        if (*text == '}') --depth;
        jinja_token_t token;
        text = read_token(text, &token);
        if (!text) return NULL;
        if (*n < JINJA_MAX_TOKENS) tokens[*n] = token;
        ++*n;
    }
}

status_t jinja_next_statement(const char **next, const char *where, jinja_statement_t *statement, bool *found) {
    const char *text = *next;
    *found = false;
    while ((text = strchr(text, '{')) != NULL) {
        const char *end = NULL;
        switch (text[1]) {
        case '#':
            end = strstr(text + 2, "#}");
            if (end) end += 2;
            break;
        case '{':
            end = read_block(text + 2, "}}", statement->tokens, &statement->n);
            break;
        case '%':
            end = read_block(text + 2 + (text[2] == '-' || text[2] == '+'), "%}", statement->tokens, &statement->n);
            *found = true;
            break;
        default:
            end = text + 1;
        }
        if (!end) return status_fail(STATUS_INPUT, "%s is not a valid template: \"%.20s\" has no end", where, text);
        if (*found && statement->n > JINJA_MAX_TOKENS)
            return status_fail(STATUS_INPUT, "%s: the statement \"%.40s\" is too long to be read", where, text);
        text = end;
        if (*found) break;
    }
    if (*found) *next = text;
    return STATUS_OK;
}

bool jinja_is(const jinja_statement_t *statement, size_t i, const char *text) {
    if (i >= statement->n) return false;
    const jinja_token_t *token = &statement->tokens[i];
    return token->kind != JINJA_STRING && token->bytes == strlen(text) && memcmp(token->start, text, token->bytes) == 0;
}

bool jinja_is_string(const jinja_statement_t *statement, size_t i) {
    return i < statement->n && statement->tokens[i].kind == JINJA_STRING;
}

/* Reads up to `n_digits` digits of a base; returns how many there were. */
static size_t read_digits(const char *text, const char *end, size_t n_digits, int base, int32_t *value) {
    size_t n = 0;
    *value = 0;
    for (; n < n_digits && text + n < end; ++n) {
        char c = text[n];
        int digit = isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? (c | 0x20) - 'a' + 10 : 99;
        if (digit >= base) break;
        if (*value < 0x110000) *value = *value * base + digit;
    }
    return n;
}

/* Appends the character of an escape; `text` is behind the backslash. Returns where the escape ends, or NULL. */
static const char *append_escape(const char *text, const char *end, char *value, size_t *n) {
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"; /* pairs of letter and character */
    for (size_t i = 0; i + 1 < sizeof simple; i += 2)
        if (*text == simple[i]) {
            value[(*n)++] = simple[i + 1];
            return text + 1;
        }
    if (*text == '\n') return text + 1; /* a line that goes on */
    int32_t code_point;
    size_t n_digits = *text == 'x' ? 2 : *text == 'u' ? 4 : *text == 'U' ? 8 : 0;
    if (n_digits) {
        if (read_digits(text + 1, end, n_digits, 16, &code_point) != n_digits) return NULL;
        text += 1 + n_digits;
    } else {
        n_digits = read_digits(text, end, 3, 8, &code_point);
        if (n_digits == 0) { /* not an escape: Python keeps the backslash */
            value[(*n)++] = '\\';
            return text;
        }
        text += n_digits;
    }
    bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    if (code_point == 0 || code_point > 0x10FFFF || is_surrogate) return NULL;
    *n += (size_t)utf8_encode(code_point, value + *n);
    return text;
}

bool jinja_append_string(const jinja_token_t *token, char *value, size_t *n) {
    const char *text = token->start, *end = token->start + token->bytes;
    while (text < end) {
        if (*text == '\\' && text + 1 < end) {
            text = append_escape(text + 1, end, value, n);
            if (!text) return false;
        } else {
            value[(*n)++] = *text++;
        }
    }
    value[*n] = '\0';
    return true;
}
