#ifndef GALVANI_TEXT_BPE_H
#define GALVANI_TEXT_BPE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/vocabulary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A growing list of ids. Zero-initialise; free `ids` with memory_free. */
typedef struct id_list {
    int32_t *ids;
    size_t n, capacity;
} id_list_t;

status_t id_list_push(id_list_t *list, int32_t id);

/* The merge rules: which two neighbours become one token, and which pair goes first (lowest rank, then leftmost). */
typedef struct bpe bpe_t;

/* From the "merges" list of tokenizer.json, whose entries are "left right" or ["left", "right"]; the rank is the place
 * in the list. STATUS_INPUT if an entry is malformed or names a token that the vocabulary lacks. The vocabulary is
 * borrowed and must outlive the result. `where` names the list in messages. */
status_t bpe_create(const json_t *merges, const vocabulary_t *vocabulary, const char *where, bpe_t **bpe);

void bpe_destroy(bpe_t *bpe); /* NULL is allowed */

/* Scratch memory of bpe_encode, kept from piece to piece. Zero-initialise; one per thread. */
typedef struct bpe_workspace {
    void *symbols, *heap;
    size_t capacity; /* longest piece, in bytes, that fits */
} bpe_workspace_t;

void bpe_workspace_release(bpe_workspace_t *workspace);

/* Appends the ids of one piece of text. Takes O(n log n) for n bytes. STATUS_INPUT if the vocabulary lacks one of the
 * bytes. */
status_t bpe_encode(const bpe_t *bpe, bpe_workspace_t *workspace, const char *piece, size_t piece_bytes,
                    id_list_t *list);

#ifdef __cplusplus
}
#endif
#endif
