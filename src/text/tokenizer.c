#include "text/tokenizer.h"

#include <limits.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "text/byte_alphabet.h"
#include "text/nfc.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

struct tokenizer {
    tokenizer_parts_t parts;
    int32_t n_tokens;
};

status_t tokenizer_create(const tokenizer_source_t *source, tokenizer_t **tokenizer) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(tokenizer_t), &memory));
    tokenizer_t *created = memory;
    status_t status = tokenizer_file_read(source, &created->parts);
    if (status != STATUS_OK) {
        tokenizer_destroy(created);
        return status;
    }
    const added_tokens_t *added = &created->parts.added;
    created->n_tokens = vocabulary_n_tokens(created->parts.vocabulary);
    if (added->n && added->tokens[added->n - 1].id >= created->n_tokens)
        created->n_tokens = added->tokens[added->n - 1].id + 1;
    *tokenizer = created;
    return STATUS_OK;
}

status_t tokenizer_load(const char *directory, tokenizer_t **tokenizer) {
    status_t status;
    char path[PATH_MAX];
    char *json = NULL, *config = NULL;
    tokenizer_source_t source = {.directory = directory};
    TRY(file_join(directory, "tokenizer.json", path, sizeof path));
    TRY(file_read_all(path, &json, &source.json_bytes));
    source.json = json;
    TRY_GOTO(file_join(directory, "tokenizer_config.json", path, sizeof path), end);
    if (file_exists(path)) TRY_GOTO(file_read_all(path, &config, &source.config_bytes), end);
    source.config = config;
    status = tokenizer_create(&source, tokenizer);
end:
    memory_free(json);
    memory_free(config);
    return status;
}

void tokenizer_destroy(tokenizer_t *tokenizer) {
    if (!tokenizer) return;
    tokenizer_parts_release(&tokenizer->parts);
    memory_free(tokenizer);
}

/* One call of tokenizer_encode. */
typedef struct encoder {
    const tokenizer_parts_t *parts;
    bpe_workspace_t workspace;
    id_list_t list;
} encoder_t;

/* Id of the entry that is this piece of text as a whole, -1 if there is none. */
static status_t find_whole_piece(const vocabulary_t *vocabulary, const char *piece, size_t piece_bytes, int32_t *id) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, piece_bytes, 2, &memory)); /* no byte is spelled with more than two bytes */
    char *spelling = memory;
    size_t n = 0;
    for (size_t i = 0; i < piece_bytes; ++i)
        n += (size_t)utf8_encode(byte_alphabet_spell((uint8_t)piece[i]), spelling + n);
    *id = vocabulary_find(vocabulary, spelling, n);
    memory_free(spelling);
    return STATUS_OK;
}

static status_t encode_piece(void *context, const char *piece, size_t piece_bytes) {
    encoder_t *encoder = context;
    if (encoder->parts->ignore_merges) {
        int32_t id;
        TRY(find_whole_piece(encoder->parts->vocabulary, piece, piece_bytes, &id));
        if (id >= 0) return id_list_push(&encoder->list, id);
    }
    return bpe_encode(encoder->parts->bpe, &encoder->workspace, piece, piece_bytes, &encoder->list);
}

/* Encodes text in its final form: added tokens that are matched in normalised text, and pieces between them. */
static status_t encode_normalized(encoder_t *encoder, const char *text, size_t text_bytes) {
    const tokenizer_parts_t *parts = encoder->parts;
    size_t done = 0;
    added_match_t match;
    while (added_tokens_next(&parts->added, true, text, text_bytes, done, &match)) {
        TRY(pretokenizer_split(parts->pretokenizer, text + done, match.start - done, encode_piece, encoder));
        TRY(id_list_push(&encoder->list, match.token->id));
        done = match.end;
    }
    return pretokenizer_split(parts->pretokenizer, text + done, text_bytes - done, encode_piece, encoder);
}

/* Encodes text that holds no added token of those that are matched in text as given. */
static status_t encode_between(encoder_t *encoder, const char *text, size_t text_bytes) {
    if (!encoder->parts->nfc || nfc_is_ascii(text, text_bytes)) return encode_normalized(encoder, text, text_bytes);
    char *normal;
    size_t normal_bytes;
    TRY(nfc_normalize(text, text_bytes, &normal, &normal_bytes));
    status_t status = encode_normalized(encoder, normal, normal_bytes);
    memory_free(normal);
    return status;
}

static status_t encode_text(encoder_t *encoder, const char *text, size_t text_bytes) {
    size_t done = 0;
    added_match_t match;
    while (added_tokens_next(&encoder->parts->added, false, text, text_bytes, done, &match)) {
        TRY(encode_between(encoder, text + done, match.start - done));
        TRY(id_list_push(&encoder->list, match.token->id));
        done = match.end;
    }
    return encode_between(encoder, text + done, text_bytes - done);
}

status_t tokenizer_encode(const tokenizer_t *tokenizer, const char *text, size_t text_bytes, status_t fault,
                          int32_t **ids, size_t *n_ids) {
    TRY(utf8_check(text, text_bytes, "the text", fault));
    encoder_t encoder = {.parts = &tokenizer->parts};
    status_t status = encode_text(&encoder, text, text_bytes);
    bpe_workspace_release(&encoder.workspace);
    if (status != STATUS_OK) {
        memory_free(encoder.list.ids);
        return status;
    }
    *ids = encoder.list.ids;
    *n_ids = encoder.list.n;
    return STATUS_OK;
}

status_t tokenizer_decode(const tokenizer_t *tokenizer, const int32_t *ids, size_t n_ids, bool skip_special,
                          char **text, size_t *text_bytes) {
    size_t total = 0, n;
    for (size_t i = 0; i < n_ids; ++i) {
        if (skip_special && tokenizer_is_special(tokenizer, ids[i])) continue;
        tokenizer_token_bytes(tokenizer, ids[i], &n);
        total += n;
    }
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, total + 1, 1, &memory));
    char *end = memory;
    for (size_t i = 0; i < n_ids; ++i) {
        if (skip_special && tokenizer_is_special(tokenizer, ids[i])) continue;
        const char *bytes = tokenizer_token_bytes(tokenizer, ids[i], &n);
        if (n) memcpy(end, bytes, n);
        end += n;
    }
    *text = memory;
    *text_bytes = total;
    return STATUS_OK;
}

int32_t tokenizer_n_tokens(const tokenizer_t *tokenizer) { return tokenizer->n_tokens; }

const char *tokenizer_token_bytes(const tokenizer_t *tokenizer, int32_t id, size_t *token_bytes) {
    const added_token_t *added = added_tokens_by_id(&tokenizer->parts.added, id);
    if (!added) return vocabulary_bytes(tokenizer->parts.vocabulary, id, token_bytes);
    *token_bytes = added->content_bytes;
    return added->content;
}

bool tokenizer_is_special(const tokenizer_t *tokenizer, int32_t id) {
    const added_token_t *added = added_tokens_by_id(&tokenizer->parts.added, id);
    return added && added->special;
}

int32_t tokenizer_find(const tokenizer_t *tokenizer, const char *token) {
    const added_tokens_t *added = &tokenizer->parts.added;
    for (size_t i = 0; i < added->n; ++i)
        if (strcmp(added->tokens[i].content, token) == 0) return added->tokens[i].id;
    return vocabulary_find(tokenizer->parts.vocabulary, token, strlen(token));
}
