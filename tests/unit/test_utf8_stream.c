#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "support/text_golden.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

/* Streams `data` in pushes of `step` bytes; every push must give whole characters. */
static void check_stream(const char *data, size_t bytes, size_t step, const char *expected, size_t expected_bytes) {
    utf8_stream_t stream = {0};
    char *text = malloc(UTF8_STREAM_ROOM(bytes) + UTF8_STREAM_ROOM(0));
    assert_non_null(text);
    size_t used = 0;
    for (size_t i = 0; i < bytes; i += step) {
        size_t n = bytes - i < step ? bytes - i : step;
        char piece[512];
        assert_true(UTF8_STREAM_ROOM(n) <= sizeof piece);
        size_t written = utf8_stream_push(&stream, data + i, n, piece);
        assert_int_equal(piece[written], '\0');
        assert_int_equal(utf8_check(piece, written, "a push", STATUS_INPUT), STATUS_OK);
        memcpy(text + used, piece, written);
        used += written;
    }
    used += utf8_stream_flush(&stream, text + used);
    assert_int_equal(stream.n_held, 0);
    assert_int_equal(used, expected_bytes);
    assert_memory_equal(text, expected, used);
    free(text);
}

/* Python's errors="replace", whatever the cut. */
static void test_against_python(void **state) {
    (void)state;
    json_t *cases = golden_read("utf8.json");
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *entry = json_array_get(cases, i);
        size_t bytes, expected_bytes;
        char *data = golden_bytes(json_object_get(entry, "bytes"), &bytes);
        char *expected = golden_bytes(json_object_get(entry, "text"), &expected_bytes);
        for (size_t step = 1; step <= 5; ++step)
            check_stream(data, bytes, step, expected, expected_bytes);
        free(data);
        free(expected);
    }
    json_decref(cases);
}

/* Text comes as soon as it is whole, and not before. */
static void test_as_soon_as_whole(void **state) {
    (void)state;
    utf8_stream_t stream = {0};
    char text[UTF8_STREAM_ROOM(8)];
    assert_int_equal(utf8_stream_push(&stream, "a\xE4", 2, text), 1);
    assert_string_equal(text, "a");
    assert_int_equal(utf8_stream_push(&stream, "\xB8", 1, text), 0);
    assert_int_equal(utf8_stream_push(&stream, "\xAD", 1, text), 3);
    assert_string_equal(text, "\xE4\xB8\xAD");
    assert_int_equal(utf8_stream_push(&stream, "", 0, text), 0);
    assert_int_equal(utf8_stream_push(&stream, "\xF0\x9F\x8E", 3, text), 0);
    assert_int_equal(utf8_stream_push(&stream, "z", 1, text), 4);
    assert_string_equal(text, "\xEF\xBF\xBDz");
    assert_int_equal(utf8_stream_flush(&stream, text), 0);
}

static void test_check_names_the_offset(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *offset; /* NULL: valid */
    } cases[] = {
        {"plain", 5, NULL},
        {"a\0b", 3, NULL},
        {"\xF4\x8F\xBF\xBF", 4, NULL},
        {"ab\xFF", 3, "byte 0xFF at offset 2"},
        {"ab\xE4\xB8", 4, "byte 0xE4 at offset 2"},
        {"\xC3\xA9\xC0\x80", 4, "byte 0xC0 at offset 2"},
        {"\xED\xA0\x80", 3, "byte 0xED at offset 0"},
        {"\xF4\x90\x80\x80", 4, "byte 0xF4 at offset 0"},
        {"\x80", 1, "byte 0x80 at offset 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        status_clear();
        status_t status = utf8_check(cases[i].text, cases[i].bytes, "the prompt", STATUS_USAGE);
        assert_int_equal(status, cases[i].offset ? STATUS_USAGE : STATUS_OK);
        if (cases[i].offset) assert_non_null(strstr(status_message(), cases[i].offset));
    }
    status_clear();
}

/* Every scalar value survives encode and decode, and no other three or four bytes are taken for one. */
static void test_all_code_points(void **state) {
    (void)state;
    for (int32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
        char text[4];
        int bytes = utf8_encode(code_point, text);
        bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
        status_t status = utf8_check(text, (size_t)bytes, "a character", STATUS_INPUT);
        assert_int_equal(status, is_surrogate ? STATUS_INPUT : STATUS_OK);
        if (is_surrogate) continue;
        int length;
        assert_int_equal(utf8_decode(text, &length), code_point);
        assert_int_equal(length, bytes);
    }
    status_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_python),
        cmocka_unit_test(test_as_soon_as_whole),
        cmocka_unit_test(test_check_names_the_offset),
        cmocka_unit_test(test_all_code_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
