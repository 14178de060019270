#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "support/scratch.h"

/* Parses a header in front of `data_bytes` bytes of data. */
static status_t parse(const char *text, uint64_t data_bytes, safetensors_header_t *header) {
    status_clear();
    return safetensors_parse(text, strlen(text), 8 + strlen(text) + data_bytes, "file", header);
}

static void test_tensors_by_offset(void **state) {
    (void)state;
    const char *text = "{\"__metadata__\": {\"format\": \"pt\"},"
                       " \"b\": {\"dtype\": \"BF16\", \"shape\": [3, 2], \"data_offsets\": [9, 21]},"
                       " \"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [1, 5]},"
                       " \"none\": {\"dtype\": \"I64\", \"shape\": [0, 4], \"data_offsets\": [5, 5]},"
                       " \"odd\": {\"dtype\": \"F8_E5M2\", \"shape\": [7], \"data_offsets\": [21, 28]}}";
    safetensors_header_t header;
    assert_int_equal(parse(text, 30, &header), STATUS_OK);
    assert_int_equal(header.n_tensors, 4);
    static const char *const names[] = {"a", "none", "b", "odd"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(header.tensors[i].name, names[i]);
    uint64_t data_start = 8 + strlen(text);
    assert_int_equal(header.tensors[0].n_dims, 0);
    assert_int_equal(header.tensors[0].offset, data_start + 1);
    assert_int_equal(header.tensors[0].bytes, 4);
    assert_int_equal(header.tensors[2].dtype, DTYPE_BF16);
    assert_int_equal(header.tensors[2].shape[0], 3);
    assert_int_equal(header.tensors[2].offset, data_start + 9);
    assert_int_equal(header.tensors[3].dtype, DTYPE_N);
    safetensors_free(&header);
}

#define ONE(dtype, shape, offsets)                                                                                     \
    "{\"x\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}}"

/* Each against 16 bytes of data; the message must hold the word. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "JSON"},
        {"[1]", "not a JSON object"},
        {"{\"x\": 3}", "not an object"},
        {"{\"x\": {}, \"x\": {}}", "duplicate"},
        {"{\"x\": {\"shape\": [], \"data_offsets\": [0, 4]}}", "dtype"},
        {ONE("4", "[]", "[0, 4]"), "dtype"},
        {ONE("\"F32\"", "3", "[0, 4]"), "shape"},
        {ONE("\"F32\"", "[1.0]", "[0, 4]"), "shape"},
        {ONE("\"F32\"", "[-1]", "[0, 4]"), "not negative"},
        {ONE("\"F32\"", "[1, 1, 1, 1, 1, 1, 1]", "[0, 4]"), "7 dimensions"},
        {ONE("\"F32\"", "[4294967296, 4294967296]", "[0, 4]"), "64 bits"},
        {ONE("\"F32\"", "[4611686018427387904]", "[0, 0]"), "bytes long"},
        {ONE("\"F32\"", "[1]", "[0]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0, 4, 8]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0, \"4\"]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[4, 0]"), "not a range"},
        {ONE("\"F32\"", "[1]", "[-4, 0]"), "not a range"},
        {ONE("\"F32\"", "[1]", "[13, 17]"), "truncated"},
        {ONE("\"F32\"", "[1]", "[9223372036854775800, 9223372036854775804]"), "truncated"},
        {ONE("\"F32\"", "[2]", "[0, 4]"), "bytes long"},
        {ONE("\"F8_E5M2\"", "[2]", "[0, 17]"), "truncated"},
        {"{\"x\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]},"
         " \"y\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [3, 7]}}",
         "overlap"},
        {"{\"x\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]},"
         " \"y\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}}",
         "overlap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        safetensors_header_t header;
        assert_int_equal(parse(cases[i].text, 16, &header), STATUS_INPUT);
        if (!strstr(status_message(), cases[i].word)) fail_msg("%s: %s", cases[i].text, status_message());
    }
    status_clear();
}

static void test_file(void **state) {
    (void)state;
    safetensors_header_t header;
    scratch_write_safetensors("good", ONE("\"U8\"", "[5]", "[0, 5]"), "abcde", 5);
    assert_int_equal(safetensors_read(scratch_path("good"), &header), STATUS_OK);
    assert_int_equal(header.n_tensors, 1);
    assert_int_equal(header.file_bytes, header.tensors[0].offset + 5);
    safetensors_free(&header);
    scratch_write_safetensors("short", ONE("\"U8\"", "[5]", "[0, 5]"), "abcd", 4);
    assert_int_equal(safetensors_read(scratch_path("short"), &header), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "truncated"));
    status_clear();
}

static void test_files_that_are_none(void **state) {
    (void)state;
    safetensors_header_t header;
    scratch_write("empty", "", 0);
    scratch_write("seven", "\0\0\0\0\0\0\0", 7);
    scratch_write("no_header", "\2\0\0\0\0\0\0\0", 8);
    scratch_write("cut_header", "\5\0\0\0\0\0\0\0{}  ", 12);
    scratch_write("huge_header", "\377\377\377\377\377\377\377\377{}", 10);
    static const char *const names[] = {"empty", "seven", "no_header", "cut_header", "huge_header", "absent", "."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(safetensors_read(scratch_path(names[i]), &header), STATUS_INPUT);
        assert_non_null(strstr(status_message(), names[i]));
        status_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_by_offset),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_files_that_are_none),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
