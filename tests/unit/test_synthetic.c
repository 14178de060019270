/* A synthetic model's tensors: every rank's slice holds what the unsliced dataset holds there; the values are what a
 * model can have. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "checkpoint/nvfp4.h"
#include "model/synthetic.h"
#include "model/tensor_source.h"
#include "support/model_configs.h"

static char model[64]; /* synthetic:PATH of SMALL_CONFIG */

static int setup(void **state) {
    (void)state;
    strcpy(model, "synthetic:/tmp/galvani-config-XXXXXX");
    int fd = mkstemp(model + strlen("synthetic:"));
    if (fd < 0 || write(fd, SMALL_CONFIG, strlen(SMALL_CONFIG)) != (ssize_t)strlen(SMALL_CONFIG)) return -1;
    return close(fd);
}

static int teardown(void **state) {
    (void)state;
    return unlink(model + strlen("synthetic:"));
}

static tensor_source_t *open_rank(int tp_rank, int tp_size, uint64_t seed) {
    tensor_source_t *source;
    const tensor_source_args_t args = {.model = model, .tp_rank = tp_rank, .tp_size = tp_size, .seed = seed};
    assert_int_equal(tensor_source_open(&args, &source), STATUS_OK);
    return source;
}

/* Tensor `index` in memory; freed with free(). */
static void *read_tensor(tensor_source_t *source, size_t index, size_t *bytes) {
    size_t n_tensors;
    const schema_tensor_t *tensors = tensor_source_tensors(source, &n_tensors);
    assert_int_equal(schema_tensor_bytes(&tensors[index], bytes), STATUS_OK);
    void *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(tensor_source_read(source, index, data), STATUS_OK);
    return data;
}

static bool is_one_of(const char *path, const char *const names[]) {
    const char *name = strrchr(path, '/') + 1;
    for (int i = 0; names[i]; i++) {
        if (strcmp(name, names[i]) == 0) return true;
    }
    return false;
}

/* The row of the unsliced dataset that is row `row` of rank `rank`'s slice of n_rows rows: the slices as
 * shard/schema.h has them. */
static int64_t whole_row(const model_config_t *config, const schema_tensor_t *slice, const schema_tensor_t *whole,
                         int rank, int tp_size, int64_t row) {
    if (slice->shape[0] == whole->shape[0]) return row;
    if (is_one_of(slice->path, (const char *const[]){"k_proj", "v_proj", NULL}) &&
        tp_size > config->num_key_value_heads)
        return rank / (tp_size / config->num_key_value_heads) * slice->shape[0] + row;
    if (is_one_of(slice->path, (const char *const[]){"in_proj_qkv", "conv1d", NULL})) {
        int64_t keys = config->linear_num_key_heads * config->linear_key_head_dim, own_keys = keys / tp_size;
        if (row < own_keys) return rank * own_keys + row;
        if (row < 2 * own_keys) return keys + rank * own_keys + row - own_keys;
        return 2 * keys + rank * (slice->shape[0] - 2 * own_keys) + row - 2 * own_keys;
    }
    return rank * slice->shape[0] + row;
}

/* Place in the unsliced dataset of item `item` of a slice. */
static int64_t whole_index(const model_config_t *config, const schema_tensor_t *slice, const schema_tensor_t *whole,
                           int rank, int tp_size, int64_t item) {
    int last = slice->n_dims - 1;
    int64_t width = slice->shape[last], whole_width = whole->shape[last];
    if (slice->n_dims == 1) return whole_row(config, slice, whole, rank, tp_size, item);
    int64_t column = item % width + (width == whole_width ? 0 : rank * width), row = item / width;
    if (slice->n_dims == 2) return whole_row(config, slice, whole, rank, tp_size, row) * whole_width + column;
    /* experts: [E, rows, columns], gate rows before up rows */
    int64_t n_rows = slice->shape[1], expert = row / n_rows;
    row %= n_rows;
    if (n_rows != whole->shape[1]) {
        int64_t half = n_rows / 2, own = row % half + rank * half;
        row = row < half ? own : whole->shape[1] / 2 + own;
    }
    return (expert * whole->shape[1] + row) * whole_width + column;
}

