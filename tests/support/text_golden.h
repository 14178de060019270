#ifndef GALVANI_TESTS_TEXT_GOLDEN_H
#define GALVANI_TESTS_TEXT_GOLDEN_H

/* Reading the goldens of tests/golden/text; included behind cmocka.h. */

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define TEXT_GOLDEN "tests/golden/text"

static inline json_t *golden_read(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", TEXT_GOLDEN, name);
    json_t *root;
    if (json_read_file(path, &root) != STATUS_OK) fail_msg("%s", status_message());
    return root;
}

/* Bytes of a string of hex digits, with a NUL behind; freed with free(). */
static inline char *golden_bytes(const json_t *hex, size_t *n_bytes) {
    const char *digits = json_string_value(hex);
    assert_non_null(digits);
    *n_bytes = strlen(digits) / 2;
    char *bytes = malloc(*n_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < *n_bytes; ++i) {
        char pair[3] = {digits[2 * i], digits[2 * i + 1], '\0'};
        bytes[i] = (char)strtoul(pair, NULL, 16);
    }
    bytes[*n_bytes] = '\0';
    return bytes;
}

#endif
