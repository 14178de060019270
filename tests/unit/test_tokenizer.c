#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/status.h"
#include "support/text_golden.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

static tokenizer_t *load_golden(void) {
    tokenizer_t *tokenizer;
    if (tokenizer_load(TEXT_GOLDEN, &tokenizer) != STATUS_OK) fail_msg("%s", status_message());
    return tokenizer;
}

/* From a JSON value instead of a file. */
static status_t create_from(const json_t *root, tokenizer_t **tokenizer) {
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    tokenizer_source_t source = {.directory = "memory", .json = text, .json_bytes = strlen(text)};
    status_t status = tokenizer_create(&source, tokenizer);
    free(text);
    return status;
}

static void check_ids(const tokenizer_t *tokenizer, const char *name, const char *text, size_t text_bytes,
                      const json_t *expected) {
    int32_t *ids;
    size_t n_ids;
    if (tokenizer_encode(tokenizer, text, text_bytes, STATUS_INPUT, &ids, &n_ids) != STATUS_OK)
        fail_msg("%s: %s", name, status_message());
    for (size_t i = 0; i < n_ids && i < json_array_size(expected); ++i)
        if (ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: id %zu is %d, not %d", name, i, ids[i], (int)json_integer_value(json_array_get(expected, i)));
    if (n_ids != json_array_size(expected)) fail_msg("%s: %zu ids, not %zu", name, n_ids, json_array_size(expected));
    memory_free(ids);
}

/* Decodes and streams ids; compares with hex, or with `otherwise` where that is absent. */
static void check_text(const tokenizer_t *tokenizer, const char *name, const json_t *ids, bool skip_special,
                       const json_t *hex, char **otherwise, size_t *otherwise_bytes) {
    if (hex) {
        free(*otherwise);
        *otherwise = golden_bytes(hex, otherwise_bytes);
    }
    size_t n_ids = json_array_size(ids), n_bytes;
    int32_t *list = malloc((n_ids + 1) * sizeof *list);
    assert_non_null(list);
    for (size_t i = 0; i < n_ids; ++i)
        list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    char *bytes;
    assert_int_equal(tokenizer_decode(tokenizer, list, n_ids, skip_special, &bytes, &n_bytes), STATUS_OK);
    free(list);
    char *text = malloc(UTF8_STREAM_ROOM(n_bytes) + UTF8_STREAM_ROOM(0));
    assert_non_null(text);
    utf8_stream_t stream = {0};
    size_t used = utf8_stream_push(&stream, bytes, n_bytes, text);
    used += utf8_stream_flush(&stream, text + used);
    if (used != *otherwise_bytes || memcmp(text, *otherwise, used) != 0)
        fail_msg("%s: decodes to \"%s\", not \"%s\"", name, text, *otherwise);
    free(text);
    memory_free(bytes);
}

static void check_decoding(const tokenizer_t *tokenizer, const char *name, const json_t *entry, char *text,
                           size_t text_bytes) {
    const json_t *ids = json_object_get(entry, "ids");
    check_text(tokenizer, name, ids, false, json_object_get(entry, "decoded"), &text, &text_bytes);
    check_text(tokenizer, name, ids, true, json_object_get(entry, "decoded_without_special"), &text, &text_bytes);
    free(text);
}

static void check_encodings(const tokenizer_t *tokenizer) {
    json_t *root = golden_read("encode.json");
    assert_true(json_object_size(root) > 200);
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        size_t text_bytes;
        char *text = golden_bytes(json_object_get(entry, "text"), &text_bytes);
        check_ids(tokenizer, name, text, text_bytes, json_object_get(entry, "ids"));
        check_decoding(tokenizer, name, entry, text, text_bytes);
    }
    json_decref(root);
}

static void test_against_tokenizers(void **state) {
    (void)state;
    tokenizer_t *tokenizer = load_golden();
    check_encodings(tokenizer);
    tokenizer_destroy(tokenizer);
}

/* The pieces that an expected list of lengths still has to come. */
typedef struct pieces {
    const char *name;
    const json_t *lengths;
    size_t n;
} pieces_t;

