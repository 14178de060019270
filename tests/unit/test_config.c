#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "support/model_configs.h"

static json_t *parse(const char *text) {
    json_t *root;
    assert_int_equal(json_read_text(text, strlen(text), "test", &root), STATUS_OK);
    return root;
}

static void test_real_model(void **state) {
    (void)state;
    json_t *root = parse(REAL_CONFIG);
    model_config_t config;
    assert_int_equal(config_parse(root, "config.json", STATUS_INPUT, &config), STATUS_OK);
    json_decref(root);
    assert_int_equal(config.vocab_size, 248320);
    assert_int_equal(config.hidden_size, 2560);
    assert_int_equal(config.num_hidden_layers, 48);
    int n_qsa = 0;
    for (int i = 0; i < 48; i++)
        n_qsa += config.layer_types[i] == LAYER_QSA;
    assert_int_equal(n_qsa, 12);
    assert_int_equal(config.layer_types[2], LAYER_GDN);
    assert_int_equal(config.layer_types[3], LAYER_QSA);
    assert_int_equal(config.layer_types[47], LAYER_QSA);
    assert_int_equal(config.rotary_dim, 64);
    assert_true(config.rope_theta == 1e7);
    assert_int_equal(config.output_gate_type, GATE_SIGMOID);
    assert_int_equal(config.n_ple_layers, 1);
    assert_int_equal(config.ple_layers[0], 1);
    assert_int_equal(config.eos_token_id, 248044);
    assert_int_equal(config.seed, 1234);
    assert_true(config.norm_topk_prob);
    assert_int_equal(config_n_ngram_heads(&config), 16);
    int64_t ple_index = -1;
    assert_false(config_ple_index(&config, 0, &ple_index));
    assert_true(config_ple_index(&config, 1, &ple_index));
    assert_int_equal(ple_index, 0);
}

static void test_text_config_alone(void **state) {
    (void)state;
    json_t *root = parse(REAL_TEXT_CONFIG);
    model_config_t config;
    assert_int_equal(config_parse(root, "config.json", STATUS_INPUT, &config), STATUS_OK);
    assert_int_equal(config.num_experts, 512);
    json_decref(root);
}

/* Parses the small config with members of text_config replaced by those of `changes` (null removes). */
static status_t parse_changed(const char *changes, model_config_t *config) {
    json_t *root = parse(SMALL_CONFIG), *updates = parse(changes);
    json_t *text = json_object_get(root, "text_config"), *value;
    const char *key;
    json_object_foreach(updates, key, value) {
        if (json_is_null(value))
            json_object_del(text, key);
        else
            json_object_set(text, key, value);
    }
    status_t status = config_parse(root, "config.json", STATUS_INPUT, config);
    json_decref(updates);
    json_decref(root);
    return status;
}

static void test_reference_defaults(void **state) {
    (void)state;
    model_config_t config;
    assert_int_equal(parse_changed("{\"output_gate_type\": null, \"ple_embed_dim\": null}", &config), STATUS_OK);
    assert_int_equal(config.output_gate_type, GATE_SILU);
    assert_int_equal(config.ple_embed_dim, 32);
    assert_int_equal(parse_changed("{\"seed\": 7, \"norm_topk_prob\": false}", &config), STATUS_OK);
    assert_int_equal(config.seed, 7);
    assert_false(config.norm_topk_prob);
    assert_int_equal(parse_changed("{\"eos_token_id\": [17, 90]}", &config), STATUS_OK);
    assert_int_equal(config.eos_token_id, 17);
    assert_int_equal(parse_changed("{\"layer_types\": null, \"num_hidden_layers\": 5}", &config), STATUS_OK);
    assert_int_equal(config.layer_types[3], LAYER_QSA);
    assert_int_equal(config.layer_types[4], LAYER_GDN);
    assert_int_equal(parse_changed("{\"ple_layer_ids\": [], \"ngram_size\": null, \"eos_token_id\": null}", &config),
                     STATUS_OK);
    assert_int_equal(config.n_ple_layers, 0);
    assert_int_equal(parse_changed("{\"layer_types\": [\"linear_attention\", \"linear_attention\"],"
                                   " \"ple_layer_ids\": [2, 1, 2], \"indexer_n_heads\": null}",
                                   &config),
                     STATUS_OK);
    assert_int_equal(config.n_ple_layers, 2);
    assert_int_equal(config.ple_layers[0], 0);
    assert_int_equal(config.ple_layers[1], 1);
    assert_int_equal(parse_changed("{\"layer_types\": [\"linear_attention\", \"indexed_attention\"]}", &config),
                     STATUS_OK);
    assert_int_equal(config.layer_types[1], LAYER_QSA);
}

