#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/memory.h"
#include "shard/plan.h"
#include "support/model_configs.h"

static model_config_t parse_config(const char *text) {
    json_t *root;
    model_config_t config;
    assert_int_equal(json_read_text(text, strlen(text), "test", &root), STATUS_OK);
    assert_int_equal(config_parse(root, "test", STATUS_INPUT, &config), STATUS_OK);
    json_decref(root);
    return config;
}

static plan_options_t make_options(int tp_size, expert_storage_t storage, int64_t n_shards) {
    plan_options_t options = {.tp_size = tp_size,
                              .expert_format = storage == STORED_NVFP4 ? EXPERTS_NVFP4 : EXPERTS_F16};
    options.inventory.expert_storage = storage;
    options.inventory.ple_dtype = DTYPE_F8_E4M3;
    options.inventory.n_table_shards[0] = n_shards;
    return options;
}

static plan_dataset_t get_dataset(const model_config_t *config, const plan_options_t *options, const char *path) {
    plan_dataset_t dataset;
    assert_int_equal(plan_dataset(config, options, path, &dataset), STATUS_OK);
    return dataset;
}

/* Of every source, each item must go to exactly one part; ranks of one part must get the same. What a rank gets of all
 * sources is the dataset's size in the schema. */
static void check_dataset(const model_config_t *config, const plan_options_t *options, const schema_tensor_t *tensor) {
    int tp_size = options->tp_size;
    plan_dataset_t dataset = get_dataset(config, options, tensor->path);
    int64_t n_items = 1, received[8] = {0};
    for (int i = 0; i < tensor->n_dims; i++)
        n_items *= tensor->shape[i];
    for (int64_t i = 0; i < dataset.n_sources; i++) {
        plan_source_t source;
        plan_source(config, options, &dataset, i, &source);
        int64_t next_row = source.first_row, next_item = 0;
        for (int rank = 0; rank < tp_size; rank++) {
            plan_piece_t piece = plan_piece(&dataset, &source, rank, tp_size);
            received[rank] += piece.n_rows * piece.n_items;
            if (rank % (tp_size / dataset.n_parts) != 0) {
                plan_piece_t before = plan_piece(&dataset, &source, rank - 1, tp_size);
                assert_memory_equal(&piece, &before, sizeof piece);
                continue;
            }
            if (piece.n_rows == 0) continue;
            if (dataset.slice == SLICE_ROWS) {
                assert_int_equal(piece.first_row, next_row);
                assert_int_equal(piece.first_item, 0);
                assert_int_equal(piece.n_items, source.row_items);
                next_row += piece.n_rows;
            } else {
                assert_int_equal(piece.first_row, source.first_row);
                assert_int_equal(piece.n_rows, source.n_rows);
                assert_int_equal(piece.first_item, next_item);
                next_item += piece.n_items;
            }
        }
        if (dataset.slice == SLICE_ROWS)
            assert_int_equal(next_row, source.first_row + source.n_rows);
        else
            assert_int_equal(next_item, source.row_items);
    }
    for (int rank = 0; rank < tp_size && dataset.n_sources; rank++) {
        if (received[rank] != n_items) fail_msg("rank %d of %d: %s", rank, tp_size, tensor->path);
    }
}

static void check_all(const char *config_text, int tp_size, expert_storage_t storage, int64_t n_shards) {
    model_config_t config = parse_config(config_text);
    plan_options_t options = make_options(tp_size, storage, n_shards);
    schema_options_t schema = {0, tp_size, options.expert_format, DTYPE_F8_E4M3};
    schema_tensor_t *tensors;
    size_t n_tensors;
    assert_int_equal(schema_build(&config, &schema, &tensors, &n_tensors), STATUS_OK);
    for (size_t i = 0; i < n_tensors; i++)
        check_dataset(&config, &options, &tensors[i]);
    memory_free(tensors);
}

