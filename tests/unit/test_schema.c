#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/memory.h"
#include "shard/schema.h"
#include "support/model_configs.h"

static model_config_t parse_config(const char *text) {
    json_t *root;
    model_config_t config;
    assert_int_equal(json_read_text(text, strlen(text), "test", &root), STATUS_OK);
    assert_int_equal(config_parse(root, "test", STATUS_INPUT, &config), STATUS_OK);
    json_decref(root);
    return config;
}

typedef struct listing {
    schema_tensor_t *tensors;
    size_t n_tensors;
} listing_t;

static listing_t build(const model_config_t *config, schema_options_t options) {
    listing_t listing;
    assert_int_equal(schema_build(config, &options, &listing.tensors, &listing.n_tensors), STATUS_OK);
    return listing;
}

static void assert_tensor(const listing_t *listing, const char *path, dtype_t dtype, int64_t d0, int64_t d1,
                          int64_t d2) {
    for (size_t i = 0; i < listing->n_tensors; i++) {
        const schema_tensor_t *tensor = &listing->tensors[i];
        if (strcmp(tensor->path, path) != 0) continue;
        assert_int_equal(tensor->dtype, dtype);
        assert_int_equal(tensor->n_dims, d2 ? 3 : d1 ? 2 : 1);
        assert_int_equal(tensor->shape[0], d0);
        if (d1) assert_int_equal(tensor->shape[1], d1);
        if (d2) assert_int_equal(tensor->shape[2], d2);
        return;
    }
    fail_msg("%s is not in the list", path);
}

static uint64_t total_bytes(const listing_t *listing) {
    uint64_t total = 0;
    for (size_t i = 0; i < listing->n_tensors; i++) {
        size_t bytes;
        assert_int_equal(schema_tensor_bytes(&listing->tensors[i], &bytes), STATUS_OK);
        total += bytes;
    }
    return total;
}

/* At T = 1 a shard holds the published text tensors, whose bytes are known: 4,947,698,560 BF16 parameters (A_log and
 * dt_bias widen to FP32), the experts without input_scale, the table, and a scale that widens to FP32. */
static void test_real_model_bytes(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    listing_t listing = build(&config, (schema_options_t){0, 1, EXPERTS_NVFP4, DTYPE_F8_E4M3});
    uint64_t dense = 4947698560u * 2 + 36 * 2 * 48 * 2;
    uint64_t experts = 67948314624u - 48u * 512 * 3 * 4;
    assert_true(total_bytes(&listing) == dense + experts + 51200245760u + 4);
    memory_free(listing.tensors);
}

static void test_real_model_four_ranks(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    listing_t listing = build(&config, (schema_options_t){3, 4, EXPERTS_NVFP4, DTYPE_F8_E4M3});
    /* 36 GDN layers of 9 tensors, 12 QSA of 9, 48 x (2 mixers of 4, MoE of 11), 2 + final mixer 3, PLE 8. */
    assert_int_equal(listing.n_tensors, 36 * 9 + 12 * 9 + 48 * (8 + 11) + 5 + 8);
    assert_tensor(&listing, "/embed", DTYPE_BF16, 248320, 2560, 0);
    assert_tensor(&listing, "/lm_head", DTYPE_BF16, 62080, 2560, 0);
    assert_tensor(&listing, "/final_hc/input_mix_weight_down", DTYPE_BF16, 320, 10240, 0);
    assert_tensor(&listing, "/layers/00/attn_hc/block_inject_weight", DTYPE_BF16, 4, 10240, 0);
    assert_tensor(&listing, "/layers/00/gdn/in_proj_qkv", DTYPE_BF16, 2560, 2560, 0);
    assert_tensor(&listing, "/layers/00/gdn/conv1d", DTYPE_BF16, 2560, 4, 0);
    assert_tensor(&listing, "/layers/00/gdn/A_log", DTYPE_F32, 12, 0, 0);
    assert_tensor(&listing, "/layers/00/gdn/out_proj", DTYPE_BF16, 2560, 1536, 0);
    assert_tensor(&listing, "/layers/47/qsa/q_proj", DTYPE_BF16, 3072, 2560, 0);
    assert_tensor(&listing, "/layers/47/qsa/k_proj", DTYPE_BF16, 256, 2560, 0);
    assert_tensor(&listing, "/layers/47/qsa/index_qk_proj", DTYPE_BF16, 640, 2560, 0);
    assert_tensor(&listing, "/layers/47/moe/gate_up_codes", DTYPE_U8, 512, 320, 1280);
    assert_tensor(&listing, "/layers/47/moe/down_codes", DTYPE_U8, 512, 2560, 80);
    assert_tensor(&listing, "/layers/47/moe/down_scales", DTYPE_F8_E4M3, 512, 2560, 10);
    assert_tensor(&listing, "/layers/47/moe/down_scale_2", DTYPE_F32, 512, 0, 0);
    assert_tensor(&listing, "/ple/01/table", DTYPE_F8_E4M3, 80000384, 160, 0);
    assert_tensor(&listing, "/ple/01/conv1d", DTYPE_BF16, 10240, 4, 0);
    memory_free(listing.tensors);
}

static void test_f16_experts_and_bf16_table(void **state) {
    (void)state;
    model_config_t config = parse_config(SMALL_CONFIG);
    listing_t listing = build(&config, (schema_options_t){0, 2, EXPERTS_F16, DTYPE_BF16});
    assert_tensor(&listing, "/layers/01/moe/gate_up", DTYPE_F16, 12, 64, 32);
    assert_tensor(&listing, "/layers/01/moe/down", DTYPE_F16, 12, 32, 32);
    /* primes 53 59 61 67 = 240, a multiple of 16 */
    assert_tensor(&listing, "/ple/00/table", DTYPE_BF16, 120, 8, 0);
    memory_free(listing.tensors);
}

static void test_ranks_that_do_not_divide(void **state) {
    (void)state;
    model_config_t config = parse_config(REAL_CONFIG);
    static const struct {
        int tp_size;
        bool divides;
    } cases[] = {{1, true},   {2, true},  {4, true},  {8, true},  {0, false},
                 {-1, false}, {3, false}, {5, false}, {16, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        status_t status = schema_check_tp(&config, cases[i].tp_size, STATUS_USAGE);
        assert_int_equal(status, cases[i].divides ? STATUS_OK : STATUS_USAGE);
        status_clear();
    }
    /* 8 ranks of the small model leave 8 rows of each expert: half an NVFP4 block. */
    model_config_t small = parse_config(SMALL_CONFIG);
    small.linear_num_key_heads = small.num_attention_heads = 8;
    schema_options_t options = {0, 8, EXPERTS_NVFP4, DTYPE_F8_E4M3};
    assert_int_equal(schema_check(&small, &options, STATUS_INPUT), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "NVFP4"));
    status_clear();
    options.expert_format = EXPERTS_F16;
    assert_int_equal(schema_check(&small, &options, STATUS_INPUT), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_model_bytes),
        cmocka_unit_test(test_real_model_four_ranks),
        cmocka_unit_test(test_f16_experts_and_bf16_table),
        cmocka_unit_test(test_ranks_that_do_not_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