static void slices_equal_the_whole(void **state) {
    (void)state;
    static const int sizes[] = {2, 4};
    tensor_source_t *unsliced = open_rank(0, 1, 7);
    const model_config_t *config = &tensor_source_info(unsliced)->config;
    size_t n_whole, n_sliced = 0;
    const schema_tensor_t *wholes = tensor_source_tensors(unsliced, &n_whole);
    for (size_t s = 0; s < 2; s++) {
        for (int rank = 0; rank < sizes[s]; rank++) {
            size_t n_tensors;
            tensor_source_t *source = open_rank(rank, sizes[s], 7);
            const schema_tensor_t *tensors = tensor_source_tensors(source, &n_tensors);
            assert_int_equal(n_tensors, n_whole);
            for (size_t i = 0; i < n_tensors; i++) {
                size_t bytes, whole_bytes, item_bytes = dtype_bytes(tensors[i].dtype);
                char *slice = read_tensor(source, i, &bytes), *whole = read_tensor(unsliced, i, &whole_bytes);
                n_sliced += bytes < whole_bytes;
                for (size_t item = 0; item < bytes / item_bytes; item++) {
                    int64_t place = whole_index(config, &tensors[i], &wholes[i], rank, sizes[s], (int64_t)item);
                    if (memcmp(slice + item * item_bytes, whole + (size_t)place * item_bytes, item_bytes) != 0)
                        fail_msg("%s on rank %d of %d: item %zu is not item %lld of the whole", tensors[i].path, rank,
                                 sizes[s], item, (long long)place);
                }
                free(slice);
                free(whole);
            }
            tensor_source_close(source);
        }
    }
    assert_true(n_sliced > 6 * 12);
    tensor_source_close(unsliced);
}

static size_t find(tensor_source_t *source, const char *path) {
    size_t n_tensors;
    const schema_tensor_t *tensors = tensor_source_tensors(source, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        if (strcmp(tensors[i].path, path) == 0) return i;
    }
    fail_msg("no %s", path);
    return 0;
}

static void a_seed_is_a_model(void **state) {
    (void)state;
    tensor_source_t *sources[] = {open_rank(0, 1, 0), open_rank(0, 1, 0), open_rank(0, 1, 1)};
    char *data[3];
    size_t bytes;
    for (int i = 0; i < 3; i++)
        data[i] = read_tensor(sources[i], find(sources[i], "/layers/00/mlp_hc/input_mix_weight_up"), &bytes);
    assert_memory_equal(data[0], data[1], bytes);
    assert_memory_not_equal(data[0], data[2], bytes);
    assert_string_equal(tensor_source_info(sources[0])->model_digest, tensor_source_info(sources[1])->model_digest);
    assert_string_not_equal(tensor_source_info(sources[0])->model_digest, tensor_source_info(sources[2])->model_digest);
    /* two datasets of one model differ */
    free(data[1]);
    data[1] = read_tensor(sources[1], find(sources[1], "/layers/01/mlp_hc/input_mix_weight_up"), &bytes);
    assert_memory_not_equal(data[0], data[1], bytes);
    for (int i = 0; i < 3; i++) {
        free(data[i]);
        tensor_source_close(sources[i]);
    }
}

/* Least, largest and mean square of a BF16 or F32 tensor. */
static double range_of(tensor_source_t *source, const char *path, double *least, double *largest) {
    size_t index = find(source, path), n_tensors, bytes;
    dtype_t dtype = tensor_source_tensors(source, &n_tensors)[index].dtype;
    void *data = read_tensor(source, index, &bytes);
    size_t n = bytes / dtype_bytes(dtype);
    double squares = 0.0;
    *least = INFINITY;
    *largest = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        double value = dtype == DTYPE_F32 ? ((float *)data)[i] : bf16_to_float(((uint16_t *)data)[i]);
        if (value < *least) *least = value;
        if (value > *largest) *largest = value;
        squares += value * value;
    }
    free(data);
    return squares / (double)n;
}

static void assert_range(tensor_source_t *source, const char *path, double low, double high) {
    double least, largest;
    range_of(source, path, &least, &largest);
    if (!(least >= low && largest <= high && largest > least)) fail_msg("%s: %g ... %g", path, least, largest);
}

