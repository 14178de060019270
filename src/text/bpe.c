#include "text/bpe.h"

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"

/* One merge rule in the hash table; left < 0 is a free slot. */
typedef struct rule {
    int32_t left, right;
    int32_t rank;
    int32_t merged;
} rule_t;

struct bpe {
    const vocabulary_t *vocabulary;
    rule_t *rules;  /* [n_slots], open addressing by (left, right) */
    size_t n_slots; /* a power of two, at least twice the number of rules */
};

/* A token of the piece under way; linked, so that a merge costs the same wherever it is. */
typedef struct symbol {
    int32_t id;             /* -1: merged into its left neighbour */
    int32_t previous, next; /* -1 at the ends */
} symbol_t;

/* A pair that may be merged. It is stale once either side has changed; `merged` tells. */
typedef struct candidate {
    int32_t rank, left, merged;
} candidate_t;

status_t id_list_push(id_list_t *list, int32_t id) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        void *memory;
        TRY(memory_alloc(MEMORY_OTHER, capacity, sizeof(int32_t), &memory));
        if (list->n) memcpy(memory, list->ids, list->n * sizeof(int32_t));
        memory_free(list->ids);
        list->ids = memory;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return STATUS_OK;
}

/* Slot of the rule for a pair, or the free slot where it would go. */
static size_t find_slot(const bpe_t *bpe, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key = (key ^ key >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    size_t slot = (size_t)(key >> 32) & (bpe->n_slots - 1);
    while (bpe->rules[slot].left >= 0 && (bpe->rules[slot].left != left || bpe->rules[slot].right != right))
        slot = (slot + 1) & (bpe->n_slots - 1);
    return slot;
}

static const rule_t *find_rule(const bpe_t *bpe, int32_t left, int32_t right) {
    const rule_t *rule = &bpe->rules[find_slot(bpe, left, right)];
    return rule->left >= 0 ? rule : NULL;
}

/* The two sides of one entry of the list, which name at most `text_bytes` in all; borrowed. */
static bool read_merge(const json_t *entry, const char **left, size_t *left_bytes, const char **right,
                       size_t *right_bytes) {
    if (json_is_string(entry)) {
        *left = json_string_value(entry);
        const char *space = strchr(*left, ' ');
        if (!space) return false;
        *left_bytes = (size_t)(space - *left);
        *right = space + 1;
        *right_bytes = strlen(*right);
        return *left_bytes && *right_bytes && !strchr(*right, ' ');
    }
    if (json_array_size(entry) != 2) return false;
    const json_t *first = json_array_get(entry, 0), *second = json_array_get(entry, 1);
    if (!json_is_string(first) || !json_is_string(second)) return false;
    *left = json_string_value(first);
    *left_bytes = json_string_length(first);
    *right = json_string_value(second);
    *right_bytes = json_string_length(second);
    return *left_bytes && *right_bytes;
}

static status_t add_rule(bpe_t *bpe, const json_t *entry, size_t rank, const char *where) {
    const char *left, *right;
    size_t left_bytes, right_bytes;
    if (!read_merge(entry, &left, &left_bytes, &right, &right_bytes))
        return status_fail(STATUS_INPUT, "%s: entry %zu is neither \"left right\" nor [\"left\", \"right\"]", where,
                           rank);

    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, left_bytes + right_bytes, 1, &memory));
    char *merged = memory;
    memcpy(merged, left, left_bytes);
    memcpy(merged + left_bytes, right, right_bytes);
    rule_t rule = {
        .left = vocabulary_find(bpe->vocabulary, left, left_bytes),
        .right = vocabulary_find(bpe->vocabulary, right, right_bytes),
        .rank = (int32_t)rank,
        .merged = vocabulary_find(bpe->vocabulary, merged, left_bytes + right_bytes),
    };
    memory_free(memory);
    if (rule.left < 0 || rule.right < 0 || rule.merged < 0)
        return status_fail(STATUS_INPUT, "%s: entry %zu, \"%.*s\" + \"%s\", names a token that the vocabulary lacks",
                           where, rank, (int)left_bytes, left, right);
    /* A pair that is listed twice has its later rank, as in the `tokenizers` library. */
    bpe->rules[find_slot(bpe, rule.left, rule.right)] = rule;
    return STATUS_OK;
}

