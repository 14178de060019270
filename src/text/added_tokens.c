#include "text/added_tokens.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/utf8.h"

/* Where the token with this id is in the list, or would go. */
static size_t find_place(const added_tokens_t *added, int32_t id) {
    size_t low = 0, high = added->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (added->tokens[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const added_token_t *added_tokens_by_id(const added_tokens_t *added, int32_t id) {
    size_t place = find_place(added, id);
    return place < added->n && added->tokens[place].id == id ? &added->tokens[place] : NULL;
}

status_t added_tokens_add(added_tokens_t *added, const added_token_t *token, const char *where) {
    const added_token_t *known = added_tokens_by_id(added, token->id);
    if (known && strcmp(known->content, token->content) == 0) return STATUS_OK;
    if (known)
        return status_fail(STATUS_INPUT, "%s: the id %" PRId32 " belongs to both \"%s\" and \"%s\"", where, token->id,
                           known->content, token->content);
    void *memory;
    if (added->n == added->capacity) {
        size_t capacity = added->capacity ? 2 * added->capacity : 64;
        TRY(memory_alloc(MEMORY_OTHER, capacity, sizeof(added_token_t), &memory));
        if (added->n) memcpy(memory, added->tokens, added->n * sizeof(added_token_t));
        memory_free(added->tokens);
        added->tokens = memory;
        added->capacity = capacity;
    }
    TRY(memory_alloc(MEMORY_OTHER, token->content_bytes + 1, 1, &memory));
    memcpy(memory, token->content, token->content_bytes);

    added_token_t *place = added->tokens + find_place(added, token->id);
    memmove(place + 1, place, (size_t)(added->tokens + added->n - place) * sizeof *place);
    *place = *token;
    place->content = memory;
    ++added->n;
    return STATUS_OK;
}

/* By first byte, then the longer first, then by text, so that equal texts are neighbours. */
static int compare_contents(const void *a, const void *b) {
    const added_token_t *left = *(const added_token_t *const *)a, *right = *(const added_token_t *const *)b;
    int first = (unsigned char)left->content[0] - (unsigned char)right->content[0];
    if (first) return first;
    if (left->content_bytes != right->content_bytes) return left->content_bytes > right->content_bytes ? -1 : 1;
    return memcmp(left->content, right->content, left->content_bytes);
}

status_t added_tokens_index(added_tokens_t *added, const char *where) {
    if (added->n == 0) return STATUS_OK;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, added->n, sizeof *added->order, &memory));
    added->order = memory;
    for (size_t i = 0; i < added->n; ++i)
        added->order[i] = &added->tokens[i];
    qsort(added->order, added->n, sizeof *added->order, compare_contents);
    for (size_t i = 1; i < added->n; ++i)
        if (compare_contents(&added->order[i - 1], &added->order[i]) == 0)
            return status_fail(STATUS_INPUT, "%s: \"%s\" has two ids, %" PRId32 " and %" PRId32, where,
                               added->order[i]->content, added->order[i - 1]->id, added->order[i]->id);
    size_t i = 0;
    for (int byte = 0; byte <= 256; ++byte) {
        while (i < added->n && (unsigned char)added->order[i]->content[0] < byte)
            ++i;
        added->first[byte] = i;
    }
    return STATUS_OK;
}

void added_tokens_release(added_tokens_t *added) {
    for (size_t i = 0; i < added->n; ++i)
        memory_free(added->tokens[i].content);
    memory_free(added->tokens);
    memory_free(added->order);
    *added = (added_tokens_t){0};
}

/* The longest token that stands at `start`, NULL if none does. */
static const added_token_t *token_at(const added_tokens_t *added, bool normalized, const char *text, size_t text_bytes,
                                     size_t start) {
    unsigned char byte = (unsigned char)text[start];
    for (size_t i = added->first[byte]; i < added->first[byte + 1]; ++i) {
        const added_token_t *token = added->order[i];
        if (token->normalized == normalized && token->content_bytes <= text_bytes - start &&
            memcmp(token->content, text + start, token->content_bytes) == 0)
            return token;
    }
    return NULL;
}

/* Start of the white space that ends at `end`, not before `from`. */
static size_t white_space_left(const char *text, size_t from, size_t end) {
    while (end > from) {
        size_t start = end - 1;
        while (start > from && ((unsigned char)text[start] & 0xC0) == 0x80)
            --start;
        int length;
        if (!utf8_is_white_space(utf8_decode(text + start, &length))) break;
        end = start;
    }
    return end;
}

/* End of the white space that starts at `start`. */
static size_t white_space_right(const char *text, size_t text_bytes, size_t start) {
    while (start < text_bytes) {
        int length;
        if (!utf8_is_white_space(utf8_decode(text + start, &length))) break;
        start += (size_t)length;
    }
    return start;
}

bool added_tokens_next(const added_tokens_t *added, bool normalized, const char *text, size_t text_bytes, size_t from,
                       added_match_t *match) {
    if (added->n == 0) return false;
    for (size_t start = from; start < text_bytes; ++start) {
        const added_token_t *token = token_at(added, normalized, text, text_bytes, start);
        if (!token) continue;
        size_t end = start + token->content_bytes;
        match->token = token;
        match->start = token->lstrip ? white_space_left(text, from, start) : start;
        match->end = token->rstrip ? white_space_right(text, text_bytes, end) : end;
        return true;
    }
    return false;
}
