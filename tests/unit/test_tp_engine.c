/* The engine's contract on 1, 2, 4 and 8 ranks: limits, faults that one rank meets alone, and what is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "engine/engine.h"
#include "shard/shard_file.h"
#include "support/all_ranks.h"
#include "support/golden_model.h"
#include "support/model_shards.h"

static comm_t *comm;
static backend_t *backend;
static char directory[MODEL_SHARDS_BYTES];
static const int32_t prompt[] = {17, 4, 250, 31, 8, 99, 140, 3};
enum { N_PROMPT = sizeof prompt / sizeof *prompt };
static const sampling_t greedy = {.top_p = 1.0};

static engine_args_t engine_args(void) {
    return (engine_args_t){.model = directory, .comm = comm, .backend = backend, .max_context = 64};
}

static engine_t *create(const engine_args_t *args) {
    engine_t *engine;
    assert_all_ok(comm, engine_create(args, &engine));
    return engine;
}

static int setup(void **state) {
    (void)state;
    return model_shards_create(comm, GOLDEN_DIRECTORY "/tp8/checkpoint", false, directory) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    model_shards_remove(comm, directory);
    return 0;
}

/* Opens the last rank's shard for a change; rank 0 alone does so. */
static hid_t open_last_shard(char path[SHARD_PATH_BYTES]) {
    int tp_size = comm_tp_size(comm);
    assert_int_equal(shard_file_path(directory, tp_size - 1, tp_size, path), STATUS_OK);
    h5_init();
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

/* Writes `bytes` over the start of lm_head in the last rank's shard; its old bytes go to `old`. With `sign` the digest
 * is made to fit. */
static void overwrite_lm_head(const void *bytes, size_t n_bytes, bool sign, void *old) {
    if (comm_tp_rank(comm) == 0) {
        char path[SHARD_PATH_BYTES], text[HASH_XXH3_TEXT_BYTES];
        hid_t file = open_last_shard(path);
        hid_t dataset = H5Dopen2(file, "/lm_head", H5P_DEFAULT);
        size_t size = H5Dget_storage_size(dataset);
        unsigned char *data = malloc(size);
        assert_non_null(data);
        hid_t type = H5Dget_type(dataset);
        assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
        memcpy(old, data, n_bytes);
        memcpy(data, bytes, n_bytes);
        assert_true(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
        hash_xxh3_text(hash_xxh3(data, size), text);
        if (sign) assert_true(h5_put_text(dataset, "xxh3_64", text) >= 0);
        free(data);
        H5Tclose(type);
        H5Dclose(dataset);
        H5Fclose(file);
    }
    comm_barrier(comm);
}

static void test_limits_change_nothing(void **state) {
    (void)state;
    engine_args_t args = engine_args();
    args.max_context = N_PROMPT + 2;
    engine_t *engine = create(&args);
    sample_t sample;
    assert_all_fail(comm, engine_sample(engine, &greedy, STATUS_OK, &sample), STATUS_USAGE);
    assert_all_fail(comm, engine_forward(engine, prompt, 0), STATUS_USAGE);
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
    assert_all_ok(comm, engine_sample(engine, &greedy, STATUS_OK, &sample));
    int32_t token = sample.token;

    assert_all_fail(comm, engine_forward(engine, (const int32_t[]){1, 2, 3}, 3), STATUS_USAGE);
    assert_all_fail(comm, engine_forward(engine, (const int32_t[]){1, -1}, 2), STATUS_USAGE);
    assert_all_fail(comm, engine_forward(engine, (const int32_t[]){320}, 1), STATUS_USAGE);
    assert_int_equal(engine_position(engine), N_PROMPT);
    assert_all_ok(comm, engine_sample(engine, &greedy, STATUS_OK, &sample));
    assert_int_equal(sample.token, token);
    assert_all_ok(comm, engine_forward(engine, (const int32_t[]){319, 0}, 2));
    assert_int_equal(engine_position(engine), N_PROMPT + 2);
    assert_all_fail(comm, engine_forward(engine, prompt, 1), STATUS_USAGE);
    engine_destroy(engine);
}

/* The same tokens as by engine_forward and engine_sample, up to the end of the context, greedy and drawn. */
static void test_decode_next(void **state) {
    (void)state;
    static const sampling_t ways[] = {{.top_p = 1.0}, {.temperature = 1.0, .top_p = 0.9, .seed = 5}};
    enum { N_NEW = 6 };
    engine_args_t args = engine_args();
    args.max_context = N_PROMPT + N_NEW - 1;
    engine_t *engine = create(&args);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        const decode_args_t decode = {.sampling = &ways[way]};
        int32_t tokens[N_NEW];
        sample_t sample;
        assert_all_ok(comm, engine_reset(engine));
        assert_all_fail(comm, engine_decode_next(engine, &decode, &sample), STATUS_USAGE);
        assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
        for (int i = 0; i < N_NEW; i++) {
            assert_all_ok(comm, engine_decode_next(engine, &decode, &sample));
            tokens[i] = sample.token;
        }
        assert_all_fail(comm, engine_decode_next(engine, &decode, &sample), STATUS_USAGE);

        assert_all_ok(comm, engine_reset(engine));
        assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
        for (int i = 0; i < N_NEW; i++) {
            if (i > 0) assert_all_ok(comm, engine_forward(engine, &tokens[i - 1], 1));
            assert_all_ok(comm, engine_sample(engine, &ways[way], STATUS_OK, &sample));
            assert_int_equal(sample.token, tokens[i]);
        }
    }
    engine_destroy(engine);
}

static void test_bad_settings(void **state) {
    (void)state;
    engine_t *engine = NULL;
    engine_args_t args = engine_args();
    args.max_context = 1 << 30;
    assert_all_fail(comm, engine_create(&args, &engine), STATUS_USAGE);
    args = engine_args();
    args.n_valid_tokens = 321;
    assert_all_fail(comm, engine_create(&args, &engine), STATUS_INPUT);
    args = engine_args();
    args.prefill_chunk = -1;
    assert_all_fail(comm, engine_create(&args, &engine), STATUS_USAGE);
    args = engine_args();
    args.model = "/nonexistent";
    assert_all_fail(comm, engine_create(&args, &engine), STATUS_INPUT);
    assert_null(engine);

    args = engine_args();
    engine = create(&args);
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
    static const sampling_t bad[] = {
        {.temperature = -1.0, .top_p = 1.0},
        {.temperature = NAN, .top_p = 1.0},
        {.temperature = 1.0, .top_p = 0.0},
        {.temperature = 1.0, .top_p = 1.5},
        {.temperature = 1.0, .top_p = 1.0, .top_k = -1},
        {.top_p = 1.0, .n_top_logprobs = 321},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sample_t sample;
        assert_all_fail(comm, engine_sample(engine, &bad[i], STATUS_OK, &sample), STATUS_USAGE);
    }
    engine_destroy(engine);
}

static void test_memory_is_asked_for_first(void **state) {
    (void)state;
    size_t needed[MEMORY_N_LABELS] = {[MEMORY_WEIGHTS] = 1000, [MEMORY_KV_CACHE] = (size_t)1 << 50};
    assert_all_fail(comm, backend->ops->check_memory(backend, needed), STATUS_MEMORY);
    needed[MEMORY_KV_CACHE] = SIZE_MAX;
    assert_all_fail(comm, backend->ops->check_memory(backend, needed), STATUS_MEMORY);
    needed[MEMORY_KV_CACHE] = 1000;
    assert_all_ok(comm, backend->ops->check_memory(backend, needed));
    /* All ranks of a host together. */
    needed[MEMORY_KV_CACHE] = memory_available_bytes() / 3 * 2;
    if (comm_local_size(comm) > 1)
        assert_all_fail(comm, backend->ops->check_memory(backend, needed), STATUS_MEMORY);
    else
        assert_all_ok(comm, backend->ops->check_memory(backend, needed));
}

/* Nothing is allocated once the engine stands, and everything is given back. */
static void test_memory_is_steady(void **state) {
    (void)state;
    size_t before[MEMORY_N_LABELS], during[MEMORY_N_LABELS];
    for (int label = 0; label < MEMORY_N_LABELS; label++)
        before[label] = memory_bytes((memory_label_t)label);
    engine_args_t args = engine_args();
    engine_t *engine = create(&args);
    for (int label = 0; label < MEMORY_N_LABELS; label++)
        during[label] = memory_bytes((memory_label_t)label);
    size_t peak = memory_peak_bytes();
    const sampling_t sampling = {.temperature = 1.0, .top_p = 0.9, .keep_logits = true, .n_top_logprobs = 5};
    sample_t sample;
    for (int i = 0; i < 3; i++) {
        assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
        assert_all_ok(comm, engine_sample(engine, &sampling, STATUS_OK, &sample));
    }
    for (int label = 0; label < MEMORY_N_LABELS; label++)
        assert_all_true(comm, memory_bytes((memory_label_t)label) == during[label]);
    assert_all_true(comm, memory_peak_bytes() == peak);
    engine_destroy(engine);
    for (int label = 0; label < MEMORY_N_LABELS; label++)
        assert_all_true(comm, memory_bytes((memory_label_t)label) == before[label]);
}

static void test_padding_is_never_chosen(void **state) {
    (void)state;
    engine_args_t args = engine_args();
    args.n_valid_tokens = 10; /* with 8 ranks of 40 ids, seven hold padding only */
    engine_t *engine = create(&args);
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
    const sampling_t with_logits = {.top_p = 1.0, .keep_logits = true, .n_top_logprobs = 10};
    sample_t sample;
    assert_all_ok(comm, engine_sample(engine, &with_logits, STATUS_OK, &sample));
    bool is_best = sample.token >= 0 && sample.token < 10, is_largest_padding = false;
    for (int32_t i = 0; sample.logits && i < 320; i++) {
        if (i < 10) is_best = is_best && sample.logits[i] <= sample.logits[sample.token];
        if (i >= 10) is_largest_padding = is_largest_padding || sample.logits[i] > sample.logits[sample.token];
    }
    assert_all_true(comm, is_best);
    assert_all_true(comm, is_largest_padding || comm_tp_rank(comm) != 0);
    bool is_valid = true;
    for (int i = 0; sample.top_tokens && i < 10; i++)
        is_valid = is_valid && sample.top_tokens[i] < 10;
    sampling_t hot = {.temperature = 100.0, .top_p = 1.0};
    bool seen[10] = {false};
    for (hot.seed = 0; hot.seed < 200; hot.seed++) {
        assert_all_ok(comm, engine_sample(engine, &hot, STATUS_OK, &sample));
        is_valid = is_valid && sample.token >= 0 && sample.token < 10;
        if (is_valid) seen[sample.token] = true;
    }
    assert_all_true(comm, is_valid);
    for (int i = 0; i < 10; i++)
        assert_true(seen[i]);
    engine_destroy(engine);
}

static void test_answers_agree(void **state) {
    (void)state;
    engine_args_t args = engine_args();
    engine_t *engine = create(&args);
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
    const sampling_t full = {.top_p = 1.0, .keep_logits = true, .n_top_logprobs = 320};
    sample_t sample;
    assert_all_ok(comm, engine_sample(engine, &full, STATUS_OK, &sample));
    int32_t token = sample.token;
    bool is_root = comm_tp_rank(comm) == 0, is_right = true;
    assert_all_true(comm, is_root == (sample.logits != NULL) && is_root == (sample.pairs != NULL));
    if (is_root) {
        int64_t rank_vocab = 320 / comm_tp_size(comm);
        is_right = sample.top_tokens[0] == token && sample.pairs[token / rank_vocab].token == token;
        double sum = 0.0, total = 0.0;
        for (int i = 0; i < 320; i++)
            sum += exp(sample.logits[i]);
        for (int i = 0; i < 320; i++) {
            float logit = sample.logits[sample.top_tokens[i]];
            is_right = is_right && (i == 0 || logit <= sample.logits[sample.top_tokens[i - 1]]);
            is_right = is_right && fabs(sample.top_logprobs[i] - (logit - log(sum))) < 1e-4;
            total += exp(sample.top_logprobs[i]);
        }
        is_right = is_right && fabs(total - 1.0) < 1e-4;
        for (int rank = 0; rank < comm_tp_size(comm); rank++) {
            int32_t best = sample.pairs[rank].token;
            is_right = is_right && best / rank_vocab == rank && sample.pairs[rank].value == sample.logits[best];
            for (int64_t i = rank * rank_vocab; i < (rank + 1) * rank_vocab; i++)
                is_right = is_right && sample.logits[i] <= sample.pairs[rank].value;
        }
    }
    assert_all_true(comm, is_right);
    /* Drawing from one token only is greedy. */
    const sampling_t narrow[] = {{.temperature = 2.0, .top_k = 1, .top_p = 1.0}, {.temperature = 2.0, .top_p = 1e-9}};
    for (int i = 0; i < 2; i++) {
        assert_all_ok(comm, engine_sample(engine, &narrow[i], STATUS_OK, &sample));
        assert_all_true(comm, sample.token == token && !sample.pairs && !sample.logits && !sample.top_tokens);
    }
    engine_destroy(engine);
}

static void test_outside_fault_reaches_all_ranks(void **state) {
    (void)state;
    engine_args_t args = engine_args();
    engine_t *engine = create(&args);
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
    sample_t sample;
    status_t outside = comm_tp_rank(comm) == 0 ? status_fail(STATUS_DEVICE, "the disk is full") : STATUS_OK;
    status_t status = engine_sample(engine, &greedy, outside, &sample);
    assert_all_true(comm, strstr(status_message(), "the disk is full") != NULL);
    assert_all_fail(comm, status, STATUS_DEVICE);
    engine_destroy(engine);
}

/* A NaN or an Inf in one rank's part of the logits only. */
static void test_bad_numbers_are_never_a_token(void **state) {
    (void)state;
    static const uint16_t bad[] = {0x7FC0 /* NaN */, 0x7F80 /* Inf */};
    for (size_t i = 0; i < 2; i++) {
        uint16_t old, none;
        overwrite_lm_head(&bad[i], sizeof old, true, &old);
        engine_args_t args = engine_args();
        engine_t *engine = create(&args);
        assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
        sample_t sample = {.token = 77};
        const sampling_t drawn = {.temperature = 1.0, .top_p = 1.0, .top_k = 3};
        assert_all_fail(comm, engine_sample(engine, &greedy, STATUS_OK, &sample), STATUS_NUMERICS);
        assert_all_fail(comm, engine_sample(engine, &drawn, STATUS_OK, &sample), STATUS_NUMERICS);
        assert_int_equal(sample.token, 77);
        engine_destroy(engine);
        overwrite_lm_head(&old, sizeof old, true, &none);
    }
}

static void test_damaged_shard(void **state) {
    (void)state;
    uint16_t old, none;
    const uint16_t flipped = 0x3F80;
    overwrite_lm_head(&flipped, sizeof flipped, false, &old);
    engine_args_t args = engine_args();
    engine_t *engine;
    status_t status = engine_create(&args, &engine);
    assert_all_true(comm, strstr(status_message(), "lm_head") != NULL);
    assert_all_fail(comm, status, STATUS_INPUT);
    overwrite_lm_head(&old, sizeof old, true, &none);
    engine_destroy(create(&args));
}

/* Gives the last rank's shard the identity of a model of the same config with other weights. */
static void set_identity(const char *config_json, uint64_t content) {
    if (comm_tp_rank(comm) == 0) {
        char path[SHARD_PATH_BYTES], text[HASH_XXH3_TEXT_BYTES], digest[HASH_SHA256_TEXT_BYTES];
        hash_xxh3_text(content, text);
        assert_int_equal(shard_file_model_digest(config_json, EXPERTS_NVFP4, content, digest), STATUS_OK);
        hid_t file = open_last_shard(path);
        assert_true(h5_put_text(file, "source_content", text) >= 0);
        assert_true(h5_put_text(file, "model_digest", digest) >= 0);
        H5Fclose(file);
    }
    comm_barrier(comm);
}

static void test_ranks_of_different_models(void **state) {
    (void)state;
    if (comm_tp_size(comm) == 1) skip();
    engine_args_t args = engine_args();
    engine_t *engine = create(&args);
    char *config_json = strdup(engine_get_info(engine).config_json);
    engine_destroy(engine);
    set_identity(config_json, 1);
    free(config_json);
    status_t status = engine_create(&args, &engine);
    assert_all_true(comm, strstr(status_message(), "another model") != NULL);
    assert_all_fail(comm, status, STATUS_INPUT);
}

int main(void) {
    if (comm_init(&comm) != STATUS_OK || backend_create(BACKEND_CPU, comm, &backend) != STATUS_OK) return EXIT_FAILURE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_change_nothing),
        cmocka_unit_test(test_decode_next),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_memory_is_asked_for_first),
        cmocka_unit_test(test_memory_is_steady),
        cmocka_unit_test(test_padding_is_never_chosen),
        cmocka_unit_test(test_answers_agree),
        cmocka_unit_test(test_outside_fault_reaches_all_ranks),
        cmocka_unit_test(test_bad_numbers_are_never_a_token),
        cmocka_unit_test(test_damaged_shard),
        cmocka_unit_test(test_ranks_of_different_models),
    };
    int n_failed = cmocka_run_group_tests(tests, setup, teardown);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed;
}