status_t bpe_create(const json_t *merges, const vocabulary_t *vocabulary, const char *where, bpe_t **bpe) {
    size_t n_merges = json_array_size(merges);
    if (n_merges > INT32_MAX) return status_fail(STATUS_INPUT, "%s has more than 2^31 entries", where);

    status_t status = STATUS_OK;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(bpe_t), &memory));
    bpe_t *created = memory;
    created->vocabulary = vocabulary;
    created->n_slots = 1;
    while (created->n_slots < 2 * n_merges)
        created->n_slots *= 2;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, created->n_slots, sizeof(rule_t), &memory), fail);
    created->rules = memory;
    for (size_t i = 0; i < created->n_slots; ++i)
        created->rules[i].left = -1;
    for (size_t i = 0; i < n_merges; ++i)
        TRY_GOTO(add_rule(created, json_array_get(merges, i), i, where), fail);
    *bpe = created;
    return STATUS_OK;

fail:
    bpe_destroy(created);
    return status;
}

void bpe_destroy(bpe_t *bpe) {
    if (!bpe) return;
    memory_free(bpe->rules);
    memory_free(bpe);
}

void bpe_workspace_release(bpe_workspace_t *workspace) {
    memory_free(workspace->symbols);
    memory_free(workspace->heap);
    *workspace = (bpe_workspace_t){0};
}

static status_t workspace_fit(bpe_workspace_t *workspace, size_t n) {
    if (n <= workspace->capacity) return STATUS_OK;
    size_t capacity = n < 256 ? 256 : n;
    bpe_workspace_release(workspace);
    TRY(memory_alloc(MEMORY_OTHER, capacity, sizeof(symbol_t), &workspace->symbols));
    /* n - 1 pairs at first, and each of at most n - 1 merges takes one off and adds at most two. */
    TRY(memory_alloc(MEMORY_OTHER, 2 * capacity, sizeof(candidate_t), &workspace->heap));
    workspace->capacity = capacity;
    return STATUS_OK;
}

static bool goes_first(candidate_t a, candidate_t b) { return a.rank != b.rank ? a.rank < b.rank : a.left < b.left; }

static void heap_push(candidate_t *heap, size_t *n, candidate_t candidate) {
    size_t i = (*n)++;
    while (i > 0 && goes_first(candidate, heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = candidate;
}

static candidate_t heap_pop(candidate_t *heap, size_t *n) {
    candidate_t first = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && goes_first(heap[child + 1], heap[child])) ++child;
        if (!goes_first(heap[child], last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

/* Offers the pair that begins at symbol `left`, if there is a rule for it. */
static void offer_pair(const bpe_t *bpe, const symbol_t *symbols, int32_t left, candidate_t *heap, size_t *n_heap) {
    if (left < 0 || symbols[left].next < 0) return;
    const rule_t *rule = find_rule(bpe, symbols[left].id, symbols[symbols[left].next].id);
    if (rule) heap_push(heap, n_heap, (candidate_t){.rank = rule->rank, .left = left, .merged = rule->merged});
}

status_t bpe_encode(const bpe_t *bpe, bpe_workspace_t *workspace, const char *piece, size_t piece_bytes,
                    id_list_t *list) {
    if (piece_bytes == 0) return STATUS_OK;
    if (piece_bytes > INT32_MAX) return status_fail(STATUS_INPUT, "a word of the text is longer than 2 GiB");
    TRY(workspace_fit(workspace, piece_bytes));
    symbol_t *symbols = workspace->symbols;
    candidate_t *heap = workspace->heap;
    size_t n_heap = 0;

    int32_t n = (int32_t)piece_bytes;
    for (int32_t i = 0; i < n; ++i) {
        uint8_t byte = (uint8_t)piece[i];
        symbols[i] = (symbol_t){
            .id = vocabulary_byte_id(bpe->vocabulary, byte), .previous = i - 1, .next = i + 1 < n ? i + 1 : -1};
        if (symbols[i].id < 0)
            return status_fail(STATUS_INPUT, "the tokenizer's vocabulary has no token for the byte 0x%02X of the text",
                               byte);
    }
    for (int32_t i = 0; i < n; ++i)
        offer_pair(bpe, symbols, i, heap, &n_heap);

    while (n_heap) {
        candidate_t top = heap_pop(heap, &n_heap);
        symbol_t *left = &symbols[top.left];
        if (left->id < 0 || left->next < 0) continue;
        symbol_t *right = &symbols[left->next];
        const rule_t *rule = find_rule(bpe, left->id, right->id);
        if (!rule || rule->merged != top.merged) continue;
        left->id = top.merged;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbols[left->next].previous = top.left;
        offer_pair(bpe, symbols, left->previous, heap, &n_heap);
        offer_pair(bpe, symbols, top.left, heap, &n_heap);
    }
    for (int32_t i = 0; i >= 0; i = symbols[i].next)
        TRY(id_list_push(list, symbols[i].id));
    return STATUS_OK;
}
