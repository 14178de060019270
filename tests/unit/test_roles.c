#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "checkpoint/roles.h"
#include "support/model_configs.h"

static void test_names_come_back(void **state) {
    (void)state;
    for (int role = 0; role < ROLE_N; role++) {
        model_config_t two_layers = {.num_hidden_layers = 48, .num_experts = 512};
        bool has_layer = role_n_layers((role_t)role, &two_layers) > 1;
        bool has_item = role_n_items((role_t)role, &two_layers) > 1 || role == ROLE_PLE_TABLE_SHARD;
        role_place_t place = {(role_t)role, has_layer ? 17 : 0, has_item ? 105 : 0};
        char name[ROLE_NAME_BYTES];
        role_name(place, name);
        role_place_t parsed = role_parse(name);
        if (parsed.role != place.role || parsed.layer != place.layer || parsed.item != place.item)
            fail_msg("%s is taken for role %d, layer %d, item %d", name, parsed.role, (int)parsed.layer,
                     (int)parsed.item);
    }
}

static void test_published_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        role_place_t place;
    } cases[] = {
        {"lm_head.weight", {ROLE_LM_HEAD, 0, 0}},
        {"model.language_model.embed_tokens.weight", {ROLE_EMBED, 0, 0}},
        {"model.language_model.hyper_connection_mixer.hc_norm.weight", {ROLE_FINAL_HC_NORM, 0, 0}},
        {"model.language_model.layers.47.mlp_hyper_connection.block_inject_weight.weight", {ROLE_MLP_HC_INJECT, 47, 0}},
        {"model.language_model.layers.0.linear_attn.A_log", {ROLE_GDN_A_LOG, 0, 0}},
        {"model.language_model.layers.3.self_attn.indexer.k_layernorm.weight", {ROLE_QSA_INDEX_K_NORM, 3, 0}},
        {"model.language_model.layers.12.mlp.gate.weight", {ROLE_ROUTER, 12, 0}},
        {"model.language_model.layers.12.mlp.experts.511.up_proj.weight_scale_2", {ROLE_EXPERT_UP_SCALE_2, 12, 511}},
        {"model.language_model.layers.12.mlp.experts.0.down_proj.input_scale", {ROLE_EXPERT_DOWN_INPUT_SCALE, 12, 0}},
        {"model.language_model.layers.5.mlp.experts.gate_up_proj", {ROLE_EXPERTS_GATE_UP, 5, 0}},
        {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight",
         {ROLE_PLE_TABLE_SHARD, 1, 127}},
        {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale", {ROLE_PLE_TABLE_SCALE, 1, 0}},
        {"mtp.layers.0.mlp.gate.weight", {ROLE_MTP, 0, 0}},
        {"mtp.layers.0.mlp.experts.3.gate_proj.weight_scale_inv", {ROLE_MTP, 0, 0}},
        {"model.visual.blocks.0.attn.qkv.bias", {ROLE_VISUAL, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        role_place_t parsed = role_parse(cases[i].name);
        if (parsed.role != cases[i].place.role) fail_msg("%s is taken for role %d", cases[i].name, parsed.role);
        assert_int_equal(parsed.layer, cases[i].place.layer);
        assert_int_equal(parsed.item, cases[i].place.item);
    }
}

/* Near misses: whole names count, numbers are written one way only. */
static void test_names_of_nothing(void **state) {
    (void)state;
    static const char *const names[] = {
        "",
        "model",
        "mtp",
        "model.visual",
        "lm_head.weight2",
        "model.lm_head.weight",
        "language_model.embed_tokens.weight",
        "layers.0.mlp.gate.weight",
        "model.layers.0.mlp.gate.weight",
        "model.language_model.layers.0.mlp.gate.weight.",
        "model.language_model.layers..mlp.gate.weight",
        "model.language_model.layers.-1.mlp.gate.weight",
        "model.language_model.layers.01.mlp.gate.weight",
        "model.language_model.layers.+1.mlp.gate.weight",
        "model.language_model.layers.9999999999.mlp.gate.weight",
        "model.language_model.layers.1mlp.gate.weight",
        "model.language_model.layers.0.mlp.experts.gate_proj.weight",
        "model.language_model.layers.0.mlp.experts.00.gate_proj.weight",
        "model.language_model.layers.0.mlp.experts.1.gate_proj",
        "model.language_model.layers.0.mlp.experts.1.gate_up_proj",
        "model.language_model.layers.0.mlp.experts.1.mlp.gate.weight",
        "model.language_model.layers.0.key_proj.weight",
        "model.language_model.layers.0.ple.mlp.gate.weight",
        "model.language_model.layers.0.ple.ple_embedding.ngram_embedding.shard_.weight",
        "model.language_model.layers.0.ple.ple_embedding.ngram_embedding.shard_1",
        "model.language_model.layers.0.ple.ple_embedding.ngram_embedding.shards.1.weight",
        "model.language_model.layers.0.input_layernorm.weight",
        "model.language_model.norm.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (role_parse(names[i]).role != ROLE_UNKNOWN) fail_msg("%s is taken for a tensor", names[i]);
    }
}

static model_config_t real_config(void) {
    json_t *root;
    model_config_t config;
    assert_int_equal(json_read_text(REAL_CONFIG, strlen(REAL_CONFIG), "test", &root), STATUS_OK);
    assert_int_equal(config_parse(root, "test", STATUS_INPUT, &config), STATUS_OK);
    json_decref(root);
    return config;
}

/* The published number of text tensors is 1,199 beside the experts and 294,912 of experts; 128 of the former are table
 * shards. */
static void test_real_model_has_the_published_number_of_tensors(void **state) {
    (void)state;
    model_config_t config = real_config();
    size_t n_experts = 0, n_others = 0;
    for (int role = 0; role < ROLE_N; role++) {
        int64_t n_items = role_n_items((role_t)role, &config);
        for (int64_t layer = 0; layer < role_n_layers((role_t)role, &config); layer++) {
            if (!role_exists((role_place_t){(role_t)role, layer, 0}, &config, STORED_NVFP4)) continue;
            if (n_items > 1)
                n_experts += (size_t)n_items;
            else if (role != ROLE_PLE_TABLE)
                n_others += role == ROLE_PLE_TABLE_SHARD ? 128 : 1;
        }
    }
    assert_int_equal(n_experts, 294912);
    assert_int_equal(n_others, 1199);
}

static void assert_expectation(role_t role, expert_storage_t storage, dtype_t dtype, int64_t d0, int64_t d1,
                               int64_t d2) {
    model_config_t config = real_config();
    role_expectation_t expected = role_expect(role, &config, storage);
    assert_true(expected.dtypes & 1u << dtype);
    assert_int_equal(expected.n_dims, (d0 != 0) + (d1 != 0) + (d2 != 0));
    if (d0) assert_int_equal(expected.shape[0], d0);
    if (d1) assert_int_equal(expected.shape[1], d1);
    if (d2) assert_int_equal(expected.shape[2], d2);
}

static void test_published_shapes(void **state) {
    (void)state;
    assert_expectation(ROLE_LM_HEAD, STORED_NVFP4, DTYPE_BF16, 248320, 2560, 0);
    assert_expectation(ROLE_ATTN_HC_DOWN, STORED_NVFP4, DTYPE_BF16, 320, 10240, 0);
    assert_expectation(ROLE_ATTN_HC_INJECT, STORED_NVFP4, DTYPE_BF16, 4, 10240, 0);
    assert_expectation(ROLE_GDN_IN_PROJ_QKV, STORED_NVFP4, DTYPE_BF16, 10240, 2560, 0);
    assert_expectation(ROLE_GDN_CONV1D, STORED_NVFP4, DTYPE_BF16, 10240, 1, 4);
    assert_expectation(ROLE_GDN_A_LOG, STORED_NVFP4, DTYPE_BF16, 48, 0, 0);
    assert_expectation(ROLE_GDN_A_LOG, STORED_NVFP4, DTYPE_F32, 48, 0, 0);
    assert_expectation(ROLE_QSA_Q_PROJ, STORED_NVFP4, DTYPE_BF16, 12288, 2560, 0);
    assert_expectation(ROLE_QSA_K_PROJ, STORED_NVFP4, DTYPE_BF16, 512, 2560, 0);
    assert_expectation(ROLE_QSA_INDEX_QK_PROJ, STORED_NVFP4, DTYPE_BF16, 640, 2560, 0);
    assert_expectation(ROLE_EXPERT_UP, STORED_NVFP4, DTYPE_U8, 640, 1280, 0);
    assert_expectation(ROLE_EXPERT_DOWN, STORED_NVFP4, DTYPE_U8, 2560, 320, 0);
    assert_expectation(ROLE_EXPERT_DOWN, STORED_BF16, DTYPE_BF16, 2560, 640, 0);
    assert_expectation(ROLE_EXPERT_GATE, STORED_BF16, DTYPE_BF16, 640, 2560, 0);
    assert_expectation(ROLE_EXPERT_GATE_SCALE, STORED_NVFP4, DTYPE_F8_E4M3, 640, 160, 0);
    assert_expectation(ROLE_EXPERT_DOWN_SCALE, STORED_NVFP4, DTYPE_F8_E4M3, 2560, 40, 0);
    assert_expectation(ROLE_EXPERT_DOWN_SCALE_2, STORED_NVFP4, DTYPE_F32, 0, 0, 0);
    assert_expectation(ROLE_EXPERTS_GATE_UP, STORED_BF16_FUSED, DTYPE_BF16, 512, 1280, 2560);
    assert_expectation(ROLE_PLE_KEY_PROJ, STORED_NVFP4, DTYPE_BF16, 10240, 2560, 0);
    assert_expectation(ROLE_PLE_HEAD_SIZES, STORED_NVFP4, DTYPE_I64, 16, 0, 0);
    assert_expectation(ROLE_PLE_TABLE_SHARD, STORED_NVFP4, DTYPE_F8_E4M3, -1, 160, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_come_back),  cmocka_unit_test(test_published_names),
        cmocka_unit_test(test_names_of_nothing), cmocka_unit_test(test_real_model_has_the_published_number_of_tensors),
        cmocka_unit_test(test_published_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
