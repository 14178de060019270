#ifndef GALVANI_TESTS_SCRATCH_H
#define GALVANI_TESTS_SCRATCH_H

/* A directory for the time of a test; included behind cmocka.h. */

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH_PATH_BYTES = 512 };

static char scratch_directory[128];

static inline int scratch_create(void **state) {
    (void)state;
    snprintf(scratch_directory, sizeof scratch_directory, "/tmp/galvani-test-XXXXXX");
    return mkdtemp(scratch_directory) ? 0 : -1;
}

static inline int scratch_remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static inline int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch_directory, scratch_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of `name` in it; valid until the fourth next call. */
static inline const char *scratch_path(const char *name) {
    static char paths[4][SCRATCH_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, SCRATCH_PATH_BYTES, "%s/%s", scratch_directory, name);
    return path;
}

static inline void scratch_write(const char *name, const void *data, size_t bytes) {
    FILE *file = fopen(scratch_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void scratch_write_text(const char *name, const char *text) { scratch_write(name, text, strlen(text)); }

/* A safetensors file of that header and data. */
static inline void scratch_write_safetensors(const char *name, const char *header, const void *data, size_t bytes) {
    size_t length = strlen(header);
    char *file = malloc(8 + length + bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (char)(length >> 8 * i & 0xFF);
    memcpy(file + 8, header, length);
    if (bytes) memcpy(file + 8 + length, data, bytes);
    scratch_write(name, file, 8 + length + bytes);
    free(file);
}

#endif
