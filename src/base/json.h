#ifndef GALVANI_BASE_JSON_H
#define GALVANI_BASE_JSON_H

/* Reading JSON with jansson, whose objects are hash tables (a checkpoint's index has 300,000 keys). What is added
 * here: one message that names the file, the key and what was expected. Objects that are returned through json_t **
 * belong to the caller (json_decref). */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parses a whole file. STATUS_INPUT if it cannot be read, is not valid JSON (with line and column), or repeats a key.
 */
status_t json_read_file(const char *path, json_t **value);

/* Parses `text_bytes` of text; `where` names it in messages. */
status_t json_read_text(const char *text, size_t text_bytes, const char *where, json_t **value);

/* Writes `value` (NULL: there was no memory to make it) to a file and releases it. STATUS_DEVICE if that fails. */
status_t json_write_file(json_t *value, const char *path);

/* Typed members of `object`. `where` names the object in messages ("config.json: text_config"). A missing or
 * wrongly typed member, or a number outside [minimum, maximum], is a failure with `fault` as its status. */
typedef struct json_reader {
    const json_t *object;
    const char *where;
    status_t fault;
} json_reader_t;

status_t json_get_int(const json_reader_t *reader, const char *key, int64_t minimum, int64_t maximum, int64_t *value);
status_t json_get_number(const json_reader_t *reader, const char *key, double *value);
status_t json_get_bool(const json_reader_t *reader, const char *key, bool *value);
status_t json_get_string(const json_reader_t *reader, const char *key, const char **value);   /* borrowed */
status_t json_get_array(const json_reader_t *reader, const char *key, const json_t **value);  /* borrowed */
status_t json_get_object(const json_reader_t *reader, const char *key, const json_t **value); /* borrowed */

/* Whether the member is there and is not null. */
bool json_has(const json_reader_t *reader, const char *key);

#ifdef __cplusplus
}
#endif
#endif
