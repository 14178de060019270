#ifndef GALVANI_TEXT_UTF8_H
#define GALVANI_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the character that `lead` starts (1 to 4), or 0 if no character starts with it. */
int utf8_length(unsigned char lead);

/* Whether `byte` may follow the `n` bytes `start` of a character that is not yet whole (Unicode 15, table 3-7: no
 * surrogates, no overlong forms, nothing above U+10FFFF). */
bool utf8_continues(const unsigned char *start, size_t n, unsigned char byte);

/* Fails with `fault` unless the text is UTF-8 throughout; names `where` and the offset of the first byte that is not
 * part of a whole character. NUL is a character like any other. */
status_t utf8_check(const char *text, size_t text_bytes, const char *where, status_t fault);

/* Code point of the character at `text`, which must be whole and valid; `*length` gets its bytes. */
int32_t utf8_decode(const char *text, int *length);

/* Writes a code point (a scalar value) to `text`, which holds 4 bytes; returns the bytes written. */
int utf8_encode(int32_t code_point, char *text);

/* Unicode's White_Space property. */
bool utf8_is_white_space(int32_t code_point);

#ifdef __cplusplus
}
#endif
#endif
