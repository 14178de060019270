#include "checkpoint/inventory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/ngram.h"

/* Names to show in one message: the first few, and how many there are. */
typedef struct name_list {
    size_t n_names;
    char text[4 * ROLE_NAME_BYTES];
} name_list_t;

static void list_name(name_list_t *list, const char *name) {
    size_t used = strlen(list->text);
    if (list->n_names < 3) snprintf(list->text + used, sizeof list->text - used, "%s%s", used ? ", " : "", name);
    if (list->n_names == 3) snprintf(list->text + used, sizeof list->text - used, " ...");
    list->n_names++;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Name of a quantisation that galvani does not read, if the tensor gives it away; else NULL. */
static const char *foreign_format(const checkpoint_tensor_t *tensor) {
    const char *name = tensor->info->name;
    if (ends_with(name, ".weight_packed") || ends_with(name, ".weight_global_scale")) return "compressed-tensors";
    if (ends_with(name, ".weight_scale_inv")) return "block FP8 (weight_scale_inv)";
    if (ends_with(name, ".qweight") || ends_with(name, ".qzeros")) return "GPTQ or AWQ";
    if (strstr(name, ".ngram_embedding.") && (tensor->info->dtype == DTYPE_U8 || ends_with(name, ".weight_scale_2")))
        return "NVFP4 in the PLE table";
    if (ends_with(name, ".weight_scale") && (tensor->info->dtype == DTYPE_U8 || tensor->info->dtype == DTYPE_N))
        return "MXFP8 or MXFP4 (8-bit exponents as scales)";
    if (ends_with(name, ".weight_scale") && role_parse(name).role == ROLE_UNKNOWN) return "FP8 outside the PLE table";
    return NULL;
}

static void count(inventory_count_t *group, const checkpoint_tensor_t *tensor) {
    group->n_tensors++;
    group->bytes += tensor->info->bytes;
}

int64_t inventory_shard_rows(int64_t n_rows, int64_t n_shards, int64_t shard) {
    int64_t block = (n_rows + n_shards - 1) / n_shards;
    int64_t left = n_rows - shard * block;
    return left < 0 ? 0 : left < block ? left : block;
}

/* A table may be cut into more or fewer shards than the config says, if they make up the table; else the config's
 * number holds, and what is missing of it will be named. */
static void settle_table_shards(const checkpoint_t *checkpoint, const model_config_t *config, inventory_t *inventory) {
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        int64_t *n_shards = &inventory->n_table_shards[i];
        if (*n_shards == 0 || *n_shards == config->split_ngram_parts) continue;
        ngram_constants_t constants;
        ngram_derive(config, i, &constants);
        const checkpoint_tensor_t *first =
            role_find(checkpoint, (role_place_t){ROLE_PLE_TABLE_SHARD, config->ple_layers[i], 0});
        int64_t rows = inventory_shard_rows(constants.n_rows, *n_shards, 0);
        if (!first || first->info->n_dims != 2 || first->info->shape[0] != rows) *n_shards = config->split_ngram_parts;
    }
}

/* Finds how experts and tables are stored, from the tensors that are there. */
static status_t find_storage(const checkpoint_t *checkpoint, const model_config_t *config, inventory_t *inventory) {
    size_t n_tensors;
    const checkpoint_tensor_t *tensors = checkpoint_tensors(checkpoint, &n_tensors);
    inventory->expert_storage = STORED_NVFP4;
    inventory->ple_dtype = DTYPE_F8_E4M3;
    bool table_seen = false;
    for (size_t i = 0; i < n_tensors; i++) {
        role_place_t place = role_parse(tensors[i].info->name);
        if (place.role == ROLE_MTP || place.role == ROLE_VISUAL) continue;
        const char *format = foreign_format(&tensors[i]);
        if (format)
            return status_fail(STATUS_INPUT,
                               "%s is quantised as %s (tensor %s), which galvani does not read; it reads ModelOpt's "
                               "NVFP4 experts with an FP8 or BF16 PLE table, and BF16",
                               checkpoint_directory(checkpoint), format, tensors[i].info->name);
        if (place.role == ROLE_EXPERTS_GATE_UP || place.role == ROLE_EXPERTS_DOWN)
            inventory->expert_storage = STORED_BF16_FUSED;
        if (place.role == ROLE_EXPERT_GATE && tensors[i].info->dtype == DTYPE_BF16)
            inventory->expert_storage = STORED_BF16;
        int64_t ple_index;
        if ((place.role == ROLE_PLE_TABLE_SHARD || place.role == ROLE_PLE_TABLE) &&
            config_ple_index(config, place.layer, &ple_index)) {
            if (place.role == ROLE_PLE_TABLE_SHARD) inventory->n_table_shards[ple_index]++;
            if (!table_seen && tensors[i].info->dtype == DTYPE_BF16) inventory->ple_dtype = DTYPE_BF16;
            table_seen = true;
        }
    }
    settle_table_shards(checkpoint, config, inventory);
    return STATUS_OK;
}

