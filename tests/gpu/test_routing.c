/* Where the GPU's logits leave transformers', and why. FP16 cannot tell apart what is nearly tied: a router or an
 * indexer then chooses otherwise than FP32 does, and what follows is another sum. Here the GPU computes with the
 * choices of the CPU reference (FP32), which are put in place of its own behind every router and every selection. Then
 *   - the streams behind every layer and the logits of every token must be close to the golden, with no exception;
 *   - each choice that the GPU would have made otherwise must have been within the error of FP16: the scores of what
 *     was chosen instead lie next to each other.
 * So nothing but such choices makes the logits of test_golden.c differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "gpu_support.h"
#include "support/golden_cases.h"

/* Of a token's largest logit: what test_golden.c, where choices are free, calls far. Streams are what GR and the last
 * norm take them from, and may be twice as far. */
#define TOLERANCE 5e-2
/* Of the spread (standard deviation) of a token's router logits or block scores: as far as FP16 moves them. */
#define MARGIN 1e-1

enum { MAX_TOKENS = 256, MAX_LAYERS = 16, MAX_CHOSEN = 64, MAX_SCORES = 512 };

/* One choice of the reference: n_chosen of n_scores. */
typedef struct choice {
    int32_t chosen[MAX_CHOSEN];
    float scores[MAX_SCORES];
    int64_t n_chosen, n_scores;
} choice_t;

typedef struct tally {
    int64_t n_choices, n_other;
    double largest_margin, largest_error; /* of the spread of the scores */
} tally_t;

/* What the wrapped ops share. The reference runs first and fills `choices`; the GPU then takes them. */
static struct {
    const backend_ops_t *cpu, *gpu; /* the tables that are wrapped */
    choice_t *router, *blocks;      /* [MAX_LAYERS, MAX_TOKENS]; blocks by QSA layer */
    int64_t pos, n_tokens;          /* of the step that runs */
    int64_t router_layer, qsa_layer;
    tally_t routers, selections;
} shared;

static comm_t *comm;
static backend_t *gpu, *cpu;

static choice_t *choice_at(choice_t *choices, int64_t layer, int64_t token) {
    assert_true(layer < MAX_LAYERS && shared.pos + token < MAX_TOKENS);
    return &choices[layer * MAX_TOKENS + shared.pos + token];
}

static bool holds(const int32_t *ids, int64_t n, int32_t id) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] == id) return true;
    }
    return false;
}

/* Compares what the GPU chose with the reference, by the reference's scores; `scores` are the GPU's, NULL where it does
 * not give them. */
static void count(const choice_t *wanted, const int32_t *chosen, const float *scores, tally_t *tally) {
    double sum = 0, squares = 0, most = -INFINITY, least = INFINITY, error = 0;
    for (int64_t i = 0; i < wanted->n_scores; i++) {
        sum += wanted->scores[i];
        squares += (double)wanted->scores[i] * wanted->scores[i];
        if (scores) error = fmax(error, fabs((double)scores[i] - wanted->scores[i]));
    }
    double n = (double)wanted->n_scores, spread = sqrt(fmax(squares / n - sum / n * (sum / n), 1e-30));
    for (int64_t i = 0; i < wanted->n_chosen; i++) {
        if (!holds(chosen, wanted->n_chosen, wanted->chosen[i])) most = fmax(most, wanted->scores[wanted->chosen[i]]);
        if (!holds(wanted->chosen, wanted->n_chosen, chosen[i])) least = fmin(least, wanted->scores[chosen[i]]);
    }
    tally->n_choices++;
    tally->n_other += most > -INFINITY;
    if (most > -INFINITY) tally->largest_margin = fmax(tally->largest_margin, (most - least) / spread);
    tally->largest_error = fmax(tally->largest_error, error / spread);
}

/* A step begins. */
static void begin_step(int64_t n_tokens) {
    shared.pos += shared.n_tokens;
    shared.n_tokens = n_tokens;
    shared.router_layer = shared.qsa_layer = 0;
}

static void begin_sequence(void) { shared.pos = shared.n_tokens = 0; }