/* With a reach of g, y = W x has g times the magnitude of x: rows of W have the square sum g^2. */
static void assert_reach(tensor_source_t *source, const char *path, double n_columns, double reach) {
    double least, largest, mean_square = range_of(source, path, &least, &largest);
    double found = sqrt(mean_square * n_columns);
    if (!(found > 0.9 * reach && found < 1.1 * reach)) fail_msg("%s: reach %g instead of %g", path, found, reach);
}

static void values_are_what_a_model_has(void **state) {
    (void)state;
    tensor_source_t *source = open_rank(0, 1, 0);
    assert_range(source, "/layers/00/attn_hc/hc_norm", -0.101, 0.101);
    assert_range(source, "/layers/00/gdn/norm", 0.899, 1.101);
    assert_range(source, "/layers/00/gdn/A_log", 0.0, 2.81);
    assert_range(source, "/layers/00/gdn/dt_bias", -6.01, -1.99);
    assert_range(source, "/layers/01/qsa/q_norm", -0.101, 0.101);
    assert_reach(source, "/layers/00/gdn/in_proj_qkv", 32, 2);
    assert_reach(source, "/layers/00/attn_hc/input_mix_weight_down", 64, 2); /* hc_count */
    assert_reach(source, "/layers/01/moe/router", 32, 4);
    double least, largest;
    range_of(source, "/ple/00/table_scale", &least, &largest);
    assert_true(least > 0.42 && least < 0.44);

    size_t bytes;
    uint8_t *scales = read_tensor(source, find(source, "/layers/00/moe/gate_up_scales"), &bytes);
    uint8_t *codes = NULL;
    for (size_t i = 0; i < bytes; i++)
        assert_in_range(e4m3_values[scales[i]] * 1000, 500, 1875);
    size_t code_bytes, scale_2_bytes;
    codes = read_tensor(source, find(source, "/layers/00/moe/gate_up_codes"), &code_bytes);
    float *scale_2 = read_tensor(source, find(source, "/layers/00/moe/gate_up_scale_2"), &scale_2_bytes);
    assert_int_equal(scale_2_bytes, 12 * 2 * sizeof(float));
    assert_int_equal(code_bytes, bytes * NVFP4_BLOCK / 2);
    /* The matrices as they are computed with: gate and up of 12 experts, 64 rows of 32. */
    double squares = 0.0;
    for (size_t row = 0; row < 12 * 128; row++) {
        float values[32];
        nvfp4_dequantize(codes + row * 16, scales + row * 2, scale_2[row / 64], 32, values);
        for (int i = 0; i < 32; i++)
            squares += (double)values[i] * values[i];
    }
    double reach = sqrt(squares / (12 * 128));
    assert_true(reach > 1.8 && reach < 2.2);
    free(scales);
    free(codes);
    free(scale_2);

    uint8_t *table = read_tensor(source, find(source, "/ple/00/table"), &bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_in_range(fabsf(e4m3_values[table[i]]) * 100, 100, 375);
    free(table);
    tensor_source_close(source);
}

static void assert_refused(const char *name, int tp_size, status_t expected) {
    tensor_source_t *source = NULL;
    const tensor_source_args_t args = {.model = name, .tp_size = tp_size};
    assert_int_equal(tensor_source_open(&args, &source), expected);
    assert_string_not_equal(status_message(), "");
    status_clear();
}

static void names_find_their_config(void **state) {
    (void)state;
    model_config_t config;
    char *config_json;
    assert_int_equal(synthetic_config("full", &config, &config_json), STATUS_OK);
    assert_int_equal(config.hidden_size, 2560);
    assert_int_equal(config.num_hidden_layers, 48);
    memory_free(config_json);
    assert_int_equal(synthetic_config("nano", &config, &config_json), STATUS_OK);
    memory_free(config_json);
    assert_refused("synthetic:none", 1, STATUS_USAGE);
    assert_refused("synthetic:/none/config.json", 1, STATUS_INPUT);
    assert_refused(model, 3, STATUS_USAGE); /* does not divide */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_equal_the_whole),
        cmocka_unit_test(a_seed_is_a_model),
        cmocka_unit_test(values_are_what_a_model_has),
        cmocka_unit_test(names_find_their_config),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
