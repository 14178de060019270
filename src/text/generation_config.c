#include "text/generation_config.h"

#include <inttypes.h>
#include <limits.h>

#include "base/file.h"
#include "base/json.h"

static status_t add_eos(generation_config_t *config, const json_t *value, int32_t n_tokens, const char *where) {
    if (!json_is_integer(value))
        return status_fail(STATUS_INPUT, "%s: \"eos_token_id\" must be an id or a list of ids", where);
    json_int_t id = json_integer_value(value);
    if (id < 0 || id >= n_tokens)
        return status_fail(STATUS_INPUT,
                           "%s: the eos_token_id %" JSON_INTEGER_FORMAT " must lie between 0 and %" PRId32, where, id,
                           n_tokens - 1);
    if (config->n_eos == GENERATION_MAX_EOS)
        return status_fail(STATUS_INPUT, "%s: more than %d eos_token_id", where, GENERATION_MAX_EOS);
    config->eos_token_id[config->n_eos++] = (int32_t)id;
    return STATUS_OK;
}

static status_t read_eos(const json_t *root, int32_t n_tokens, const char *where, generation_config_t *config) {
    if (!json_is_object(root)) return status_fail(STATUS_INPUT, "%s must hold an object", where);
    const json_t *eos = json_object_get(root, "eos_token_id");
    if (!eos || json_is_null(eos)) return STATUS_OK;
    if (!json_is_array(eos)) return add_eos(config, eos, n_tokens, where);
    for (size_t i = 0; i < json_array_size(eos); ++i)
        TRY(add_eos(config, json_array_get(eos, i), n_tokens, where));
    return STATUS_OK;
}

status_t generation_config_load(const char *directory, int32_t eos_token_id, int32_t n_tokens,
                                generation_config_t *config) {
    char path[PATH_MAX];
    TRY(file_join(directory, "generation_config.json", path, sizeof path));
    generation_config_t read = {0};
    if (file_exists(path)) {
        json_t *root;
        TRY(json_read_file(path, &root));
        status_t status = read_eos(root, n_tokens, path, &read);
        json_decref(root);
        TRY(status);
    }
    if (read.n_eos == 0 && eos_token_id >= 0) read.eos_token_id[read.n_eos++] = eos_token_id;
    *config = read;
    return STATUS_OK;
}

bool generation_config_is_eos(const generation_config_t *config, int32_t id) {
    for (int i = 0; i < config->n_eos; ++i)
        if (config->eos_token_id[i] == id) return true;
    return false;
}