static status_t cpu_embed_noted(backend_t *backend, const embed_args_t *args) {
    begin_step(args->n_tokens);
    return shared.cpu->embed(backend, args);
}

static status_t gpu_embed_noted(backend_t *backend, const embed_args_t *args) {
    begin_step(args->n_tokens);
    return shared.gpu->embed(backend, args);
}

static status_t cpu_router_kept(backend_t *backend, const router_args_t *args) {
    TRY(shared.cpu->router(backend, args));
    assert_true(args->n_experts <= MAX_SCORES && args->top_k <= MAX_CHOSEN);
    for (int64_t t = 0; t < args->n_tokens; t++) {
        choice_t *choice = choice_at(shared.router, shared.router_layer, t);
        choice->n_chosen = args->top_k;
        choice->n_scores = args->n_experts;
        memcpy(choice->chosen, args->experts + t * args->top_k, (size_t)args->top_k * sizeof(int32_t));
        memcpy(choice->scores, args->logits + t * args->logits_stride, (size_t)args->n_experts * sizeof(float));
    }
    shared.router_layer++;
    return STATUS_OK;
}

/* The reference's experts with the weights that the GPU's own logits give them. */
static status_t gpu_router_forced(backend_t *backend, const router_args_t *args) {
    TRY(shared.gpu->router(backend, args));
    float logits[MAX_SCORES + 1], weights[MAX_CHOSEN];
    int32_t experts[MAX_CHOSEN];
    int64_t E = args->n_experts, K = args->top_k;
    for (int64_t t = 0; t < args->n_tokens; t++) {
        const choice_t *choice = choice_at(shared.router, shared.router_layer, t);
        TRY(shared.gpu->download(backend, logits, args->logits + t * args->logits_stride,
                                 (size_t)(E + 1) * sizeof(float)));
        TRY(shared.gpu->download(backend, experts, args->experts + t * K, (size_t)K * sizeof(int32_t)));
        count(choice, experts, logits, &shared.routers);
        double sum_all = 0, sum = 0;
        for (int64_t e = 0; e < E; e++)
            sum_all += exp((double)logits[e] - logits[choice->chosen[0]]);
        for (int64_t k = 0; k < K; k++)
            sum += exp((double)logits[choice->chosen[k]] - logits[choice->chosen[0]]);
        for (int64_t k = 0; k < K; k++)
            weights[k] = (float)(exp((double)logits[choice->chosen[k]] - logits[choice->chosen[0]]) /
                                 (args->norm_topk_prob ? sum : sum_all));
        TRY(shared.gpu->upload(backend, args->experts + t * K, choice->chosen, (size_t)K * sizeof(int32_t)));
        TRY(shared.gpu->upload(backend, args->weights + t * K, weights, (size_t)K * sizeof(float)));
    }
    shared.router_layer++;
    return STATUS_OK;
}

static float block_score(const qsa_select_args_t *args, int64_t token, int64_t block) {
    int64_t dim = args->shape.index_dim;
    double score = 0;
    for (int64_t head = 0; head < args->shape.index_n_heads; head++) {
        const float *query = args->index_q + (token * args->shape.index_n_heads + head) * dim;
        double dot = 0;
        for (int64_t d = 0; d < dim; d++)
            dot += (double)query[d] * args->cache.index_keys[block * dim + d];
        score += fmax(dot, 0.0);
    }
    return (float)score;
}

static status_t cpu_select_kept(backend_t *backend, const qsa_select_args_t *args) {
    TRY(shared.cpu->qsa_select(backend, args));
    assert_true(args->shape.n_select <= MAX_CHOSEN);
    for (int64_t t = 0; t < args->n_tokens; t++) {
        choice_t *choice = choice_at(shared.blocks, shared.qsa_layer, t);
        choice->n_chosen = args->n_blocks[t];
        choice->n_scores = (shared.pos + t + 1) / args->shape.ratio;
        memcpy(choice->chosen, args->blocks + t * args->shape.n_select, (size_t)choice->n_chosen * sizeof(int32_t));
        for (int64_t b = 0; b < choice->n_scores; b++)
            choice->scores[b] = block_score(args, t, b);
    }
    shared.qsa_layer++;
    return STATUS_OK;
}

