/* model.safetensors.index.json as an attacker writes it: the weight map, and what its names are taken for. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/roles.h"

static void check_name(const char *name) {
    role_place_t place = role_parse(name);
    if (place.role >= ROLE_N) return;
    char again[ROLE_NAME_BYTES];
    role_name(place, again);
    if (strcmp(again, name) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    status_clear();
    json_t *root = NULL;
    const json_t *weight_map;
    status_t status = json_read_text((const char *)data, size, "fuzz", &root);
    if (status == STATUS_OK) status = checkpoint_weight_map(root, "fuzz", &weight_map);
    if (status == STATUS_OK) {
        const char *name;
        json_t *file;
        json_object_foreach((json_t *)weight_map, name, file) {
            if (strchr(json_string_value(file), '/')) abort();
            check_name(name);
        }
    } else if (status_message()[0] == '\0') {
        abort(); /* a failure without a reason */
    }
    json_decref(root);
    return 0;
}
