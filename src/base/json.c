#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

status_t json_read_file(const char *path, json_t **value) {
    /* Whole files in memory: jansson reads a stream a character at a time. */
    char *text;
    size_t text_bytes;
    TRY(file_read_all(path, &text, &text_bytes));
    status_t status = json_read_text(text, text_bytes, path, value);
    memory_free(text);
    return status;
}

status_t json_read_text(const char *text, size_t text_bytes, const char *where, json_t **value) {
    json_error_t error;
    json_t *parsed = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!parsed)
        return status_fail(STATUS_INPUT, "%s is not valid JSON: line %d, column %d: %s", where, error.line,
                           error.column, error.text);
    *value = parsed;
    return STATUS_OK;
}

status_t json_write_file(json_t *value, const char *path) {
    errno = 0;
    bool failed = !value || json_dump_file(value, path, JSON_INDENT(1)) != 0;
    json_decref(value);
    if (failed) return status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(errno ? errno : ENOMEM));
    return STATUS_OK;
}

bool json_has(const json_reader_t *reader, const char *key) {
    const json_t *member = json_object_get(reader->object, key);
    return member && !json_is_null(member);
}

/* Finds a member and checks its type; `expected` is the word for it in messages. */
static status_t get_member(const json_reader_t *reader, const char *key, bool (*is_type)(const json_t *),
                           const char *expected, const json_t **member) {
    const json_t *found = json_object_get(reader->object, key);
    if (!found) return status_fail(reader->fault, "%s: \"%s\" is missing", reader->where, key);
    if (!is_type(found)) return status_fail(reader->fault, "%s: \"%s\" must be %s", reader->where, key, expected);
    *member = found;
    return STATUS_OK;
}

/* jansson's predicates are macros; these give them addresses. */
static bool is_int(const json_t *value) { return json_is_integer(value); }
static bool is_number(const json_t *value) { return json_is_number(value); }
static bool is_bool(const json_t *value) { return json_is_boolean(value); }
static bool is_string(const json_t *value) { return json_is_string(value); }
static bool is_array(const json_t *value) { return json_is_array(value); }
static bool is_object(const json_t *value) { return json_is_object(value); }

status_t json_get_int(const json_reader_t *reader, const char *key, int64_t minimum, int64_t maximum, int64_t *value) {
    const json_t *member;
    TRY(get_member(reader, key, is_int, "a whole number", &member));
    int64_t number = (int64_t)json_integer_value(member);
    if (number < minimum || number > maximum)
        return status_fail(reader->fault, "%s: \"%s\" is %" PRId64 ", but must lie between %" PRId64 " and %" PRId64,
                           reader->where, key, number, minimum, maximum);
    *value = number;
    return STATUS_OK;
}

status_t json_get_number(const json_reader_t *reader, const char *key, double *value) {
    const json_t *member;
    TRY(get_member(reader, key, is_number, "a number", &member));
    *value = json_number_value(member);
    return STATUS_OK;
}

status_t json_get_bool(const json_reader_t *reader, const char *key, bool *value) {
    const json_t *member;
    TRY(get_member(reader, key, is_bool, "true or false", &member));
    *value = json_is_true(member);
    return STATUS_OK;
}

status_t json_get_string(const json_reader_t *reader, const char *key, const char **value) {
    const json_t *member;
    TRY(get_member(reader, key, is_string, "a string", &member));
    *value = json_string_value(member);
    return STATUS_OK;
}

status_t json_get_array(const json_reader_t *reader, const char *key, const json_t **value) {
    return get_member(reader, key, is_array, "a list", value);
}

status_t json_get_object(const json_reader_t *reader, const char *key, const json_t **value) {
    return get_member(reader, key, is_object, "an object", value);
}