static status_t take_piece(void *context, const char *piece, size_t piece_bytes) {
    pieces_t *pieces = context;
    (void)piece;
    if (piece_bytes != (size_t)json_integer_value(json_array_get(pieces->lengths, pieces->n)))
        fail_msg("%s: piece %zu has %zu bytes", pieces->name, pieces->n, piece_bytes);
    ++pieces->n;
    return STATUS_OK;
}

/* The cuts alone; ids show only those that a merge would cross. */
static void test_pieces_against_tokenizers(void **state) {
    (void)state;
    json_t *file = golden_read("tokenizer.json"), *texts = golden_read("encode.json");
    const json_t *steps = json_object_get(json_object_get(file, "pre_tokenizer"), "pretokenizers");
    const json_t *pattern = json_object_get(json_object_get(json_array_get(steps, 0), "pattern"), "Regex");
    pretokenizer_t *pretokenizer;
    assert_int_equal(pretokenizer_create(json_string_value(pattern), "golden", &pretokenizer), STATUS_OK);
    const char *name;
    json_t *entry;
    json_object_foreach(texts, name, entry) {
        size_t text_bytes;
        char *text = golden_bytes(json_object_get(entry, "text"), &text_bytes);
        pieces_t pieces = {.name = name, .lengths = json_object_get(entry, "pieces")};
        assert_int_equal(pretokenizer_split(pretokenizer, text, text_bytes, take_piece, &pieces), STATUS_OK);
        assert_int_equal(pieces.n, json_array_size(pieces.lengths));
        free(text);
    }
    pretokenizer_destroy(pretokenizer);
    json_decref(texts);
    json_decref(file);
}

static void test_decode_any_ids(void **state) {
    (void)state;
    tokenizer_t *tokenizer = load_golden();
    json_t *root = golden_read("decode.json");
    for (size_t i = 0; i < json_array_size(root); ++i)
        check_decoding(tokenizer, "decode.json", json_array_get(root, i), NULL, 0);
    json_decref(root);
    tokenizer_destroy(tokenizer);
}

/* Merges written as "left right" give the same ids as pairs do. */
static void test_merges_as_strings(void **state) {
    (void)state;
    json_t *root = golden_read("tokenizer.json");
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    assert_true(json_array_size(merges) > 500);
    for (size_t i = 0; i < json_array_size(merges); ++i) {
        const json_t *pair = json_array_get(merges, i);
        json_t *joined = json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                      json_string_value(json_array_get(pair, 1)));
        json_array_set_new(merges, i, joined);
    }
    char *json = json_dumps(root, 0);
    char *config;
    size_t config_bytes;
    assert_int_equal(file_read_all(TEXT_GOLDEN "/tokenizer_config.json", &config, &config_bytes), STATUS_OK);
    tokenizer_source_t source = {.directory = "memory",
                                 .json = json,
                                 .json_bytes = strlen(json),
                                 .config = config,
                                 .config_bytes = config_bytes};
    tokenizer_t *tokenizer;
    assert_int_equal(tokenizer_create(&source, &tokenizer), STATUS_OK);
    check_encodings(tokenizer);
    tokenizer_destroy(tokenizer);
    memory_free(config);
    free(json);
    json_decref(root);
}

static void test_ids_and_tokens(void **state) {
    (void)state;
    tokenizer_t *tokenizer = load_golden();
    int32_t last = tokenizer_find(tokenizer, "<|audio_pad|>"); /* in tokenizer_config.json alone, the highest id */
    assert_true(last > 0);
    assert_int_equal(tokenizer_n_tokens(tokenizer), last + 1);
    assert_true(tokenizer_is_special(tokenizer, last));
    assert_true(tokenizer_is_special(tokenizer, tokenizer_find(tokenizer, "<|im_end|>")));
    assert_false(tokenizer_is_special(tokenizer, tokenizer_find(tokenizer, "<think>")));
    assert_int_equal(tokenizer_find(tokenizer, "no such token"), -1);
    assert_int_equal(tokenizer_find(tokenizer, ""), -1);
    assert_true(tokenizer_find(tokenizer, "\xC4\xA0") >= 0); /* U+0120 spells the space */

    size_t n_bytes = 99;
    assert_null(tokenizer_token_bytes(tokenizer, last + 1, &n_bytes));
    assert_int_equal(n_bytes, 0);
    assert_null(tokenizer_token_bytes(tokenizer, -1, &n_bytes));
    assert_null(tokenizer_token_bytes(tokenizer, INT32_MAX, &n_bytes));
    const char *space = tokenizer_token_bytes(tokenizer, tokenizer_find(tokenizer, "\xC4\xA0"), &n_bytes);
    assert_int_equal(n_bytes, 1);
    assert_int_equal(space[0], ' ');

    /* Padding ids decode to nothing. */
    const int32_t ids[] = {last + 1, tokenizer_find(tokenizer, "<think>"), -5, INT32_MAX};
    char *text;
    assert_int_equal(tokenizer_decode(tokenizer, ids, 4, false, &text, &n_bytes), STATUS_OK);
    assert_string_equal(text, "<think>");
    memory_free(text);
    tokenizer_destroy(tokenizer);
}