static status_t gpu_select_forced(backend_t *backend, const qsa_select_args_t *args) {
    TRY(shared.gpu->qsa_select(backend, args));
    int32_t blocks[MAX_CHOSEN];
    for (int64_t t = 0; t < args->n_tokens; t++) {
        const choice_t *choice = choice_at(shared.blocks, shared.qsa_layer, t);
        size_t bytes = (size_t)choice->n_chosen * sizeof(int32_t);
        int32_t *at = args->blocks + t * args->shape.n_select, n_blocks;
        TRY(shared.gpu->download(backend, &n_blocks, args->n_blocks + t, sizeof n_blocks));
        assert_int_equal(n_blocks, choice->n_chosen);
        if (choice->n_chosen == 0) continue;
        TRY(shared.gpu->download(backend, blocks, at, bytes));
        count(choice, blocks, NULL, &shared.selections);
        TRY(shared.gpu->upload(backend, at, choice->chosen, bytes));
    }
    shared.qsa_layer++;
    return STATUS_OK;
}

/* One token's three ops in turn: the choice stands between them. */
static status_t cpu_core_kept(backend_t *backend, const qsa_core_args_t *args) {
    TRY(shared.cpu->qsa_prepare(backend, &args->prepare));
    TRY(cpu_select_kept(backend, &args->select));
    return shared.cpu->qsa_attend(backend, &args->attend);
}

static status_t gpu_core_forced(backend_t *backend, const qsa_core_args_t *args) {
    TRY(shared.gpu->qsa_prepare(backend, &args->prepare));
    TRY(gpu_select_forced(backend, &args->select));
    return shared.gpu->qsa_attend(backend, &args->attend);
}

/* Runs the prompt in pieces, then the golden's greedy tokens one by one; gives the worst difference of logits. */
static double run_sequence(engine_t *engine, const golden_t *golden, size_t piece) {
    static const sampling_t greedy = {.top_p = 1.0, .keep_logits = true};
    double worst = 0;
    sample_t sample;
    begin_sequence();
    assert_all_ok(comm, engine_reset(engine));
    for (size_t done = 0; done < golden->n_prompt + golden->n_greedy - 1;) {
        bool is_prompt = done < golden->n_prompt;
        size_t left = is_prompt ? golden->n_prompt - done : 1, n = left < piece ? left : piece;
        const int32_t *tokens = is_prompt ? golden->prompt + done : golden->greedy + (done - golden->n_prompt);
        assert_all_ok(comm, engine_forward(engine, tokens, n));
        assert_all_ok(comm, engine_sample(engine, &greedy, STATUS_OK, &sample));
        done += n;
        const float *expected = done < golden->n_prompt
                                    ? golden->logits + (done - 1) * golden->n_vocab
                                    : golden->greedy_logits + (done - golden->n_prompt) * golden->n_vocab;
        if (sample.logits) worst = fmax(worst, golden_difference(sample.logits, expected, golden->n_vocab));
    }
    return worst;
}

/* The worst of the streams behind each layer, over the prompt's tokens. */
typedef struct layer_check {
    const golden_t *golden;
    double worst;
} layer_check_t;

static void check_layer(void *context, int64_t layer, const float *h, int64_t n_tokens) {
    layer_check_t *check = context;
    char path[32];
    size_t n;
    if (shared.pos + n_tokens > (int64_t)check->golden->n_prompt) return;
    snprintf(path, sizeof path, "/layers/%02d", (int)layer);
    float *expected = golden_floats(check->golden->file, path, &n);
    size_t width = n / check->golden->n_prompt;
    float *own = malloc((size_t)n_tokens * width * sizeof *own);
    assert_int_equal(gpu->ops->download(gpu, own, h, (size_t)n_tokens * width * sizeof *own), STATUS_OK);
    for (size_t t = 0; t < (size_t)n_tokens; t++)
        check->worst =
            fmax(check->worst, golden_difference(own + t * width, expected + ((size_t)shared.pos + t) * width, width));
    free(own);
    free(expected);
}

