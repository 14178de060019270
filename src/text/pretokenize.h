#ifndef GALVANI_TEXT_PRETOKENIZE_H
#define GALVANI_TEXT_PRETOKENIZE_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cuts text into the pieces within which BPE merges: each match of a regular expression is a piece, and so is what
 * lies between two matches (`tokenizers`' Split with behavior "Isolated"). */
typedef struct pretokenizer pretokenizer_t;

/* Compiles the expression that tokenizer.json gives. `where` names it in messages. STATUS_INPUT if it is not valid. */
status_t pretokenizer_create(const char *pattern, const char *where, pretokenizer_t **pretokenizer);

void pretokenizer_destroy(pretokenizer_t *pretokenizer); /* NULL is allowed */

/* Takes one piece, which is never empty; a failure ends the cutting. */
typedef status_t (*pretokenize_piece_fn)(void *context, const char *piece, size_t piece_bytes);

/* Calls `take` for each piece in order. `text` must be valid UTF-8. STATUS_INPUT if the expression needs more work than
 * PCRE2's limits allow. */
status_t pretokenizer_split(const pretokenizer_t *pretokenizer, const char *text, size_t text_bytes,
                            pretokenize_piece_fn take, void *context);

#ifdef __cplusplus
}
#endif
#endif
