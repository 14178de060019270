#include "text/tokenizer_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "text/nfc.h"

enum { WHERE_BYTES = 4200 };

/* The "type" of a component such as the decoder; "null" if it is absent. */
static const char *component_type(const json_t *component) {
    const char *type = json_string_value(json_object_get(component, "type"));
    return type ? type : "null";
}

static status_t refuse(const char *where, const char *what, const char *found, const char *supported) {
    return status_fail(STATUS_INPUT, "%s: %s \"%s\" is not supported, only %s", where, what, found, supported);
}

/* A boolean that may be absent. */
static status_t get_flag(const json_t *object, const char *key, const char *where, bool absent, bool *value) {
    const json_t *member = json_object_get(object, key);
    *value = absent;
    if (!member || json_is_null(member)) return STATUS_OK;
    if (!json_is_boolean(member)) return status_fail(STATUS_INPUT, "%s: \"%s\" must be true or false", where, key);
    *value = json_is_true(member);
    return STATUS_OK;
}

/* Fails if the flag has the other value. */
static status_t require_flag(const json_t *object, const char *key, const char *where, bool absent, bool required) {
    bool value;
    TRY(get_flag(object, key, where, absent, &value));
    if (value != required)
        return status_fail(STATUS_INPUT, "%s: \"%s\": %s is not supported", where, key, value ? "true" : "false");
    return STATUS_OK;
}

static status_t read_normalizer(const json_t *root, const char *where, bool *nfc) {
    const json_t *normalizer = json_object_get(root, "normalizer");
    const char *type = component_type(normalizer);
    *nfc = false;
    if (!normalizer || json_is_null(normalizer)) return STATUS_OK;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(normalizer, "normalizers");
        if (json_is_array(list) && json_array_size(list) == 0) return STATUS_OK;
        if (json_array_size(list) > 1) return refuse(where, "a normalizer of several steps,", type, "NFC or none");
        type = component_type(json_array_get(list, 0));
    }
    if (strcmp(type, "NFC") != 0) return refuse(where, "normalizer", type, "NFC or none");
    *nfc = true;
    return STATUS_OK;
}

static status_t read_pretokenizer(const json_t *root, const char *where, pretokenizer_t **pretokenizer) {
    static const char supported[] = "Sequence of Split (a regular expression) and ByteLevel";
    const json_t *sequence = json_object_get(root, "pre_tokenizer");
    const json_t *steps = json_object_get(sequence, "pretokenizers");
    if (strcmp(component_type(sequence), "Sequence") != 0)
        return refuse(where, "pre_tokenizer", component_type(sequence), supported);
    const json_t *split = json_array_get(steps, 0), *byte_level = json_array_get(steps, 1);
    if (json_array_size(steps) != 2 || strcmp(component_type(split), "Split") != 0 ||
        strcmp(component_type(byte_level), "ByteLevel") != 0)
        return refuse(where, "this pre_tokenizer", "Sequence", supported);

    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(where, "Split behavior", behavior ? behavior : "null", "Isolated");
    TRY(require_flag(split, "invert", where, false, false));
    TRY(require_flag(byte_level, "add_prefix_space", where, true, false));
    TRY(require_flag(byte_level, "use_regex", where, true, false));
    const char *pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    if (!pattern) return status_fail(STATUS_INPUT, "%s: the pattern of Split must be a \"Regex\"", where);
    return pretokenizer_create(pattern, where, pretokenizer);
}

/* The parts that may only be there in the form that adds nothing to the text. */
static status_t check_passive_parts(const json_t *root, const char *where) {
    static const char *const keys[] = {"post_processor", "decoder"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        const json_t *component = json_object_get(root, keys[i]);
        if (component && !json_is_null(component) && strcmp(component_type(component), "ByteLevel") != 0)
            return refuse(where, keys[i], component_type(component), "ByteLevel or none");
    }
    return STATUS_OK;
}