/* Whether the model, stored as it is, has a tensor at `place`. */
static bool is_expected(role_place_t place, const model_config_t *config, const inventory_t *inventory) {
    if (!role_exists(place, config, inventory->expert_storage)) return false;
    int64_t ple_index;
    switch (place.role) {
    case ROLE_PLE_TABLE_SHARD:
        return config_ple_index(config, place.layer, &ple_index) && place.item < inventory->n_table_shards[ple_index];
    case ROLE_PLE_TABLE:
        return config_ple_index(config, place.layer, &ple_index) && !inventory->n_table_shards[ple_index];
    case ROLE_PLE_TABLE_SCALE:
        return inventory->ple_dtype == DTYPE_F8_E4M3;
    default:
        return true;
    }
}

static status_t check_strangers(const checkpoint_t *checkpoint, const model_config_t *config, inventory_t *inventory) {
    size_t n_tensors;
    const checkpoint_tensor_t *tensors = checkpoint_tensors(checkpoint, &n_tensors);
    name_list_t strangers = {0};
    for (size_t i = 0; i < n_tensors; i++) {
        role_place_t place = role_parse(tensors[i].info->name);
        if (place.role == ROLE_MTP)
            count(&inventory->mtp, &tensors[i]);
        else if (place.role == ROLE_VISUAL)
            count(&inventory->visual, &tensors[i]);
        else if (is_expected(place, config, inventory))
            count(&inventory->text, &tensors[i]);
        else
            list_name(&strangers, tensors[i].info->name);
    }
    if (strangers.n_names)
        return status_fail(STATUS_INPUT, "%s holds %zu tensors that do not belong to its config: %s",
                           checkpoint_directory(checkpoint), strangers.n_names, strangers.text);
    return STATUS_OK;
}

