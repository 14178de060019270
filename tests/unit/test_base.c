/* Status, memory, hashes, JSON and files of the base room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

static int clear_status(void **state) {
    (void)state;
    status_clear();
    return 0;
}

static void the_first_message_is_kept(void **state) {
    (void)state;
    assert_string_equal(status_message(), "");
    assert_int_equal(status_fail(STATUS_INPUT, "first %d", 1), STATUS_INPUT);
    assert_int_equal(status_fail(STATUS_MEMORY, "second"), STATUS_MEMORY);
    assert_string_equal(status_message(), "first 1");
    status_add_place("a.json: line 3");
    assert_string_equal(status_message(), "a.json: line 3: first 1");
    status_add_place("a.json: line 3");
    assert_string_equal(status_message(), "a.json: line 3: first 1");
    status_clear();
    assert_string_equal(status_message(), "");
}

static void memory_is_zeroed_aligned_and_counted(void **state) {
    (void)state;
    size_t before = memory_bytes(MEMORY_WEIGHTS);
    void *pointer;
    assert_int_equal(memory_alloc(MEMORY_WEIGHTS, 1000, 3, &pointer), STATUS_OK);
    assert_int_equal((uintptr_t)pointer % 64, 0);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(((unsigned char *)pointer)[i], 0);
    assert_int_equal(memory_bytes(MEMORY_WEIGHTS), before + 3000);
    assert_true(memory_peak_bytes() >= 3000);
    memory_free(pointer);
    assert_int_equal(memory_bytes(MEMORY_WEIGHTS), before);
    assert_int_equal(memory_alloc(MEMORY_OTHER, 0, 8, &pointer), STATUS_OK);
    memory_free(pointer);
    memory_free(NULL);
}

static void too_much_memory_is_refused_with_its_size(void **state) {
    (void)state;
    void *pointer = state;
    assert_int_equal(memory_alloc(MEMORY_KV_CACHE, (size_t)1 << 50, 4, &pointer), STATUS_MEMORY);
    assert_ptr_equal(pointer, state);
    assert_non_null(strstr(status_message(), "kv_cache: 4294967296.0 MiB needed"));
    status_clear();
    assert_int_equal(memory_alloc(MEMORY_KV_CACHE, (size_t)1 << 62, 8, &pointer), STATUS_MEMORY);
    assert_ptr_equal(pointer, state);
}

static void available_memory_is_plausible(void **state) {
    (void)state;
    assert_in_range(memory_available_bytes(), 1 << 20, (size_t)1 << 50);
    assert_in_range(memory_peak_rss_bytes(), 1 << 16, (size_t)1 << 40);
}

static void hashes_are_the_published_ones(void **state) {
    (void)state;
    char text[HASH_SHA256_TEXT_BYTES];
    assert_int_equal(hash_sha256_text("abc", 3, text), STATUS_OK);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(hash_sha256_text("", 0, text), STATUS_OK);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    char digest[HASH_XXH3_TEXT_BYTES];
    hash_xxh3_text(hash_xxh3("", 0), digest); /* XXH3's own test vector for no input */
    assert_string_equal(digest, "2d06800538d394c2");
}

static void a_hash_in_pieces_is_the_hash(void **state) {
    (void)state;
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + 1);
    for (size_t cut = 0; cut <= sizeof data; cut += 37) {
        hash_xxh3_t *hash;
        assert_int_equal(hash_xxh3_create(&hash), STATUS_OK);
        hash_xxh3_update(hash, data, cut);
        hash_xxh3_update(hash, data + cut, sizeof data - cut);
        assert_true(hash_xxh3_value(hash) == hash_xxh3(data, sizeof data));
        hash_xxh3_destroy(hash);
    }
}