static void test_invalid_utf8(void **state) {
    (void)state;
    tokenizer_t *tokenizer = load_golden();
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(tokenizer_encode(tokenizer, "ab\xC3(", 4, STATUS_USAGE, &ids, &n_ids), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "0xC3 at offset 2"));
    status_clear();
    assert_int_equal(tokenizer_encode(tokenizer, "\xED\xB0\x80", 3, STATUS_INPUT, &ids, &n_ids), STATUS_INPUT);
    status_clear();
    tokenizer_destroy(tokenizer);
}

static uint32_t random_below(uint64_t *seed, uint32_t limit) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % limit;
}

/* Decoding what was encoded gives the NFC of the text. */
static void test_round_trip(void **state) {
    (void)state;
    static const int32_t blocks[][2] = {
        {0, 0x7F},        {0x20, 0x7E},       {0x300, 0x36F},     {0xC0, 0x24F},    {0x590, 0x6FF},    {0x900, 0xDFF},
        {0xE00, 0xE7F},   {0x1100, 0x11FF},   {0x1E00, 0x206F},   {0x3040, 0x30FF}, {0x4E00, 0x9FFF},  {0xAC00, 0xD7A3},
        {0xF900, 0xFFFF}, {0x1F000, 0x1FAFF}, {0x2F800, 0x2FA1F}, {0, 0xD7FF},      {0xE000, 0x10FFFF}};
    tokenizer_t *tokenizer = load_golden();
    uint64_t seed = 7;
    for (int trial = 0; trial < 3000; ++trial) {
        char text[512];
        size_t n = 0;
        const int32_t *block = blocks[random_below(&seed, sizeof blocks / sizeof blocks[0])];
        uint32_t n_characters = random_below(&seed, 100);
        for (uint32_t i = 0; i < n_characters; ++i) {
            if (random_below(&seed, 8) == 0) block = blocks[random_below(&seed, sizeof blocks / sizeof blocks[0])];
            n += (size_t)utf8_encode(block[0] + (int32_t)random_below(&seed, (uint32_t)(block[1] - block[0] + 1)),
                                     text + n);
        }
        char *normal, *decoded;
        size_t normal_bytes, decoded_bytes, n_ids;
        int32_t *ids;
        assert_int_equal(nfc_normalize(text, n, &normal, &normal_bytes), STATUS_OK);
        assert_int_equal(tokenizer_encode(tokenizer, text, n, STATUS_INPUT, &ids, &n_ids), STATUS_OK);
        assert_int_equal(tokenizer_decode(tokenizer, ids, n_ids, false, &decoded, &decoded_bytes), STATUS_OK);
        assert_int_equal(decoded_bytes, normal_bytes);
        assert_memory_equal(decoded, normal, normal_bytes);
        memory_free(normal);
        memory_free(ids);
        memory_free(decoded);
    }
    tokenizer_destroy(tokenizer);
}

