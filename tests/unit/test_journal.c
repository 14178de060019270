#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shard/journal.h"
#include "support/scratch.h"

static void test_entries_come_back(void **state) {
    (void)state;
    const char *path = scratch_path("journal");
    journal_entry_t entries[4] = {{0}};
    assert_false(journal_read(path, "one", entries, 4));
    assert_int_equal(journal_create(path, "one"), STATUS_OK);
    assert_true(journal_read(path, "one", entries, 4));
    assert_false(entries[2].is_done);
    const journal_entry_t second = {true, 0xFEDCBA9876543210u, 7}, first = {true, 3, UINT64_MAX};
    assert_int_equal(journal_append(path, 2, &second), STATUS_OK);
    assert_int_equal(journal_append(path, 0, &first), STATUS_OK);
    assert_true(journal_read(path, "one", entries, 4));
    assert_true(entries[0].is_done && entries[2].is_done);
    assert_true(entries[0].xxh3 == first.xxh3 && entries[0].content == first.content);
    assert_true(entries[2].xxh3 == second.xxh3 && entries[2].content == second.content);
    assert_false(entries[1].is_done || entries[3].is_done);
}

static void test_another_conversion(void **state) {
    (void)state;
    const char *path = scratch_path("journal");
    const journal_entry_t entry = {true, 1, 2};
    journal_entry_t entries[4] = {{0}};
    assert_int_equal(journal_create(path, "one"), STATUS_OK);
    assert_int_equal(journal_append(path, 0, &entry), STATUS_OK);
    assert_false(journal_read(path, "on", entries, 4));
    assert_false(journal_read(path, "one more", entries, 4));
    assert_false(entries[0].is_done);
    assert_int_equal(journal_create(path, "one more"), STATUS_OK);
    assert_true(journal_read(path, "one more", entries, 4));
    assert_false(entries[0].is_done);
}

/* A stop in the middle of a line leaves the lines before it. */
static void test_damage(void **state) {
    (void)state;
    const char *path = scratch_path("journal");
    journal_entry_t entries[4] = {{0}};
    scratch_write_text("journal", "one\n1 00000000000000ff 0000000000000001\n2 00000000000");
    assert_true(journal_read(path, "one", entries, 4));
    assert_true(entries[1].is_done);
    assert_int_equal(entries[1].xxh3, 0xFF);
    assert_false(entries[2].is_done);
    static const char *const texts[] = {"", "one", "one\n9 1 1\n", "one\n1 1 1\nx\n", "one\n-1 1 1\n", "one\n1 1\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        scratch_write_text("journal", texts[i]);
        assert_false(journal_read(path, "one", entries, 4));
        assert_false(entries[1].is_done);
    }
}

static void test_place_that_cannot_be_written(void **state) {
    (void)state;
    assert_int_equal(journal_create(scratch_path("absent/journal"), "one"), STATUS_DEVICE);
    status_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_come_back),
        cmocka_unit_test(test_another_conversion),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_place_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
