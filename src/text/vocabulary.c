#include "text/vocabulary.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

/* Where an entry's spelling and bytes lie in the pools; a spelling is never empty, so length 0 is "no entry". */
typedef struct entry {
    uint32_t spelling, spelling_bytes;
    uint32_t bytes, n_bytes;
} entry_t;

struct vocabulary {
    int32_t n_tokens;
    entry_t *entries;    /* [n_tokens] */
    char *spelling_pool; /* all spellings, one behind the other */
    char *byte_pool;     /* what they stand for, likewise */
    int32_t *slots;      /* [n_slots] hash table of ids by spelling, open addressing, -1 is free */
    size_t n_slots;      /* a power of two, at least twice the number of entries */
    int32_t byte_ids[256];
};

/* Slot that holds the spelling, or the free slot where it would go. */
static size_t find_slot(const vocabulary_t *vocabulary, const char *spelling, size_t spelling_bytes) {
    size_t slot = hash_xxh3(spelling, spelling_bytes) & (vocabulary->n_slots - 1);
    for (;; slot = (slot + 1) & (vocabulary->n_slots - 1)) {
        int32_t id = vocabulary->slots[slot];
        if (id < 0) return slot;
        const entry_t *entry = &vocabulary->entries[id];
        if (entry->spelling_bytes == spelling_bytes &&
            memcmp(vocabulary->spelling_pool + entry->spelling, spelling, spelling_bytes) == 0)
            return slot;
    }
}

/* Writes what a spelling stands for to `bytes`, which holds `spelling_bytes`; returns how many bytes that are. */
static size_t read_spelling(const char *spelling, size_t spelling_bytes, char *bytes) {
    size_t n = 0;
    for (size_t i = 0; i < spelling_bytes;) {
        int length;
        int byte = byte_alphabet_read(utf8_decode(spelling + i, &length));
        if (byte < 0) {
            memcpy(bytes, spelling, spelling_bytes);
            return spelling_bytes;
        }
        bytes[n++] = (char)byte;
        i += (size_t)length;
    }
    return n;
}

/* Checks the ids and sums up what the tables need. */
static status_t measure(const json_t *vocab, const char *where, int32_t *n_tokens, size_t *pool_bytes) {
    const char *spelling;
    const json_t *value;
    *n_tokens = 0;
    *pool_bytes = 0;
    json_object_foreach((json_t *)vocab, spelling, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= VOCABULARY_MAX_TOKENS)
            return status_fail(STATUS_INPUT, "%s: the id of \"%s\" must be a whole number from 0 to %d", where,
                               spelling, VOCABULARY_MAX_TOKENS - 1);
        if (spelling[0] == '\0') return status_fail(STATUS_INPUT, "%s: an entry is empty", where);
        if (id >= *n_tokens) *n_tokens = (int32_t)id + 1;
        *pool_bytes += strlen(spelling);
    }
    if (*n_tokens == 0) return status_fail(STATUS_INPUT, "%s is empty", where);
    if (*pool_bytes > UINT32_MAX) return status_fail(STATUS_INPUT, "%s has more than 4 GiB of text", where);
    return STATUS_OK;
}

static status_t add_entries(vocabulary_t *vocabulary, const json_t *vocab, const char *where) {
    const char *spelling;
    const json_t *value;
    uint32_t spelling_used = 0, bytes_used = 0;
    json_object_foreach((json_t *)vocab, spelling, value) {
        int32_t id = (int32_t)json_integer_value(value);
        entry_t *entry = &vocabulary->entries[id];
        if (entry->spelling_bytes)
            return status_fail(STATUS_INPUT, "%s: the id %" PRId32 " belongs to both \"%.*s\" and \"%s\"", where, id,
                               (int)entry->spelling_bytes, vocabulary->spelling_pool + entry->spelling, spelling);
        size_t spelling_bytes = strlen(spelling);
        size_t slot = find_slot(vocabulary, spelling, spelling_bytes);
        memcpy(vocabulary->spelling_pool + spelling_used, spelling, spelling_bytes);
        entry->spelling = spelling_used;
        entry->spelling_bytes = (uint32_t)spelling_bytes;
        entry->bytes = bytes_used;
        entry->n_bytes = (uint32_t)read_spelling(spelling, spelling_bytes, vocabulary->byte_pool + bytes_used);
        spelling_used += entry->spelling_bytes;
        bytes_used += entry->n_bytes;
        vocabulary->slots[slot] = id;
    }
    return STATUS_OK;
}

status_t vocabulary_create(const json_t *vocab, const char *where, vocabulary_t **vocabulary) {
    int32_t n_tokens;
    size_t pool_bytes;
    TRY(measure(vocab, where, &n_tokens, &pool_bytes));

    status_t status = STATUS_OK;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(vocabulary_t), &memory));
    vocabulary_t *created = memory;
    created->n_tokens = n_tokens;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, (size_t)n_tokens, sizeof(entry_t), &memory), fail);
    created->entries = memory;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, pool_bytes, 1, &memory), fail);
    created->spelling_pool = memory;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, pool_bytes, 1, &memory), fail);
    created->byte_pool = memory;
    created->n_slots = 1;
    while (created->n_slots < 2 * json_object_size(vocab))
        created->n_slots *= 2;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, created->n_slots, sizeof(int32_t), &memory), fail);
    created->slots = memory;
    for (size_t i = 0; i < created->n_slots; ++i)
        created->slots[i] = -1;
    TRY_GOTO(add_entries(created, vocab, where), fail);

    for (int byte = 0; byte < 256; ++byte) {
        char spelling[4];
        int spelling_bytes = utf8_encode(byte_alphabet_spell((uint8_t)byte), spelling);
        created->byte_ids[byte] = vocabulary_find(created, spelling, (size_t)spelling_bytes);
    }
    *vocabulary = created;
    return STATUS_OK;

fail:
    vocabulary_destroy(created);
    return status;
}

void vocabulary_destroy(vocabulary_t *vocabulary) {
    if (!vocabulary) return;
    memory_free(vocabulary->entries);
    memory_free(vocabulary->spelling_pool);
    memory_free(vocabulary->byte_pool);
    memory_free(vocabulary->slots);
    memory_free(vocabulary);
}

int32_t vocabulary_n_tokens(const vocabulary_t *vocabulary) { return vocabulary->n_tokens; }

int32_t vocabulary_find(const vocabulary_t *vocabulary, const char *spelling, size_t spelling_bytes) {
    return vocabulary->slots[find_slot(vocabulary, spelling, spelling_bytes)];
}

int32_t vocabulary_byte_id(const vocabulary_t *vocabulary, uint8_t byte) { return vocabulary->byte_ids[byte]; }

const char *vocabulary_bytes(const vocabulary_t *vocabulary, int32_t id, size_t *n_bytes) {
    *n_bytes = 0;
    if (id < 0 || id >= vocabulary->n_tokens) return NULL;
    const entry_t *entry = &vocabulary->entries[id];
    if (entry->spelling_bytes == 0) return NULL;
    *n_bytes = entry->n_bytes;
    return vocabulary->byte_pool + entry->bytes;
}