/* What must be refused, and the word that its message must hold. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *changes, *word;
    } cases[] = {
        {"{\"hidden_size\": null}", "hidden_size"},
        {"{\"hidden_size\": \"32\"}", "hidden_size"},
        {"{\"hidden_size\": 32.5}", "hidden_size"},
        {"{\"hidden_size\": 0}", "hidden_size"},
        {"{\"hidden_size\": -32}", "hidden_size"},
        {"{\"num_hidden_layers\": 3}", "layer_types"},
        {"{\"num_hidden_layers\": 100000}", "num_hidden_layers"},
        {"{\"layer_types\": [\"linear_attention\", \"sliding_attention\"]}", "sliding_attention"},
        {"{\"layer_types\": [\"linear_attention\", 3]}", "layer_types"},
        {"{\"linear_num_value_heads\": 10}", "linear_num_value_heads"},
        {"{\"num_key_value_heads\": 3}", "num_attention_heads"},
        {"{\"num_experts_per_tok\": 13}", "num_experts_per_tok"},
        {"{\"hc_count\": 1}", "hc_count"},
        {"{\"rms_norm_eps\": 0}", "rms_norm_eps"},
        {"{\"hidden_act\": \"gelu\"}", "gelu"},
        {"{\"output_gate_type\": \"tanh\"}", "tanh"},
        {"{\"attention_bias\": true}", "attention_bias"},
        {"{\"tie_word_embeddings\": true}", "tie_word_embeddings"},
        {"{\"sliding_window\": 4096}", "sliding_window"},
        {"{\"attn_output_gate\": false}", "output gate"},
        {"{\"mlp_only_layers\": [0]}", "mlp_only_layers"},
        {"{\"mamba_ssm_dtype\": \"bfloat16\"}", "mamba_ssm_dtype"},
        {"{\"model_type\": \"qwen3_next\"}", "qwen3_next"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000}}", "yarn"},
        {"{\"rope_parameters\": {\"rope_theta\": 10000, \"partial_rotary_factor\": 0.2}}", "head_dim"},
        {"{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor"},
        {"{\"rope_parameters\": {\"rope_theta\": 10000, \"partial_rotary_factor\": 1.0}}", "indexer_head_dim"},
        {"{\"indexer_kv_heads\": 2}", "indexer_kv_heads"},
        {"{\"indexer_budget\": 18}", "indexer_budget"},
        {"{\"indexer_budget\": null}", "indexer_budget"},
        {"{\"ple_layer_ids\": [0]}", "ple_layer_ids"},
        {"{\"ple_layer_ids\": [3]}", "ple_layer_ids"},
        {"{\"ple_layer_ids\": [2]}", "PLE on layer 1"},
        {"{\"ple_embed_dim\": 30}", "ple_embed_dim"},
        {"{\"heads_per_ngram\": 200}", "n-gram heads"},
        {"{\"eos_token_id\": null}", "eos_token_id"},
        {"{\"eos_token_id\": 96}", "eos_token_id"},
        {"{\"eos_token_id\": []}", "eos_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config_t config;
        status_clear();
        assert_int_equal(parse_changed(cases[i].changes, &config), STATUS_INPUT);
        if (!strstr(status_message(), cases[i].word)) fail_msg("%s: %s", cases[i].changes, status_message());
    }
    status_clear();
}

static void test_other_roots(void **state) {
    (void)state;
    static const char *const roots[] = {"[]", "{}", "{\"model_type\": \"qwen4_exp\"}",
                                        "{\"model_type\": \"llama\", \"text_config\": {}}",
                                        "{\"model_type\": \"qwen4_exp\", \"text_config\": []}"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        json_t *root = parse(roots[i]);
        model_config_t config;
        assert_int_equal(config_parse(root, "config.json", STATUS_USAGE, &config), STATUS_USAGE);
        json_decref(root);
        status_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_model),         cmocka_unit_test(test_text_config_alone),
        cmocka_unit_test(test_reference_defaults), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_roots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
