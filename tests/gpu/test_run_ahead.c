/* Greedy decode whose tokens stay on the device, on nano: the same tokens and pairs as with the route off, times that
 * add up, and what may follow where a generation stopped before its last token. On the ranks that mpirun started. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "support/all_ranks.h"
#include "support/model_shards.h"

enum { N_PROMPT = 40, N_NEW = 280, MAX_CONTEXT = N_PROMPT + N_NEW, MAX_RANKS = 8 };

static comm_t *comm;
static backend_t *backend;
static engine_t *engine;
static int32_t prompt[N_PROMPT];
static const sampling_t greedy = {.top_p = 1.0};

typedef struct generated {
    int32_t tokens[N_NEW];
    token_pair_t pairs[N_NEW][MAX_RANKS]; /* on rank 0 */
} generated_t;

static generated_t ahead, one_by_one;

static engine_route_t route(void) {
    size_t n;
    const engine_route_t *routes = engine_routes(engine, &n);
    while (strcmp(routes->name, "run_ahead") != 0)
        routes++;
    return *routes;
}

static void begin(bool run_ahead) {
    assert_all_ok(comm, engine_set_route(engine, "run_ahead", run_ahead));
    assert_all_ok(comm, engine_reset(engine));
    assert_all_ok(comm, engine_forward(engine, prompt, N_PROMPT));
}

/* The first n tokens; the caller wants `is_last` of the last of them. */
static void decode(int n, bool is_last, generated_t *generated) {
    int64_t end_ns = 0;
    for (int i = 0; i < n; i++) {
        sample_t sample;
        const decode_args_t args = {.sampling = &greedy, .is_last = is_last && i == n - 1};
        op_trace_reset(engine_trace(engine));
        assert_all_ok(comm, engine_decode_next(engine, &args, &sample));
        generated->tokens[i] = sample.token;
        if (comm_tp_rank(comm) == 0)
            memcpy(generated->pairs[i], sample.pairs, (size_t)comm_tp_size(comm) * sizeof *sample.pairs);
        int64_t wall_ns = sample.end_ns - end_ns;
        end_ns = sample.end_ns;
        if (i == 0) continue;
        int64_t busy_ns = 0;
        for (int group = 0; group < OP_N_GROUPS; group++)
            busy_ns += engine_trace(engine)->group_ns[group];
        assert_true(busy_ns > 0 && busy_ns <= wall_ns + wall_ns / 50 + 2000);
    }
}

static void check_same(int n) {
    assert_memory_equal(ahead.tokens, one_by_one.tokens, (size_t)n * sizeof(int32_t));
    assert_memory_equal(ahead.pairs, one_by_one.pairs, (size_t)n * sizeof ahead.pairs[0]);
}

static void test_same_tokens(void **state) {
    (void)state;
    begin(false);
    decode(N_NEW, true, &one_by_one);
    assert_false(route().on);
    begin(true);
    decode(N_NEW, true, &ahead);
    assert_true(route().on);
    check_same(N_NEW);
    assert_int_equal(engine_position(engine), MAX_CONTEXT - 1);
}

/* A step past the end is thrown away, and a sequence that has one must be reset. */
static void test_stop(void **state) {
    (void)state;
    static const int stops[] = {1, 2, 7, 130};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        sample_t sample;
        memset(&ahead, 0, sizeof ahead);
        begin(true);
        decode(stops[i], false, &ahead);
        check_same(stops[i]);
        assert_all_fail(comm, engine_forward(engine, prompt, 1), STATUS_USAGE);
        assert_all_fail(comm, engine_sample(engine, &greedy, STATUS_OK, &sample), STATUS_USAGE);
    }
}

/* Where the route changes between two sequences, or within one at a token that nothing was queued behind. */
static void test_switching(void **state) {
    (void)state;
    begin(true);
    decode(5, true, &ahead);
    assert_all_ok(comm, engine_set_route(engine, "run_ahead", false));
    decode(3, false, &(generated_t){0});
    assert_all_ok(comm, engine_set_route(engine, "run_ahead", true));
    generated_t *rest = &ahead;
    decode(4, true, rest);
    assert_memory_equal(rest->tokens, one_by_one.tokens + 8, 4 * sizeof(int32_t));
}

static void test_full_context(void **state) {
    (void)state;
    for (int on = 0; on < 2; on++) {
        sample_t sample;
        begin(on == 1);
        decode(N_NEW, false, &ahead);
        decode(1, false, &(generated_t){0}); /* chosen behind the last token that fits */
        const decode_args_t args = {.sampling = &greedy};
        assert_all_fail(comm, engine_decode_next(engine, &args, &sample), STATUS_USAGE);
    }
}

static void test_outside(void **state) {
    (void)state;
    sample_t sample;
    begin(true);
    decode(3, false, &ahead);
    status_t outside = STATUS_OK;
    if (comm_tp_rank(comm) == 0) outside = status_fail(STATUS_INTERRUPTED, "asked to end");
    const decode_args_t args = {.sampling = &greedy, .outside = outside};
    assert_all_fail(comm, engine_decode_next(engine, &args, &sample), STATUS_INTERRUPTED);
}

static void test_refused(void **state) {
    (void)state;
    const sampling_t drawn = {.temperature = 1.0, .top_p = 1.0, .seed = 3};
    sample_t sample;
    begin(true);
    for (int i = 0; i < 3; i++)
        assert_all_ok(comm, engine_decode_next(engine, &(decode_args_t){.sampling = &drawn}, &sample));
    assert_false(route().on);
    assert_non_null(strstr(route().reason, "greedy"));
}

