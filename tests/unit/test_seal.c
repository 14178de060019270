/* The seal of a shard file: every byte outside the datasets is covered, those inside are not its concern. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "shard/seal.h"

enum { CONTENT_BYTES = 300000 };

static int fd;
static char path[] = "/tmp/galvani-seal-XXXXXX";

/* A file of CONTENT_BYTES with ranges at both ends, adjacent ones and an empty one. */
static int set_up(void **state) {
    (void)state;
    status_clear();
    strcpy(path + strlen(path) - 6, "XXXXXX");
    fd = mkstemp(path);
    static unsigned char content[CONTENT_BYTES];
    for (size_t i = 0; i < CONTENT_BYTES; i++)
        content[i] = (unsigned char)(i * 31 >> 3);
    return fd < 0 || file_write_at(fd, path, content, CONTENT_BYTES, 0) != STATUS_OK;
}

static int tear_down(void **state) {
    (void)state;
    close(fd);
    return unlink(path);
}

static const seal_range_t data[] = {{100000, 50000}, {0, 10}, {150000, 4096}, {200000, 0}, {299000, 1000}};

static void seal(void) {
    seal_range_t ranges[sizeof data / sizeof data[0]];
    memcpy(ranges, data, sizeof data);
    assert_int_equal(seal_write(fd, path, ranges, sizeof data / sizeof data[0]), STATUS_OK);
}

static void flip(uint64_t offset) {
    unsigned char byte;
    assert_int_equal(file_read_at(fd, path, &byte, 1, offset), STATUS_OK);
    byte ^= 0x10;
    assert_int_equal(file_write_at(fd, path, &byte, 1, offset), STATUS_OK);
}

static status_t check_after_flip(uint64_t offset) {
    flip(offset);
    status_t status = seal_check(fd, path);
    flip(offset);
    status_clear();
    return status;
}

static void a_sealed_file_passes(void **state) {
    (void)state;
    assert_int_equal(seal_check(fd, path), STATUS_OK);
    seal();
    assert_int_equal(seal_check(fd, path), STATUS_OK);
}

static void every_byte_outside_the_datasets_is_covered(void **state) {
    (void)state;
    seal();
    static const uint64_t outside[] = {10, 11, 65536, 99999, 154096, 200000, 250000, 298999};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        assert_int_equal(check_after_flip(outside[i]), STATUS_INPUT);
    static const uint64_t inside[] = {0, 9, 100000, 149999, 154095, 299999};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++)
        assert_int_equal(check_after_flip(inside[i]), STATUS_OK);
}

static void the_seal_itself_is_covered(void **state) {
    (void)state;
    seal();
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    /* All but the magic word, without which the file is an unsealed one. */
    for (uint64_t offset = CONTENT_BYTES; offset < (uint64_t)info.st_size - 8; offset++)
        assert_int_equal(check_after_flip(offset), STATUS_INPUT);
    assert_int_equal(seal_check(fd, path), STATUS_OK);
}

static void a_seal_behind_a_cut_is_wrong(void **state) {
    (void)state;
    seal();
    unsigned char footer[32];
    assert_int_equal(file_read_at(fd, path, footer, sizeof footer, CONTENT_BYTES + sizeof data), STATUS_OK);
    assert_int_equal(file_write_at(fd, path, footer, sizeof footer, 1000), STATUS_OK);
    assert_int_equal(ftruncate(fd, 1000 + sizeof footer), 0);
    assert_int_equal(seal_check(fd, path), STATUS_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sealed_file_passes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_byte_outside_the_datasets_is_covered, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_seal_itself_is_covered, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_seal_behind_a_cut_is_wrong, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