/* A megabyte without a place to cut it must not take time that grows with its square. */
static void test_long_words(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const char *const patterns[] = {"a", "weather", " ", "\n", "=", "\xE0\xB9\x89", "1", "<|im_end|>"};
    tokenizer_t *tokenizer = load_golden();
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; ++i) {
        size_t bytes = strlen(patterns[i]), total = N / bytes * bytes, n_ids;
        for (size_t k = 0; k < total; ++k)
            text[k] = patterns[i][k % bytes];
        int32_t *ids;
        int64_t start = clock_now_ns();
        assert_int_equal(tokenizer_encode(tokenizer, text, total, STATUS_INPUT, &ids, &n_ids), STATUS_OK);
        double seconds = (double)(clock_now_ns() - start) * 1e-9;
        if (seconds > 20.0) fail_msg("\"%s\" takes %.1f s a megabyte", patterns[i], seconds);
        memory_free(ids);
    }
    free(text);
    tokenizer_destroy(tokenizer);
}

/* The smallest whole file: four letters, two merges, one added token. */
static const char small[] =
    "{\"added_tokens\": [{\"id\": 7, \"content\": \"<e>\", \"special\": true}], \"normalizer\": null,"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
    "\"\\\\s+\"},"
    " \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
    "\"use_regex\": false}]},"
    "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\","
    "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"\xC4\xA0\": 3, \"ab\": 4, \"abc\": 5}, \"merges\": [\"a b\", [\"ab\", "
    "\"c\"]]}}";

static json_t *small_root(void) {
    json_t *root;
    if (json_read_text(small, strlen(small), "small", &root) != STATUS_OK) fail_msg("%s", status_message());
    return root;
}

static void test_small_file(void **state) {
    (void)state;
    json_t *root = small_root();
    tokenizer_t *tokenizer;
    assert_int_equal(create_from(root, &tokenizer), STATUS_OK);
    json_t *expected = json_pack("[i,i,i,i,i,i]", 5, 3, 4, 7, 0, 0);
    check_ids(tokenizer, "small", "abc ab<e>aa", 11, expected);
    json_decref(expected);
    assert_int_equal(tokenizer_n_tokens(tokenizer), 8);
    assert_null(tokenizer_token_bytes(tokenizer, 6, &(size_t){0})); /* a hole */

    int32_t *ids;
    size_t n_ids;
    assert_int_equal(tokenizer_encode(tokenizer, "ab d", 4, STATUS_USAGE, &ids, &n_ids), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "0x64"));
    status_clear();
    tokenizer_destroy(tokenizer);
    json_decref(root);
}

/* ignore_merges takes a piece whole that no merge leads to. */
static void test_ignore_merges(void **state) {
    (void)state;
    json_t *root = small_root(), *model = json_object_get(root, "model");
    json_object_set_new(json_object_get(model, "vocab"), "cab", json_integer(6));
    for (int ignore = 0; ignore < 2; ++ignore) {
        json_object_set_new(model, "ignore_merges", json_boolean(ignore));
        tokenizer_t *tokenizer;
        assert_int_equal(create_from(root, &tokenizer), STATUS_OK);
        json_t *expected = ignore ? json_pack("[i,i,i]", 6, 3, 5) : json_pack("[i,i,i,i]", 2, 4, 3, 5);
        check_ids(tokenizer, "cab abc", "cab abc", 7, expected);
        json_decref(expected);
        tokenizer_destroy(tokenizer);
    }
    json_decref(root);
}

