/* galvani bench: the acceptance lane, with a control. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/load.h"
#include "cli/plan.h"
#include "cli/recorder.h"
#include "fill/fill_value.h"
#include "trace/run_tables.h"

/* What rank 0 knows before loading and the others need. */
typedef struct facts {
    int32_t n_valid_tokens;
} facts_t;

typedef struct bench {
    comm_t *comm;
    option_store_t *store;
    options_t options;
    char *command_line;
    facts_t facts;
    backend_t *backend;
    engine_t *engine;
    request_t request;       /* rank 0 */
    int64_t *wall_ns;        /* [max_new] */
    bench_repeat_t *repeats; /* [n_repeats]; the rest on rank 0 only */
    bench_rank_t *ranks;     /* [n_repeats, n_ranks] */
    run_memory_t *memory;    /* [n_ranks] */
    size_t n_repeats;        /* candidate and control together */
} bench_t;

static bool is_rank0(const bench_t *bench) { return comm_tp_rank(bench->comm) == 0; }

static status_t allocate(size_t n, size_t item_bytes, void **pointer) {
    return memory_alloc(MEMORY_OTHER, n, item_bytes, pointer);
}

static status_t check_options(const options_t *options, int n_ranks) {
    if (!options->model) return status_fail(STATUS_USAGE, "--model is missing; see galvani bench --help");
    if (options->plan) return STATUS_OK;
    if (options->max_new <= options->warmup)
        return status_fail(STATUS_USAGE,
                           "--max-new %" PRId64 " leaves no token behind the --warmup of %" PRId64 " for steady decode",
                           options->max_new, options->warmup);
    if (options->tp && options->tp != n_ranks)
        return status_fail(STATUS_USAGE, "--tp %d needs as many ranks: start it with mpirun -np %d, or add --plan",
                           (int)options->tp, (int)options->tp);
    return STATUS_OK;
}

/* What has been measured shall not be lost for want of a place: rank 0 looks before. */
static status_t check_outputs(const options_t *options) {
    if (options->json) TRY(file_check_writable(options->json));
    return options->out ? run_tables_check_path(options->out) : STATUS_OK;
}

/* Rank 0: ids that only the seed decides. */
static status_t make_prompt(bench_t *bench) {
    model_config_t config;
    tokenizer_t *tokenizer;
    TRY(load_facts(&bench->options, comm_tp_size(bench->comm), &config, &tokenizer));
    bench->facts.n_valid_tokens = tokenizer ? tokenizer_n_tokens(tokenizer) : (int32_t)config.vocab_size;
    tokenizer_destroy(tokenizer);

    request_t *request = &bench->request;
    void *memory;
    TRY(allocate((size_t)bench->options.prompt_len, sizeof(int32_t), &memory));
    request->tokens = memory;
    request->n_tokens = (size_t)bench->options.prompt_len;
    for (size_t i = 0; i < request->n_tokens; i++)
        request->tokens[i] =
            (int32_t)(fill_block((uint64_t)bench->options.seed, i) % (uint64_t)bench->facts.n_valid_tokens);
    request->options = bench->options;
    request->options.ignore_eos = true;
    return STATUS_OK;
}

static status_t allocate_results(bench_t *bench) {
    size_t n_ranks = (size_t)comm_tp_size(bench->comm);
    void *memory;
    bench->n_repeats = (size_t)bench->options.repeats * (bench->options.n_control_routes ? 2 : 1);
    TRY(allocate((size_t)bench->options.max_new, sizeof(int64_t), &memory));
    bench->wall_ns = memory;
    TRY(allocate(bench->n_repeats, sizeof(bench_repeat_t), &memory));
    bench->repeats = memory;
    if (!is_rank0(bench)) return STATUS_OK;
    TRY(allocate(bench->n_repeats * n_ranks, sizeof(bench_rank_t), &memory));
    bench->ranks = memory;
    TRY(allocate(n_ranks, sizeof(run_memory_t), &memory));
    bench->memory = memory;
    return STATUS_OK;
}