/* Backend memory with these bytes. */
static void *uploaded(const void *host, size_t bytes) {
    void *memory;
    assert_all_ok(comm, backend->ops->alloc(backend, MEMORY_WORKSPACE, bytes, &memory));
    assert_all_ok(comm, backend->ops->upload(backend, memory, host, bytes));
    return memory;
}

/* The op alone: every rank takes sampler_best_pair of all pairs, the input moves on as sequence_advance has it, and the
 * ring goes round. */
static void test_advance(void **state) {
    (void)state;
    enum { N_CHOICES = 11, N_CONTEXT = 3, N_TOKENS = 5 };
    static const int64_t n_tokens[N_CHOICES] = {N_TOKENS, 1, 2, 3, 4, 1, 1, 1, 1, 1, 1};
    int rank = comm_tp_rank(comm), n_ranks = comm_tp_size(comm);
    int32_t context[N_CONTEXT] = {900, 901, 902}, tokens[N_TOKENS] = {910, 911, 912, 913, 914};
    int64_t pos = 70, zero = 0;
    void *records;
    assert_all_ok(comm,
                  backend->ops->alloc(backend, MEMORY_PINNED, ADVANCE_N_RECORDS * sizeof(advance_record_t), &records));
    const advance_record_t *ring = backend->ops->host_address(backend, records);
    token_pair_t *pair = uploaded(&zero, sizeof *pair);
    advance_args_t args = {.n_context = N_CONTEXT,
                           .pair = pair,
                           .start_pos = uploaded(&pos, sizeof pos),
                           .context = uploaded(context, sizeof context),
                           .tokens = uploaded(tokens, sizeof tokens),
                           .begin_ns = uploaded(&zero, sizeof zero),
                           .n_records = uploaded(&zero, sizeof zero),
                           .records = records};
    for (int i = 0; i < N_CHOICES; i++) {
        token_pair_t pairs[MAX_RANKS];
        for (int r = 0; r < n_ranks; r++) /* ties, and in two choices a NaN or Inf */
            pairs[r] = (token_pair_t){.value = (float)((r * 5 + i) % 3) - 1.0f, .token = 100 * r + i};
        if (i == 4 || i == 7) pairs[i % n_ranks] = (token_pair_t){.value = NAN, .token = -1};
        int32_t best = sampler_best_pair(pairs, n_ranks).token;

        args.n_tokens = n_tokens[i];
        assert_all_ok(comm, backend->ops->upload(backend, pair, &pairs[rank], sizeof *pair));
        assert_all_ok(comm, backend->ops->advance_begin(backend, &args));
        assert_all_ok(comm, backend->ops->advance(backend, &args));
        const advance_record_t *record = &ring[i % ADVANCE_N_RECORDS];
        assert_all_ok(comm, backend->ops->await(backend, &record->number, (uint64_t)i + 1));
        assert_int_equal(record->token, best);
        assert_memory_equal(record->pairs, pairs, (size_t)n_ranks * sizeof pairs[0]);
        assert_true(record->begin_ns > 0 && record->begin_ns <= record->end_ns);

        int32_t before[N_CONTEXT + N_TOKENS], got[N_TOKENS];
        int64_t got_pos;
        memcpy(before, context, sizeof context);
        memcpy(before + N_CONTEXT, tokens, sizeof tokens);
        memcpy(context, before + n_tokens[i], sizeof context);
        tokens[0] = best < 0 ? 0 : best;
        pos += n_tokens[i];
        assert_all_ok(comm, backend->ops->download(backend, &got_pos, args.start_pos, sizeof got_pos));
        assert_int_equal(got_pos, pos);
        assert_all_ok(comm, backend->ops->download(backend, got, args.context, sizeof context));
        assert_memory_equal(got, context, sizeof context);
        assert_all_ok(comm, backend->ops->download(backend, got, args.tokens, sizeof tokens));
        assert_memory_equal(got, tokens, sizeof tokens);
    }
    void *memory[] = {records, pair, args.start_pos, args.context, args.tokens, args.begin_ns, args.n_records};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        backend->ops->free(backend, memory[i]);
}

int main(void) {
    backend_args_t args = {.kind = BACKEND_CUDA};
    char directory[MODEL_SHARDS_BYTES];
    status_t status = comm_init(&args.comm);
    comm = args.comm;
    if (status == STATUS_OK) status = backend_open(&args, &backend);
    if (status == STATUS_OK) status = model_shards_create(comm, "tests/models/nano", false, directory);
    const engine_args_t engine_args = {
        .model = directory, .comm = comm, .backend = backend, .max_context = MAX_CONTEXT, .cuda_graph = true};
    if (status == STATUS_OK) status = engine_create(&engine_args, &engine);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return EXIT_FAILURE;
    }
    model_shards_remove(comm, directory);
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = (i * 37 + 11) % 700;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_advance),      cmocka_unit_test(test_same_tokens),
                                       cmocka_unit_test(test_stop),         cmocka_unit_test(test_switching),
                                       cmocka_unit_test(test_full_context), cmocka_unit_test(test_outside),
                                       cmocka_unit_test(test_refused)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    engine_destroy(engine);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