static status_t read_model(const json_t *root, const char *where, tokenizer_parts_t *parts) {
    const json_t *model = json_object_get(root, "model");
    const char *type = component_type(model);
    /* Files of before 2020 have no type. */
    if (!json_is_object(model) || (json_object_get(model, "type") && strcmp(type, "BPE") != 0))
        return refuse(where, "model", type, "BPE");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof affixes / sizeof affixes[0]; ++i) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (affix && !json_is_null(affix) && json_string_length(affix) != 0)
            return status_fail(STATUS_INPUT, "%s: a model with \"%s\" is not supported", where, affixes[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return status_fail(STATUS_INPUT, "%s: \"dropout\" is set, which makes ids random", where);
    TRY(require_flag(model, "byte_fallback", where, false, false));
    TRY(get_flag(model, "ignore_merges", where, false, &parts->ignore_merges));

    json_reader_t reader = {.object = model, .where = where, .fault = STATUS_INPUT};
    const json_t *vocab, *merges;
    TRY(json_get_object(&reader, "vocab", &vocab));
    TRY(json_get_array(&reader, "merges", &merges));
    char part[WHERE_BYTES + 16];
    snprintf(part, sizeof part, "%s: vocab", where);
    TRY(vocabulary_create(vocab, part, &parts->vocabulary));
    snprintf(part, sizeof part, "%s: merges", where);
    return bpe_create(merges, parts->vocabulary, part, &parts->bpe);
}

/* Fills `token` from the object that both files use for it; `content` is borrowed. */
static status_t read_added_token(const json_t *object, int64_t id, const char *where, const tokenizer_parts_t *parts,
                                 added_token_t *token) {
    const json_t *content = json_object_get(object, "content");
    if (json_string_length(content) == 0)
        return status_fail(STATUS_INPUT, "%s: the added token %" PRId64 " has no content", where, id);
    if (id < 0 || id >= VOCABULARY_MAX_TOKENS)
        return status_fail(STATUS_INPUT, "%s: the id %" PRId64 " of \"%s\" must lie between 0 and %d", where, id,
                           json_string_value(content), VOCABULARY_MAX_TOKENS - 1);
    *token = (added_token_t){
        .id = (int32_t)id,
        .content = (char *)json_string_value(content),
        .content_bytes = json_string_length(content),
    };
    bool single_word;
    TRY(get_flag(object, "special", where, false, &token->special));
    TRY(get_flag(object, "normalized", where, !token->special, &token->normalized));
    TRY(get_flag(object, "lstrip", where, false, &token->lstrip));
    TRY(get_flag(object, "rstrip", where, false, &token->rstrip));
    TRY(get_flag(object, "single_word", where, false, &single_word));
    if (single_word)
        return status_fail(STATUS_INPUT, "%s: \"single_word\" of the added token \"%s\" is not supported", where,
                           token->content);

    if (token->normalized && parts->nfc) {
        char *normal;
        size_t normal_bytes;
        TRY(nfc_normalize(token->content, token->content_bytes, &normal, &normal_bytes));
        bool is_normal = normal_bytes == token->content_bytes && memcmp(normal, token->content, normal_bytes) == 0;
        memory_free(normal);
        if (!is_normal)
            return status_fail(STATUS_INPUT, "%s: the added token \"%s\" is \"normalized\" but not in NFC", where,
                               token->content);
    }
    int32_t entry = vocabulary_find(parts->vocabulary, token->content, token->content_bytes);
    size_t n_bytes;
    if (entry != token->id && (entry >= 0 || vocabulary_bytes(parts->vocabulary, token->id, &n_bytes)))
        return status_fail(STATUS_INPUT, "%s: the added token \"%s\" with id %" PRId32 " contradicts the vocabulary",
                           where, token->content, token->id);
    return STATUS_OK;
}

static status_t read_added_tokens(const json_t *root, const char *where, tokenizer_parts_t *parts) {
    const json_t *list = json_object_get(root, "added_tokens");
    if (!list || json_is_null(list)) return STATUS_OK;
    if (!json_is_array(list)) return status_fail(STATUS_INPUT, "%s: \"added_tokens\" must be a list", where);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        json_reader_t reader = {.object = json_array_get(list, i), .where = where, .fault = STATUS_INPUT};
        int64_t id;
        added_token_t token;
        TRY(json_get_int(&reader, "id", 0, VOCABULARY_MAX_TOKENS - 1, &id));
        TRY(read_added_token(reader.object, id, where, parts, &token));
        TRY(added_tokens_add(&parts->added, &token, where));
    }
    return STATUS_OK;
}

/* Of tokenizer_config.json only the added tokens count: it may list some that tokenizer.json lacks. */
static status_t read_config_tokens(const json_t *root, const char *where, tokenizer_parts_t *parts) {
    const json_t *decoder = json_object_get(root, "added_tokens_decoder");
    if (!decoder || json_is_null(decoder)) return STATUS_OK;
    if (!json_is_object(decoder))
        return status_fail(STATUS_INPUT, "%s: \"added_tokens_decoder\" must be an object", where);
    const char *key;
    const json_t *object;
    json_object_foreach((json_t *)decoder, key, object) {
        char *end;
        long id = strtol(key, &end, 10);
        if (end == key || *end)
            return status_fail(STATUS_INPUT, "%s: \"%s\" in added_tokens_decoder is not an id", where, key);
        added_token_t token;
        TRY(read_added_token(object, id, where, parts, &token));
        TRY(added_tokens_add(&parts->added, &token, where));
    }
    return STATUS_OK;
}

static status_t read_main_file(const tokenizer_source_t *source, tokenizer_parts_t *parts) {
    char where[WHERE_BYTES];
    TRY(file_join(source->directory, "tokenizer.json", where, sizeof where));
    json_t *root;
    TRY(json_read_text(source->json, source->json_bytes, where, &root));
    status_t status;
    TRY_GOTO(read_normalizer(root, where, &parts->nfc), end);
    TRY_GOTO(read_pretokenizer(root, where, &parts->pretokenizer), end);
    TRY_GOTO(check_passive_parts(root, where), end);
    TRY_GOTO(read_model(root, where, parts), end);
    TRY_GOTO(read_added_tokens(root, where, parts), end);
end:
    json_decref(root);
    return status;
}

static status_t read_config_file(const tokenizer_source_t *source, tokenizer_parts_t *parts) {
    char where[WHERE_BYTES];
    TRY(file_join(source->directory, "tokenizer_config.json", where, sizeof where));
    json_t *root;
    TRY(json_read_text(source->config, source->config_bytes, where, &root));
    status_t status = read_config_tokens(root, where, parts);
    json_decref(root);
    return status;
}

status_t tokenizer_file_read(const tokenizer_source_t *source, tokenizer_parts_t *parts) {
    TRY(read_main_file(source, parts));
    if (source->config) TRY(read_config_file(source, parts));
    return added_tokens_index(&parts->added, source->directory);
}

void tokenizer_parts_release(tokenizer_parts_t *parts) {
    added_tokens_release(&parts->added);
    pretokenizer_destroy(parts->pretokenizer);
    bpe_destroy(parts->bpe);
    vocabulary_destroy(parts->vocabulary);
    *parts = (tokenizer_parts_t){0};
}
