#ifndef GALVANI_TEXT_VOCABULARY_H
#define GALVANI_TEXT_VOCABULARY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ids above this are refused: a table by id must not be as large as one wrong number in a file. */
enum { VOCABULARY_MAX_TOKENS = 1 << 22 };

/* The entries of a byte-level vocabulary: id, spelling (text/byte_alphabet.h) and the bytes that it stands for. */
typedef struct vocabulary vocabulary_t;

/* From the "vocab" object of tokenizer.json (spelling -> id). `where` names it in messages. STATUS_INPUT if an id is
 * out of range or given twice. */
status_t vocabulary_create(const json_t *vocab, const char *where, vocabulary_t **vocabulary);

void vocabulary_destroy(vocabulary_t *vocabulary); /* NULL is allowed */

/* One more than the highest id. */
int32_t vocabulary_n_tokens(const vocabulary_t *vocabulary);

/* Id of a spelling, -1 if there is none. */
int32_t vocabulary_find(const vocabulary_t *vocabulary, const char *spelling, size_t spelling_bytes);

/* Id of the entry that is one byte alone, -1 if there is none. */
int32_t vocabulary_byte_id(const vocabulary_t *vocabulary, uint8_t byte);

/* What an entry stands for; an entry that is not spelled in the byte alphabet stands for its own UTF-8. NULL for an id
 * that no entry has. Borrowed. */
const char *vocabulary_bytes(const vocabulary_t *vocabulary, int32_t id, size_t *n_bytes);

#ifdef __cplusplus
}
#endif
#endif