static void test_parts_make_up_the_real_model(void **state) {
    (void)state;
    for (int tp_size = 1; tp_size <= 8; tp_size *= 2)
        check_all(REAL_CONFIG, tp_size, STORED_NVFP4, 128);
}

static void test_parts_make_up_a_small_model_however_it_is_stored(void **state) {
    (void)state;
    for (int tp_size = 1; tp_size <= 4; tp_size *= 2) {
        check_all(SMALL_CONFIG, tp_size, STORED_NVFP4, 4);
        check_all(SMALL_CONFIG, tp_size, STORED_NVFP4, 7);
        check_all(SMALL_CONFIG, tp_size, STORED_BF16, 0);
        check_all(SMALL_CONFIG, tp_size, STORED_BF16_FUSED, 1);
    }
}

static plan_source_t get_source(const model_config_t *config, const plan_options_t *options,
                                const plan_dataset_t *dataset, int64_t index) {
    plan_source_t source;
    plan_source(config, options, dataset, index, &source);
    return source;
}

/* Rank 1 of 4: 4 of 16 key heads, 12 of 48 value heads, cut out of each of q, k and v. */
static void test_qkv_is_cut_by_segment(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    plan_options_t options = make_options(4, STORED_NVFP4, 128);
    static const char *const paths[] = {"/layers/05/gdn/in_proj_qkv", "/layers/05/gdn/conv1d"};
    for (int i = 0; i < 2; i++) {
        plan_dataset_t dataset = get_dataset(&config, &options, paths[i]);
        assert_int_equal(dataset.n_sources, 3);
        static const int64_t first[3] = {512, 2048 + 512, 4096 + 1536}, n[3] = {512, 512, 1536};
        for (int j = 0; j < 3; j++) {
            plan_source_t source = get_source(&config, &options, &dataset, j);
            assert_int_equal(source.place.layer, 5);
            plan_piece_t piece = plan_piece(&dataset, &source, 1, 4);
            assert_int_equal(piece.first_row, first[j]);
            assert_int_equal(piece.n_rows, n[j]);
        }
    }
}

/* Two KV heads of 256 rows. */
static void test_kv_heads_are_shared(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    for (int tp_size = 1; tp_size <= 8; tp_size *= 2) {
        plan_options_t options = make_options(tp_size, STORED_NVFP4, 128);
        plan_dataset_t dataset = get_dataset(&config, &options, "/layers/03/qsa/v_proj");
        plan_source_t source = get_source(&config, &options, &dataset, 0);
        for (int rank = 0; rank < tp_size; rank++) {
            plan_piece_t piece = plan_piece(&dataset, &source, rank, tp_size);
            assert_int_equal(piece.n_rows, tp_size == 1 ? 512 : 256);
            assert_int_equal(piece.first_row, tp_size == 1 ? 0 : rank / (tp_size / 2) * 256);
        }
    }
    char text[32];
    plan_options_t options = make_options(8, STORED_NVFP4, 128);
    plan_dataset_t dataset = get_dataset(&config, &options, "/layers/03/qsa/v_proj");
    plan_slice_text(&dataset, 5, 8, text, sizeof text);
    assert_string_equal(text, "rows 1/2");
}

/* Down is cut along its last axis, codes and scales alike: 640 inputs are 320 bytes of codes and 40 scales. */
static void test_experts(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    plan_options_t options = make_options(4, STORED_NVFP4, 128);
    plan_dataset_t dataset = get_dataset(&config, &options, "/layers/07/moe/down_codes");
    assert_int_equal(dataset.n_sources, 512);
    plan_source_t source = get_source(&config, &options, &dataset, 300);
    assert_int_equal(source.place.role, ROLE_EXPERT_DOWN);
    assert_int_equal(source.place.item, 300);
    plan_piece_t piece = plan_piece(&dataset, &source, 2, 4);
    assert_int_equal(piece.n_rows, 2560);
    assert_int_equal(piece.first_item, 160);
    assert_int_equal(piece.n_items, 80);
    dataset = get_dataset(&config, &options, "/layers/07/moe/down_scales");
    source = get_source(&config, &options, &dataset, 300);
    piece = plan_piece(&dataset, &source, 2, 4);
    assert_int_equal(piece.first_item, 20);
    assert_int_equal(piece.n_items, 10);

    dataset = get_dataset(&config, &options, "/layers/07/moe/gate_up_scales");
    assert_int_equal(dataset.n_sources, 1024);
    source = get_source(&config, &options, &dataset, 601);
    assert_int_equal(source.place.role, ROLE_EXPERT_UP_SCALE);
    assert_int_equal(source.place.item, 300);
    piece = plan_piece(&dataset, &source, 2, 4);
    assert_int_equal(piece.first_row, 320);
    assert_int_equal(piece.n_rows, 160);
    assert_int_equal(piece.n_items, 160);
}