static void json_faults_name_place_and_key(void **state) {
    (void)state;
    json_t *value;
    static const char broken[] = "{\"a\": 1,\n \"b\": }";
    assert_int_equal(json_read_text(broken, strlen(broken), "x.json", &value), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "x.json is not valid JSON: line 2"));
    status_clear();
    static const char twice[] = "{\"a\": 1, \"a\": 2}";
    assert_int_equal(json_read_text(twice, strlen(twice), "x.json", &value), STATUS_INPUT);
    status_clear();

    static const char text[] = "{\"n\": 5, \"x\": 1.5, \"s\": \"t\", \"b\": true, \"l\": [1], \"o\": {}, \"z\": null}";
    assert_int_equal(json_read_text(text, strlen(text), "x.json", &value), STATUS_OK);
    json_reader_t reader = {.object = value, .where = "x.json", .fault = STATUS_USAGE};
    int64_t n;
    double x;
    bool b;
    const char *s;
    const json_t *member;
    assert_int_equal(json_get_int(&reader, "n", 0, 10, &n), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_get_number(&reader, "x", &x), STATUS_OK);
    assert_int_equal(json_get_bool(&reader, "b", &b), STATUS_OK);
    assert_int_equal(json_get_string(&reader, "s", &s), STATUS_OK);
    assert_int_equal(json_get_array(&reader, "l", &member), STATUS_OK);
    assert_int_equal(json_get_object(&reader, "o", &member), STATUS_OK);
    assert_true(json_has(&reader, "n") && !json_has(&reader, "z") && !json_has(&reader, "none"));
    assert_int_equal(json_get_int(&reader, "n", 6, 10, &n), STATUS_USAGE);
    assert_string_equal(status_message(), "x.json: \"n\" is 5, but must lie between 6 and 10");
    status_clear();
    assert_int_equal(json_get_int(&reader, "x", 0, 10, &n), STATUS_USAGE);
    assert_string_equal(status_message(), "x.json: \"x\" must be a whole number");
    status_clear();
    assert_int_equal(json_get_string(&reader, "none", &s), STATUS_USAGE);
    assert_string_equal(status_message(), "x.json: \"none\" is missing");
    json_decref(value);
}

static void files_are_read_whole_or_refused(void **state) {
    (void)state;
    char path[] = "/tmp/galvani-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    enum { BYTES = 200000 };
    static unsigned char data[BYTES], read_back[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i % 251);
    assert_int_equal(file_write_at(fd, path, data, BYTES, 0), STATUS_OK);
    assert_int_equal(file_read_at(fd, path, read_back, BYTES - 5, 5), STATUS_OK);
    assert_memory_equal(read_back, data + 5, BYTES - 5);
    assert_int_equal(file_read_at(fd, path, read_back, 10, BYTES - 4), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "is cut off"));
    status_clear();
    close(fd);

    char *text;
    size_t text_bytes;
    assert_int_equal(file_read_all(path, &text, &text_bytes), STATUS_OK);
    assert_int_equal(text_bytes, BYTES);
    assert_memory_equal(text, data, BYTES);
    assert_int_equal(text[text_bytes], 0);
    memory_free(text);
    unlink(path);
    assert_int_equal(file_read_all(path, &text, &text_bytes), STATUS_INPUT);
    status_clear();
    assert_int_equal(file_read_all("/tmp", &text, &text_bytes), STATUS_INPUT);
    assert_string_equal(status_message(), "/tmp is a directory, not a file");
}

static void a_full_disk_is_a_device_failure(void **state) {
    (void)state;
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) skip();
    assert_int_equal(file_write_at(fd, "/dev/full", "x", 1, 0), STATUS_DEVICE);
    assert_string_equal(status_message(), "cannot write /dev/full: No space left on device");
    close(fd);
}

static void paths_join_with_one_slash(void **state) {
    (void)state;
    char path[16];
    assert_int_equal(file_join("a", "b", path, sizeof path), STATUS_OK);
    assert_string_equal(path, "a/b");
    assert_int_equal(file_join("a/", "b", path, sizeof path), STATUS_OK);
    assert_string_equal(path, "a/b");
    assert_int_equal(file_join("0123456789", "012345", path, sizeof path), STATUS_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_first_message_is_kept, clear_status),
        cmocka_unit_test_setup(memory_is_zeroed_aligned_and_counted, clear_status),
        cmocka_unit_test_setup(too_much_memory_is_refused_with_its_size, clear_status),
        cmocka_unit_test_setup(available_memory_is_plausible, clear_status),
        cmocka_unit_test_setup(hashes_are_the_published_ones, clear_status),
        cmocka_unit_test_setup(a_hash_in_pieces_is_the_hash, clear_status),
        cmocka_unit_test_setup(json_faults_name_place_and_key, clear_status),
        cmocka_unit_test_setup(files_are_read_whole_or_refused, clear_status),
        cmocka_unit_test_setup(a_full_disk_is_a_device_failure, clear_status),
        cmocka_unit_test_setup(paths_join_with_one_slash, clear_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
