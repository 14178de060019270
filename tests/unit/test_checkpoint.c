#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "support/scratch.h"

#define TENSOR(name, bytes)                                                                                            \
    "\"" name "\": {\"dtype\": \"U8\", \"shape\": [" bytes "], \"data_offsets\": [0, " bytes "]}"

/* Two files and an index, which a test may then change. */
static void write_two_files(const char *index) {
    mkdir(scratch_path("two"), 0777);
    scratch_write_safetensors("two/b.safetensors", "{" TENSOR("x.1", "3") "}", "abc", 3);
    scratch_write_safetensors("two/a.safetensors", "{" TENSOR("x.10", "4") "}", "defg", 4);
    scratch_write_text("two/model.safetensors.index.json", index);
}

static const char good_index[] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\":"
                                 " {\"x.1\": \"b.safetensors\", \"x.10\": \"a.safetensors\"}}";

static void test_index_and_files(void **state) {
    (void)state;
    write_two_files(good_index);
    checkpoint_t *checkpoint;
    assert_int_equal(checkpoint_open(scratch_path("two"), &checkpoint), STATUS_OK);
    size_t n_files, n_tensors;
    const checkpoint_file_t *files = checkpoint_files(checkpoint, &n_files);
    assert_int_equal(n_files, 2);
    assert_string_equal(files[0].name, "a.safetensors");
    assert_int_equal(files[1].n_tensors, 1);
    assert_int_not_equal(files[0].header_xxh3, files[1].header_xxh3);
    const checkpoint_tensor_t *tensors = checkpoint_tensors(checkpoint, &n_tensors);
    assert_int_equal(n_tensors, 2);
    assert_string_equal(tensors[0].info->name, "x.1");
    const checkpoint_tensor_t *tensor = checkpoint_find(checkpoint, "x.10");
    assert_non_null(tensor);
    assert_int_equal(tensor->file, 0);
    char data[3] = "";
    assert_int_equal(checkpoint_read(checkpoint, tensor, 1, 2, data), STATUS_OK);
    assert_string_equal(data, "ef");
    assert_null(checkpoint_find(checkpoint, "x"));
    assert_null(checkpoint_find(checkpoint, "x.100"));
    checkpoint_close(checkpoint);
}

static void test_single_file(void **state) {
    (void)state;
    mkdir(scratch_path("one"), 0777);
    scratch_write_safetensors("one/model.safetensors", "{" TENSOR("x", "3") "}", "abc", 3);
    checkpoint_t *checkpoint;
    assert_int_equal(checkpoint_open(scratch_path("one"), &checkpoint), STATUS_OK);
    char data[4] = "";
    assert_int_equal(checkpoint_read(checkpoint, checkpoint_find(checkpoint, "x"), 0, 3, data), STATUS_OK);
    assert_string_equal(data, "abc");
    checkpoint_close(checkpoint);
}

/* More files than the process may have open. */
static void test_many_files(void **state) {
    (void)state;
    mkdir(scratch_path("many"), 0777);
    static char index[65536];
    int used = snprintf(index, sizeof index, "{\"weight_map\": {");
    for (int i = 0; i < 300; i++) {
        char name[64], header[128];
        snprintf(name, sizeof name, "many/%03d", i);
        snprintf(header, sizeof header, "{\"t%d\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]}}", i);
        char byte = (char)(i % 100);
        scratch_write_safetensors(name, header, &byte, 1);
        used += snprintf(index + used, sizeof index - (size_t)used, "%s\"t%d\": \"%03d\"", i ? ", " : "", i, i);
    }
    snprintf(index + used, sizeof index - (size_t)used, "}}");
    scratch_write_text("many/model.safetensors.index.json", index);
    checkpoint_t *checkpoint;
    assert_int_equal(checkpoint_open(scratch_path("many"), &checkpoint), STATUS_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 300; i++) {
            char name[16], byte;
            snprintf(name, sizeof name, "t%d", i);
            assert_int_equal(checkpoint_read(checkpoint, checkpoint_find(checkpoint, name), 0, 1, &byte), STATUS_OK);
            assert_int_equal(byte, i % 100);
        }
    }
    checkpoint_close(checkpoint);
}

static void expect_refusal(const char *directory, const char *word) {
    checkpoint_t *checkpoint;
    status_clear();
    assert_int_equal(checkpoint_open(scratch_path(directory), &checkpoint), STATUS_INPUT);
    if (!strstr(status_message(), word)) fail_msg("\"%s\" is not in: %s", word, status_message());
    status_clear();
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *index, *word;
    } cases[] = {
        {"", "JSON"},
        {"[]", "not a JSON object"},
        {"{}", "weight_map"},
        {"{\"weight_map\": []}", "weight_map"},
        {"{\"weight_map\": {}}", "no tensor"},
        {"{\"weight_map\": {\"x.1\": 1}}", "x.1"},
        {"{\"weight_map\": {\"x.1\": \"\"}}", "x.1"},
        {"{\"weight_map\": {\"x.1\": \"../two/b.safetensors\"}}", "x.1"},
        {"{\"weight_map\": {\"x.1\": \"/etc/passwd\"}}", "x.1"},
        {"{\"weight_map\": {\"x.1\": \"c.safetensors\"}}", "c.safetensors"},
        {"{\"weight_map\": {\"x.1\": \"b.safetensors\", \"x.1\": \"b.safetensors\"}}", "duplicate"},
        {"{\"weight_map\": {\"x.1\": \"a.safetensors\", \"x.10\": \"b.safetensors\"}}", "does not hold"},
        {"{\"weight_map\": {\"x.1\": \"b.safetensors\", \"x.2\": \"b.safetensors\"}}", "x.2"},
        {"{\"weight_map\": {\"x.10\": \"a.safetensors\", \"x.2\": \"b.safetensors\"}}", "x.2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_two_files(cases[i].index);
        expect_refusal("two", cases[i].word);
    }
    write_two_files("{\"weight_map\": {\"x.1\": \"b.safetensors\"}}");
    scratch_write_safetensors("two/b.safetensors",
                              "{" TENSOR("x.1", "3") ", \"y\": {\"dtype\": \"U8\", \"shape\": [0],"
                                                     " \"data_offsets\": [3, 3]}}",
                              "abc", 3);
    expect_refusal("two", "tensor y, which the index does not list");
    write_two_files(good_index);
    scratch_write_safetensors("two/a.safetensors", "{" TENSOR("x.1", "3") "}", "abc", 3);
    expect_refusal("two", "twice");
    write_two_files(good_index);
    unlink(scratch_path("two/model.safetensors.index.json"));
    expect_refusal("two", "neither");
    expect_refusal("nowhere", "nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_and_files),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
