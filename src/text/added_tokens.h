#ifndef GALVANI_TEXT_ADDED_TOKENS_H
#define GALVANI_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A token that is matched as a whole in the text, before BPE sees it. */
typedef struct added_token {
    int32_t id;
    char *content; /* UTF-8, not empty */
    size_t content_bytes;
    bool special;        /* steers the model; not shown as text */
    bool normalized;     /* matched in the normalised text rather than in the text as given */
    bool lstrip, rstrip; /* takes the white space on its left, its right, with it */
} added_token_t;

/* Zero-initialise; release with added_tokens_release. */
typedef struct added_tokens {
    added_token_t *tokens; /* [n] by increasing id */
    size_t n, capacity;
    const added_token_t **order; /* [n] by first byte, then the longer first; borrowed from `tokens` */
    size_t first[257];           /* order[first[b]] to order[first[b + 1] - 1] begin with byte b */
} added_tokens_t;

/* Copies a token into the list. One that is there already, with the same id and content, stays as it is. STATUS_INPUT
 * if the id belongs to another content. `where` names the file in messages. */
status_t added_tokens_add(added_tokens_t *added, const added_token_t *token, const char *where);

/* Makes the complete list searchable by content. STATUS_INPUT if two tokens have the same content. */
status_t added_tokens_index(added_tokens_t *added, const char *where);

void added_tokens_release(added_tokens_t *added);

/* The token with this id, NULL if there is none. */
const added_token_t *added_tokens_by_id(const added_tokens_t *added, int32_t id);

typedef struct added_match {
    const added_token_t *token;
    size_t start, end; /* bytes of the text that the token takes, white space included */
} added_match_t;

/* Finds the leftmost match at or after `from`, of several the longest, among tokens with this `normalized` flag.
 * Returns false if there is none. `text` is valid UTF-8. */
bool added_tokens_next(const added_tokens_t *added, bool normalized, const char *text, size_t text_bytes, size_t from,
                       added_match_t *match);

#ifdef __cplusplus
}
#endif
#endif