static void shape_text(int n_dims, const int64_t *shape, char *text, size_t text_bytes) {
    int used = snprintf(text, text_bytes, "[");
    for (int i = 0; i < n_dims; i++)
        used += snprintf(text + used, text_bytes - (size_t)used, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(text + used, text_bytes - (size_t)used, "]");
}

/* The number of rows that the role leaves open. */
static int64_t table_rows(role_place_t place, const model_config_t *config, const inventory_t *inventory) {
    int64_t ple_index = 0;
    config_ple_index(config, place.layer, &ple_index);
    ngram_constants_t constants;
    ngram_derive(config, ple_index, &constants);
    if (place.role == ROLE_PLE_TABLE) return constants.n_rows;
    return inventory_shard_rows(constants.n_rows, inventory->n_table_shards[ple_index], place.item);
}

static role_expectation_t expect(role_place_t place, const model_config_t *config, const inventory_t *inventory) {
    role_expectation_t expected = role_expect(place.role, config, inventory->expert_storage);
    if (place.role == ROLE_PLE_TABLE_SHARD || place.role == ROLE_PLE_TABLE) {
        expected.dtypes = 1u << inventory->ple_dtype;
        expected.shape[0] = table_rows(place, config, inventory);
    }
    return expected;
}

static bool has_type(const safetensors_tensor_t *info, const role_expectation_t *expected) {
    return expected->dtypes >> info->dtype & 1;
}

static bool has_shape(const safetensors_tensor_t *info, const role_expectation_t *expected) {
    /* One number may be stored as a scalar or as a vector of one. */
    if (info->n_dims == 0 && expected->n_dims == 1 && expected->shape[0] == 1) return true;
    if (expected->n_dims == 0 && info->n_dims == 1 && info->shape[0] == 1) return true;
    return info->n_dims == expected->n_dims &&
           memcmp(info->shape, expected->shape, sizeof(int64_t) * (size_t)expected->n_dims) == 0;
}

static status_t fail_tensor(const safetensors_tensor_t *info, const role_expectation_t *expected) {
    if (!has_type(info, expected))
        return status_fail(STATUS_INPUT, "tensor %s is of type %s; expected %s", info->name,
                           info->dtype == DTYPE_N ? "unknown" : dtype_name(info->dtype),
                           dtype_name((dtype_t)__builtin_ctz(expected->dtypes)));
    char found_text[160], expected_text[160];
    shape_text(info->n_dims, info->shape, found_text, sizeof found_text);
    shape_text(expected->n_dims, expected->shape, expected_text, sizeof expected_text);
    return status_fail(STATUS_INPUT, "tensor %s has the shape %s; the config asks for %s", info->name, found_text,
                       expected_text);
}

/* What a look at all expected places finds. */
typedef struct findings {
    name_list_t missing;
    const safetensors_tensor_t *wrong; /* the first tensor of another type or shape, or NULL */
    role_expectation_t wrong_expected;
} findings_t;

static void look_at(const checkpoint_t *checkpoint, const model_config_t *config, const inventory_t *inventory,
                    role_place_t place, findings_t *findings) {
    const checkpoint_tensor_t *tensor = role_find(checkpoint, place);
    if (!tensor) {
        char name[ROLE_NAME_BYTES];
        role_name(place, name);
        list_name(&findings->missing, name);
        return;
    }
    role_expectation_t expected = expect(place, config, inventory);
    if (findings->wrong || (has_type(tensor->info, &expected) && has_shape(tensor->info, &expected))) return;
    findings->wrong = tensor->info;
    findings->wrong_expected = expected;
}

static void look_at_role(const checkpoint_t *checkpoint, const model_config_t *config, const inventory_t *inventory,
                         role_t role, findings_t *findings) {
    int64_t n_layers = role_n_layers(role, config);
    for (role_place_t place = {role, 0, 0}; place.layer < n_layers; place.layer++) {
        int64_t n_items = role_n_items(role, config), ple_index;
        if (role == ROLE_PLE_TABLE_SHARD)
            n_items = config_ple_index(config, place.layer, &ple_index) ? inventory->n_table_shards[ple_index] : 0;
        for (place.item = 0; place.item < n_items; place.item++) {
            if (!is_expected(place, config, inventory)) break;
            look_at(checkpoint, config, inventory, place, findings);
        }
    }
}

/* A rounded or reordered constant gives wrong rows everywhere and no other sign of it. */
static status_t check_hash_table(checkpoint_t *checkpoint, role_place_t place, const int64_t *expected, int64_t n) {
    const checkpoint_tensor_t *tensor = role_find(checkpoint, place);
    int64_t stored[CONFIG_MAX_NGRAM_HEADS];
    TRY(checkpoint_read(checkpoint, tensor, 0, sizeof(int64_t) * (size_t)n, stored));
    for (int64_t i = 0; i < n; i++) {
        if (stored[i] != expected[i])
            return status_fail(STATUS_INPUT,
                               "tensor %s holds %" PRId64 " at position %" PRId64 ", but the config derives %" PRId64,
                               tensor->info->name, stored[i], i, expected[i]);
    }
    return STATUS_OK;
}

static status_t check_hash_tables(checkpoint_t *checkpoint, const model_config_t *config) {
    for (int64_t i = 0; i < config->n_ple_layers; i++) {
        ngram_constants_t constants;
        ngram_derive(config, i, &constants);
        role_place_t place = {ROLE_PLE_MULTIPLIERS, config->ple_layers[i], 0};
        TRY(check_hash_table(checkpoint, place, constants.multipliers, constants.ngram_size));
        place.role = ROLE_PLE_HEAD_SIZES;
        TRY(check_hash_table(checkpoint, place, constants.head_sizes, constants.n_heads));
        place.role = ROLE_PLE_HEAD_OFFSETS;
        TRY(check_hash_table(checkpoint, place, constants.head_offsets, constants.n_heads));
    }
    return STATUS_OK;
}

status_t inventory_check(checkpoint_t *checkpoint, const model_config_t *config, inventory_t *inventory) {
    inventory_t found = {0};
    TRY(find_storage(checkpoint, config, &found));
    TRY(check_strangers(checkpoint, config, &found));
    findings_t findings = {0};
    for (int role = 0; role < ROLE_N; role++)
        look_at_role(checkpoint, config, &found, (role_t)role, &findings);
    if (findings.missing.n_names)
        return status_fail(STATUS_INPUT, "%s lacks %zu tensors that its config asks for: %s",
                           checkpoint_directory(checkpoint), findings.missing.n_names, findings.missing.text);
    if (findings.wrong) return fail_tensor(findings.wrong, &findings.wrong_expected);
    TRY(check_hash_tables(checkpoint, config));
    *inventory = found;
    return STATUS_OK;
}