static int compare_ns(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Rank 0's figures of one pass. Sorts the steady part of wall_ns. */
static void fill_repeat(const bench_t *bench, const generate_result_t *result, bench_repeat_t *repeat) {
    int64_t *steady = result->wall_ns + result->warmup, total_ns = 0;
    int64_t n = result->n_generated - result->warmup;
    for (int64_t i = 0; i < n; i++)
        total_ns += steady[i];
    qsort(steady, (size_t)n, sizeof *steady, compare_ns);
    repeat->prefill_ms = (double)result->prefill_ns / 1e6;
    repeat->ttft_ms = (double)result->wall_ns[0] / 1e6;
    repeat->prompt_rate = (double)bench->options.prompt_len / (double)result->prefill_ns * 1e9;
    repeat->ms_per_token = (double)total_ns / (double)n / 1e6;
    repeat->token_rate = (double)n / (double)total_ns * 1e9;
    repeat->p50_ms = (double)steady[n / 2] / 1e6;
    repeat->p99_ms = (double)steady[n * 99 / 100] / 1e6;
    memcpy(repeat->token_hash, result->token_hash, sizeof repeat->token_hash);
}

/* One pass over the lane. The run file holds the last pass of the candidate: each replaces the one before. */
static status_t run_once(bench_t *bench, size_t index, bool is_control) {
    const options_t *options = &bench->options;
    TRY(load_routes(options, bench->engine));
    for (int i = 0; is_control && i < options->n_control_routes; i++)
        TRY(engine_set_route(bench->engine, options->control_routes[i].name, options->control_routes[i].on));
    const generate_context_t context = {.engine = bench->engine,
                                        .comm = bench->comm,
                                        .backend = bench->backend,
                                        .command_line = bench->command_line,
                                        .command = COMMAND_BENCH,
                                        .silent = true};
    generate_result_t result = {.warmup = options->warmup, .wall_ns = bench->wall_ns};
    const char *path = is_rank0(bench) && !is_control ? options->out : NULL;
    TRY(generate(&context, is_rank0(bench) ? &bench->request : NULL, path, &result));

    bench_repeat_t *repeat = &bench->repeats[index];
    bench_rank_t mine;
    for (int group = 0; group < OP_N_GROUPS; group++)
        mine.group_ms[group] = (double)result.group_ns[group] / (double)(result.n_generated - result.warmup) / 1e6;
    bench_rank_t *ranks = bench->ranks ? bench->ranks + index * (size_t)comm_tp_size(bench->comm) : NULL;
    comm_gather(bench->comm, &mine, sizeof mine, ranks);
    repeat->is_control = is_control;
    repeat->n_launches = (double)engine_n_launches(bench->engine);
    repeat->ranks = ranks;
    fill_repeat(bench, &result, repeat);
    if (is_rank0(bench))
        log_info("%s %.2f ms a token, TTFT %.1f ms", is_control ? "control " : "pass    ", repeat->ms_per_token,
                 repeat->ttft_ms);
    return STATUS_OK;
}

/* Control and candidate take turns, so that what changes over time touches both alike. The candidate comes last: what
 * is asked of the engine afterwards is told of it. */
static status_t run_all(bench_t *bench) {
    for (size_t i = 0; i < bench->n_repeats; i++)
        TRY(run_once(bench, i, bench->options.n_control_routes && i % 2 == 0));
    run_memory_t mine = recorder_memory();
    comm_gather(bench->comm, &mine, sizeof mine, bench->memory);
    return STATUS_OK;
}

static status_t report(const bench_t *bench) {
    const options_t *options = &bench->options;
    json_t *options_json = options_to_json(COMMAND_BENCH, options);
    run_route_t routes[RECORDER_MAX_ROUTES];
    const bench_report_t figures = {.model = options->model,
                                    .model_digest = engine_get_info(bench->engine).model_digest,
                                    .backend = bench->backend->ops->name,
                                    .command_line = bench->command_line,
                                    .options = options_json,
                                    .control = options->n_control_routes ? options->control : NULL,
                                    .n_ranks = comm_tp_size(bench->comm),
                                    .prompt_len = options->prompt_len,
                                    .max_new = options->max_new,
                                    .warmup = options->warmup,
                                    .repeats = bench->repeats,
                                    .n_repeats = bench->n_repeats,
                                    .memory = bench->memory,
                                    .routes = routes,
                                    .n_routes = recorder_routes(bench->engine, routes)};
    bench_report_print(&figures, stdout);
    fflush(stdout);
    status_t status = STATUS_OK;
    if (options->json) status = json_write_file(bench_report_json(&figures), options->json);
    json_decref(options_json);
    return status;
}

/* The stages in order. What rank 0 alone finds wrong is agreed on before the others go on. */
static status_t run_stages(bench_t *bench, int argc, char **argv) {
    options_t *options = &bench->options;
    comm_t *comm = bench->comm;
    TRY(comm_agree(comm, options_parse(bench->store, COMMAND_BENCH, argc, argv, options)));
    if (options->help) {
        if (is_rank0(bench))
            options_help(stdout, COMMAND_BENCH, "mpirun -np T galvani bench --model DIR|synthetic:NAME [options]");
        return STATUS_OK;
    }
    options_apply(options);
    TRY(check_options(options, comm_tp_size(comm)));
    int64_t max_context = options->prompt_len + options->max_new;
    if (options->max_context > max_context) max_context = options->max_context;
    if (options->plan) return plan_print(options, comm, max_context);

    TRY(comm_agree(comm, is_rank0(bench) ? check_outputs(options) : STATUS_OK));
    TRY(comm_agree(comm, is_rank0(bench) ? make_prompt(bench) : STATUS_OK));
    comm_broadcast(comm, &bench->facts, sizeof bench->facts);
    TRY(comm_agree(comm, allocate_results(bench)));
    const load_args_t load = {
        .options = options, .comm = comm, .max_context = max_context, .n_valid_tokens = bench->facts.n_valid_tokens};
    TRY(load_engine(&load, &bench->backend, &bench->engine));
    TRY(run_all(bench));
    return comm_agree(comm, is_rank0(bench) ? report(bench) : STATUS_OK);
}

status_t cli_bench(int argc, char **argv, comm_t *comm) {
    bench_t bench = {.comm = comm};
    status_t status = option_store_create(&bench.store);
    if (status == STATUS_OK) status = options_join(argc, argv, &bench.command_line);
    status = comm_agree(comm, status);
    if (status == STATUS_OK) status = run_stages(&bench, argc, argv);
    engine_destroy(bench.engine);
    if (bench.backend) bench.backend->ops->destroy(bench.backend);
    memory_free(bench.request.tokens);
    memory_free(bench.wall_ns);
    memory_free(bench.repeats);
    memory_free(bench.ranks);
    memory_free(bench.memory);
    memory_free(bench.command_line);
    option_store_destroy(bench.store);
    return status;
}