static void test_fused_experts(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    plan_options_t options = make_options(2, STORED_BF16_FUSED, 128);
    plan_dataset_t dataset = get_dataset(&config, &options, "/layers/07/moe/gate_up");
    assert_int_equal(dataset.conversion, CONVERT_TO_F16);
    plan_source_t source = get_source(&config, &options, &dataset, 5); /* up of expert 2 */
    assert_int_equal(source.place.role, ROLE_EXPERTS_GATE_UP);
    plan_piece_t piece = plan_piece(&dataset, &source, 1, 2);
    assert_int_equal(piece.first_row, 2 * 1280 + 640 + 320);
    assert_int_equal(piece.n_rows, 320);

    options.expert_format = EXPERTS_NVFP4;
    dataset = get_dataset(&config, &options, "/layers/07/moe/down_codes");
    assert_int_equal(dataset.conversion, CONVERT_TO_NVFP4);
    source = get_source(&config, &options, &dataset, 2);
    piece = plan_piece(&dataset, &source, 1, 2);
    assert_int_equal(piece.first_row, 2 * 2560);
    assert_int_equal(piece.first_item, 320);
    assert_int_equal(piece.n_items, 320);
}

/* 320,001,536 rows in 128 shards of 2,500,012 over 4 ranks of 80,000,384: rank 1 begins within shard 32. */
static void test_table_rows(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    plan_options_t options = make_options(4, STORED_NVFP4, 128);
    plan_dataset_t dataset = get_dataset(&config, &options, "/ple/01/table");
    assert_int_equal(dataset.n_sources, 128);
    for (int64_t row = 0; row < 320001536; row += 999983) {
        plan_source_t source = get_source(&config, &options, &dataset, row / 2500012);
        assert_int_equal(source.place.item, row / 2500012);
        int64_t local = row % 2500012;
        for (int rank = 0; rank < 4; rank++) {
            plan_piece_t piece = plan_piece(&dataset, &source, rank, 4);
            bool holds = local >= piece.first_row && local < piece.first_row + piece.n_rows;
            assert_int_equal(holds, row / 80000384 == rank);
        }
    }
    assert_int_equal(inventory_shard_rows(10, 4, 0), 3);
    assert_int_equal(inventory_shard_rows(10, 4, 3), 1);
    assert_int_equal(inventory_shard_rows(9, 6, 5), 0);
}

static void test_unknown_paths(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    plan_options_t options = make_options(4, STORED_NVFP4, 128);
    static const char *const paths[] = {"/",        "/head",    "/layers/00/gdn/unknown",
                                        "/layers/", "/ple/01/", "/ple/01/embed"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        plan_dataset_t dataset;
        assert_int_equal(plan_dataset(&config, &options, paths[i], &dataset), STATUS_INPUT);
        status_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_make_up_the_real_model),
        cmocka_unit_test(test_parts_make_up_a_small_model_however_it_is_stored),
        cmocka_unit_test(test_qkv_is_cut_by_segment),
        cmocka_unit_test(test_kv_heads_are_shared),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_fused_experts),
        cmocka_unit_test(test_table_rows),
        cmocka_unit_test(test_unknown_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