/* What is not followed is refused, by name. Each case sets the member at `path` to `value`. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } cases[] = {
        {"normalizer", "{\"type\": \"Lowercase\"}", "Lowercase"},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Strip\"}]}",
         "several"},
        {"pre_tokenizer", "null", "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "Metaspace"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", "Regex"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(\"", "regular expression"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "Removed"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", "invert"},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
        {"pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "TemplateProcessing"},
        {"decoder", "{\"type\": \"WordPiece\"}", "WordPiece"},
        {"model", "null", "model"},
        {"model/type", "\"Unigram\"", "Unigram"},
        {"model/byte_fallback", "true", "byte_fallback"},
        {"model/byte_fallback", "1", "true or false"},
        {"model/dropout", "0.1", "dropout"},
        {"model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model/vocab", "[]", "an object"},
        {"model/vocab", "{}", "empty"},
        {"model/vocab/a", "-1", "whole number"},
        {"model/vocab/a", "1", "belongs to both"},
        {"model/vocab/a", "4000000000", "whole number"},
        {"model/vocab/a", "\"0\"", "whole number"},
        {"model/merges", "{}", "a list"},
        {"model/merges/0", "\"ab\"", "neither"},
        {"model/merges/0", "\"a b c\"", "neither"},
        {"model/merges/0", "[\"a\"]", "neither"},
        {"model/merges/0", "[\"a\", 1]", "neither"},
        {"model/merges/0", "[\"a\", \"c\"]", "lacks"},
        {"model/merges/0", "[\"\", \"a\"]", "neither"},
        {"added_tokens", "{}", "a list"},
        {"added_tokens/0", "3", "missing"},
        {"added_tokens/0/id", "-1", "id"},
        {"added_tokens/0/id", "2", "contradicts"},
        {"added_tokens/0/content", "\"\"", "no content"},
        {"added_tokens/0/content", "\"ab\"", "contradicts"},
        {"added_tokens/0/single_word", "true", "single_word"},
        {"added_tokens/0/special", "\"yes\"", "true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        json_t *root = small_root(), *place = root;
        char path[128];
        snprintf(path, sizeof path, "%s", cases[i].path);
        json_t *value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        for (char *key = strtok(path, "/"), *next; key; key = next) {
            next = strtok(NULL, "/");
            if (json_is_array(place)) {
                if (next)
                    place = json_array_get(place, (size_t)atoi(key));
                else
                    json_array_set_new(place, (size_t)atoi(key), value);
            } else if (next) {
                place = json_object_get(place, key);
            } else {
                json_object_set_new(place, key, value);
            }
        }
        tokenizer_t *tokenizer = NULL;
        status_clear();
        if (create_from(root, &tokenizer) != STATUS_INPUT) fail_msg("%s: %s was taken", cases[i].path, cases[i].value);
        assert_null(tokenizer);
        if (!strstr(status_message(), cases[i].message)) fail_msg("%s: \"%s\"", cases[i].path, status_message());
        json_decref(root);
    }
    status_clear();
}

static void check_config(const char *config, const char *message) {
    tokenizer_source_t source = {.directory = "memory",
                                 .json = small,
                                 .json_bytes = strlen(small),
                                 .config = config,
                                 .config_bytes = strlen(config)};
    tokenizer_t *tokenizer = NULL;
    status_clear();
    status_t status = tokenizer_create(&source, &tokenizer);
    assert_int_equal(status, message ? STATUS_INPUT : STATUS_OK);
    if (message && !strstr(status_message(), message)) fail_msg("\"%s\"", status_message());
    status_clear();
    tokenizer_destroy(tokenizer);
}

static void test_config_file(void **state) {
    (void)state;
    check_config("{}", NULL);
    check_config("{\"added_tokens_decoder\": {\"7\": {\"content\": \"<e>\"}, \"9\": {\"content\": \"<f>\"}}}", NULL);
    check_config("{\"added_tokens_decoder\": {\"7\": {\"content\": \"<f>\"}}}", "belongs to both");
    check_config("{\"added_tokens_decoder\": {\"8\": {\"content\": \"<e>\"}}}", "two ids");
    check_config("{\"added_tokens_decoder\": {\"x\": {\"content\": \"<f>\"}}}", "not an id");
    check_config("{\"added_tokens_decoder\": {\"99999999999\": {\"content\": \"<f>\"}}}", "must lie between");
    check_config("{\"added_tokens_decoder\": []}", "an object");
    check_config("{", "not valid JSON");
}

static void test_missing_file(void **state) {
    (void)state;
    tokenizer_t *tokenizer;
    assert_int_equal(tokenizer_load("tests/golden", &tokenizer), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "tests/golden/tokenizer.json"));
    status_clear();
}

/* Nothing is left allocated by anything above. */
static int check_no_memory_held(void **state) {
    (void)state;
    assert_int_equal(memory_bytes(MEMORY_OTHER), 0);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_tokenizers), cmocka_unit_test(test_pieces_against_tokenizers),
        cmocka_unit_test(test_decode_any_ids),     cmocka_unit_test(test_merges_as_strings),
        cmocka_unit_test(test_ids_and_tokens),     cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_round_trip),         cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_small_file),         cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_refusals),           cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, check_no_memory_held);
}
