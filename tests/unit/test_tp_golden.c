/* The whole model against transformers, on 1, 2, 4 and 8 ranks: every layer, the logits, the greedy tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "support/golden_cases.h"

static comm_t *comm;
static backend_t *backend;

/* Residual streams of every layer and token, as a run leaves them. */
typedef struct layers {
    int64_t n_layers, stream_width, capacity, n_tokens; /* n_tokens: of the runs before */
    float *h;                                           /* [n_layers, capacity, stream_width] */
} layers_t;

static void keep_layer(void *context, int64_t layer, const float *h, int64_t n_tokens) {
    layers_t *layers = context;
    memcpy(layers->h + (layer * layers->capacity + layers->n_tokens) * layers->stream_width, h,
           (size_t)(n_tokens * layers->stream_width) * sizeof(float));
    if (layer == layers->n_layers - 1) layers->n_tokens += n_tokens;
}

static void layers_create(const golden_t *golden, const engine_t *engine, layers_t *layers) {
    *layers = (layers_t){.n_layers = engine_get_info(engine).n_layers, .capacity = (int64_t)golden->n_prompt};
    layers->stream_width = (int64_t)(golden_length(golden->file, "/layers/00") / golden->n_prompt);
    layers->h = calloc((size_t)(layers->n_layers * layers->capacity * layers->stream_width), sizeof(float));
    assert_non_null(layers->h);
}

static status_t compare_layers(const golden_t *golden, const layers_t *layers) {
    status_t status = STATUS_OK;
    for (int64_t layer = 0; layer < layers->n_layers && status == STATUS_OK; layer++) {
        char path[32];
        size_t n;
        snprintf(path, sizeof path, "/layers/%02d", (int)layer);
        float *expected = golden_floats(golden->file, path, &n);
        for (int64_t token = 0; token < layers->capacity && status == STATUS_OK; token++) {
            const float *h = layers->h + (layer * layers->capacity + token) * layers->stream_width;
            double difference =
                golden_difference(h, expected + token * layers->stream_width, (size_t)layers->stream_width);
            if (!(difference <= golden->tolerance))
                status = status_fail(STATUS_NUMERICS, "layer %d, token %d: relative difference %.3g", (int)layer,
                                     (int)token, difference);
        }
        free(expected);
    }
    return status;
}

static sample_t sample(engine_t *engine, const sampling_t *sampling) {
    sample_t result;
    assert_all_ok(comm, engine_sample(engine, sampling, STATUS_OK, &result));
    return result;
}

static const sampling_t greedy_with_logits = {.top_p = 1.0, .keep_logits = true};

/* Samples greedily and holds rank 0's logits against the golden's. */
static int32_t sample_and_compare(engine_t *engine, const golden_t *golden, const float *expected, const char *what,
                                  size_t row) {
    sample_t result = sample(engine, &greedy_with_logits);
    status_t status = STATUS_OK;
    if (result.logits) {
        double difference = golden_difference(result.logits, expected + row * golden->n_vocab, golden->n_vocab);
        if (!(difference <= golden->tolerance))
            status = status_fail(STATUS_NUMERICS, "%s, row %zu: relative difference %.3g", what, row, difference);
    }
    assert_all_ok(comm, status);
    return result.token;
}

static void check_greedy(engine_t *engine, const golden_t *golden) {
    for (size_t i = 0; i < golden->n_greedy; i++) {
        int32_t token = sample_and_compare(engine, golden, golden->greedy_logits, "greedy logits", i);
        if (token != golden->greedy[i])
            fail_msg("greedy token %zu is %d, not %d", i, (int)token, (int)golden->greedy[i]);
        assert_all_ok(comm, engine_forward(engine, &token, 1));
    }
}