static void open_engine(backend_t *backend, const char *directory, const golden_t *golden, engine_t **engine) {
    const engine_args_t args = {.model = directory,
                                .comm = comm,
                                .backend = backend,
                                .max_context = (int64_t)(golden->n_prompt + golden->n_greedy)};
    assert_all_ok(comm, engine_create(&args, engine));
}

static void test_case(void **state) {
    const golden_case_t *test = *state;
    char directory[MODEL_SHARDS_BYTES];
    golden_t golden = golden_case_open(comm, test, directory);
    shared.routers = shared.selections = (tally_t){0};

    engine_t *engine;
    open_engine(cpu, directory, &golden, &engine);
    double reference_worst = run_sequence(engine, &golden, golden.n_prompt);
    engine_destroy(engine);

    layer_check_t check = {.golden = &golden};
    open_engine(gpu, directory, &golden, &engine);
    engine_observe_layers(engine, check_layer, &check);
    double chunk_worst = run_sequence(engine, &golden, golden.n_prompt);
    double single_worst = run_sequence(engine, &golden, 1);
    engine_destroy(engine);
    model_shards_remove(comm, directory);

    if (comm_tp_rank(comm) == 0)
        printf(
            "    %-12s with the reference's choices: streams within %.1e, logits %.1e (chunk) and %.1e (tokens); the "
            "reference's own %.1e\n"
            "    %-12s of %lld routers %lld would choose otherwise, by %.1e of the spread at most (logits differ by "
            "%.1e); of %lld selections %lld, by %.1e\n",
            test->name, check.worst, chunk_worst, single_worst, reference_worst, "",
            (long long)shared.routers.n_choices, (long long)shared.routers.n_other, shared.routers.largest_margin,
            shared.routers.largest_error, (long long)shared.selections.n_choices, (long long)shared.selections.n_other,
            shared.selections.largest_margin);
    status_t status = STATUS_OK;
    if (!(check.worst <= 2 * TOLERANCE && chunk_worst <= TOLERANCE && single_worst <= TOLERANCE))
        status = status_fail(STATUS_NUMERICS, "results are far from the golden's although every choice is the same");
    else if (!(fmax(shared.routers.largest_margin, shared.routers.largest_error) <= MARGIN &&
               shared.selections.largest_margin <= MARGIN))
        status = status_fail(STATUS_NUMERICS, "a choice differs that was not nearly tied");
    golden_close(&golden);
    assert_all_ok(comm, status);
}

/* test_routing [push|nccl|mpi]: how sums over ranks are made. */
int main(int argc, char **argv) {
    backend_args_t args = {.kind = BACKEND_CUDA, .all_reduce = argc > 1 ? argv[1] : NULL};
    status_t status = comm_init(&args.comm);
    comm = args.comm;
    if (status == STATUS_OK) status = backend_open(&args, &gpu);
    if (status == STATUS_OK) status = backend_create(BACKEND_CPU, comm, &cpu);
    void *memory[2] = {NULL, NULL};
    for (int i = 0; status == STATUS_OK && i < 2; i++)
        status = memory_alloc(MEMORY_OTHER, MAX_LAYERS * MAX_TOKENS, sizeof(choice_t), &memory[i]);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return EXIT_FAILURE;
    }
    shared.router = memory[0];
    shared.blocks = memory[1];
    shared.cpu = cpu->ops;
    shared.gpu = gpu->ops;
    backend_ops_t cpu_ops = *cpu->ops, gpu_ops = *gpu->ops;
    cpu_ops.embed = cpu_embed_noted;
    cpu_ops.router = cpu_router_kept;
    cpu_ops.qsa_select = cpu_select_kept;
    cpu_ops.qsa_core = cpu_core_kept;
    gpu_ops.embed = gpu_embed_noted;
    gpu_ops.moe_is_joined = NULL; /* every choice goes through router */
    gpu_ops.router = gpu_router_forced;
    gpu_ops.qsa_select = gpu_select_forced;
    gpu_ops.qsa_core = gpu_core_forced;
    cpu->ops = &cpu_ops;
    gpu->ops = &gpu_ops;

    int n_failed = golden_cases_run(test_case);
    memory_free(memory[0]);
    memory_free(memory[1]);
    cpu->ops->destroy(cpu);
    gpu->ops->destroy(gpu);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
