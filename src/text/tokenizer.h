#ifndef GALVANI_TEXT_TOKENIZER_H
#define GALVANI_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Byte-level BPE as the `tokenizers` library defines it: added tokens are cut out of the text, the rest is normalised
 * (NFC, if the file says so), split by the file's own regular expression, and each piece merged pair by pair. Nothing
 * here is collective. A loaded tokenizer is read-only, so threads may share it. */
typedef struct tokenizer tokenizer_t;

/* Reads DIRECTORY/tokenizer.json and the added tokens that only DIRECTORY/tokenizer_config.json lists (that file may
 * be absent). STATUS_INPUT names what is missing, malformed or of a kind that this program does not follow. The caller
 * owns `*tokenizer` (tokenizer_destroy). */
status_t tokenizer_load(const char *directory, tokenizer_t **tokenizer);

/* The two files in memory. `config` may be NULL; `directory` is for messages. */
typedef struct tokenizer_source {
    const char *directory;
    const char *json; /* tokenizer.json */
    size_t json_bytes;
    const char *config; /* tokenizer_config.json */
    size_t config_bytes;
} tokenizer_source_t;

/* tokenizer_load without the reading of files. Nothing of `source` is kept. */
status_t tokenizer_create(const tokenizer_source_t *source, tokenizer_t **tokenizer);

void tokenizer_destroy(tokenizer_t *tokenizer); /* NULL is allowed */

/* Ids of UTF-8 text (a NUL is a character). Nothing is added in front or behind. Added tokens that stand in the text
 * become their ids. Text that is not UTF-8 fails with `fault` and the offset of the first bad byte. Empty text gives
 * no ids. The caller frees `*ids` with memory_free. */
status_t tokenizer_encode(const tokenizer_t *tokenizer, const char *text, size_t text_bytes, status_t fault,
                          int32_t **ids, size_t *n_ids);

/* Bytes of ids, one token behind the other; not always whole UTF-8 characters (see text/utf8_stream.h). With
 * `skip_special`, special added tokens give nothing. Ids that no token has give nothing. `*text` has a NUL behind its
 * last byte and is freed with memory_free. */
status_t tokenizer_decode(const tokenizer_t *tokenizer, const int32_t *ids, size_t n_ids, bool skip_special,
                          char **text, size_t *text_bytes);

/* One more than the highest id that a token has. Rows of the embedding from here on are padding and must never be
 * sampled. */
int32_t tokenizer_n_tokens(const tokenizer_t *tokenizer);

/* Bytes of one token, borrowed; NULL with 0 bytes for an id that no token has. */
const char *tokenizer_token_bytes(const tokenizer_t *tokenizer, int32_t id, size_t *token_bytes);

/* Whether `id` is an added token that is marked special (it steers the model and is not shown as text). */
bool tokenizer_is_special(const tokenizer_t *tokenizer, int32_t id);

/* Id of an added token, or of a vocabulary entry in the file's own spelling (a space is written U+0120); -1 if there
 * is none. */
int32_t tokenizer_find(const tokenizer_t *tokenizer, const char *token);

#ifdef __cplusplus
}
#endif
#endif