/* Runs the prompt in pieces of `piece` tokens; every piece must leave the same bits as the whole. */
static void check_pieces(engine_t *engine, const golden_t *golden, const layers_t *whole, size_t piece) {
    layers_t pieces;
    layers_create(golden, engine, &pieces);
    assert_all_ok(comm, engine_reset(engine));
    engine_observe_layers(engine, keep_layer, &pieces);
    for (size_t done = 0; done < golden->n_prompt; done += piece) {
        size_t n = golden->n_prompt - done < piece ? golden->n_prompt - done : piece;
        assert_all_ok(comm, engine_forward(engine, golden->prompt + done, n));
        sample_and_compare(engine, golden, golden->logits, "logits", done + n - 1);
    }
    engine_observe_layers(engine, NULL, NULL);
    size_t bytes = (size_t)(whole->n_layers * whole->capacity * whole->stream_width) * sizeof(float);
    status_t status = STATUS_OK;
    if (memcmp(pieces.h, whole->h, bytes) != 0)
        status = status_fail(STATUS_NUMERICS, "pieces of %zu tokens do not leave the bits of the whole", piece);
    free(pieces.h);
    assert_all_ok(comm, status);
}

/* A seeded draw must be the one that the golden's own logits give, whatever the number of ranks. */
static void check_draws(engine_t *engine, const golden_t *golden) {
    int32_t *order = malloc(golden->n_vocab * sizeof *order);
    double *cumulative = malloc(golden->n_vocab * sizeof *cumulative);
    int n_different = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        const sampling_t sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = seed};
        const sampler_args_t args = {.logits = golden->logits + (golden->n_prompt - 1) * golden->n_vocab,
                                     .n_logits = (int64_t)golden->n_vocab,
                                     .temperature = sampling.temperature,
                                     .top_k = sampling.top_k,
                                     .top_p = sampling.top_p,
                                     .seed = seed,
                                     .position = golden->n_prompt,
                                     .order = order,
                                     .cumulative = cumulative};
        n_different += sample(engine, &sampling).token != sampler_draw(&args);
    }
    free(order);
    free(cumulative);
    assert_int_equal(n_different, 0);
}

static void check_model(engine_t *engine, const golden_t *golden) {
    layers_t whole;
    layers_create(golden, engine, &whole);
    engine_observe_layers(engine, keep_layer, &whole);
    assert_all_ok(comm, engine_forward(engine, golden->prompt, golden->n_prompt));
    engine_observe_layers(engine, NULL, NULL);
    assert_all_ok(comm, compare_layers(golden, &whole));
    check_draws(engine, golden);
    check_greedy(engine, golden);

    static const size_t pieces[] = {1, 3, 4, 7, 32};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        check_pieces(engine, golden, &whole, pieces[i]);
    /* The last run ended inside a block or at its end, behind a state of its own: a new one must not see it. */
    assert_all_ok(comm, engine_reset(engine));
    assert_all_ok(comm, engine_forward(engine, golden->prompt, golden->n_prompt / 2 + 1));
    check_pieces(engine, golden, &whole, golden->n_prompt);
    check_greedy(engine, golden);
    free(whole.h);
}

static void test_case(void **state) {
    const golden_case_t *test = *state;
    char directory[MODEL_SHARDS_BYTES];
    golden_t golden = golden_case_open(comm, test, directory);

    /* The whole prompt as one chunk, then the engine's own chunks. */
    static const int64_t chunks[] = {0, 5};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        engine_t *engine;
        const engine_args_t args = {.model = directory,
                                    .comm = comm,
                                    .backend = backend,
                                    .max_context = (int64_t)(golden.n_prompt + golden.n_greedy),
                                    .prefill_chunk = chunks[i]};
        assert_all_ok(comm, engine_create(&args, &engine));
        check_model(engine, &golden);
        engine_destroy(engine);
    }
    model_shards_remove(comm, directory);
    golden_close(&golden);
}

int main(void) {
    if (comm_init(&comm) != STATUS_OK || backend_create(BACKEND_CPU, comm, &backend) != STATUS_OK) return EXIT_FAILURE;
    int n_failed = golden_cases_run(test_case);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed;
}
