/* galvani run: the command line's prompt, or a file of requests one after another. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/requests.h"
#include "trace/run_reader.h"
#include "trace/run_tables.h"

enum { PATH_BYTES = 4096 };

/* What rank 0 knows after it has read the requests and the others need before they load. */
typedef struct plan {
    int64_t max_context;
    int32_t n_valid_tokens;
    int64_t n_requests;
    generation_config_t stops;
} plan_t;

typedef struct run {
    comm_t *comm;
    option_store_t *store;
    options_t options;
    char *command_line;
    tokenizer_t *tokenizer;  /* rank 0; NULL if the model has none */
    request_list_t requests; /* rank 0 */
    backend_t *backend;
    engine_t *engine;
    plan_t plan;
} run_t;

/* Rank 0: the requests as token ids, and what follows from them for all ranks. */
static status_t read_requests(run_t *run) {
    int tp_size = run->options.tp ? (int)run->options.tp : comm_tp_size(run->comm);
    model_config_t config;
    TRY(load_facts(&run->options, tp_size, &config, &run->tokenizer));

    requests_args_t args = {
        .store = run->store, .options = &run->options, .config = &config, .tokenizer = run->tokenizer};
    TRY(requests_build(&args, &run->requests));
    plan_t *plan = &run->plan;
    plan->n_requests = (int64_t)run->requests.n;
    plan->max_context = run->options.max_context;
    plan->n_valid_tokens = run->tokenizer ? tokenizer_n_tokens(run->tokenizer) : (int32_t)config.vocab_size;
    for (size_t i = 0; i < run->requests.n; i++) {
        const request_t *request = &run->requests.requests[i];
        int64_t length = (int64_t)request->n_tokens + request->options.max_new;
        if (length > plan->max_context) plan->max_context = length;
    }
    return generation_config_load(run->options.model, config.eos_token_id, (int32_t)config.vocab_size, &plan->stops);
}

/* That the run files can be written is known before anything is loaded. With --requests, --out is a directory that is
 * made here. */
static status_t prepare_out(const run_t *run) {
    char path[PATH_BYTES];
    if (!run->options.out) return STATUS_OK;
    if (!run->options.requests) return run_tables_check_path(run->options.out);
    if (mkdir(run->options.out, 0777) != 0 && errno != EEXIST)
        return status_fail(STATUS_DEVICE, "cannot make the directory %s: %s", run->options.out, strerror(errno));
    if (!file_is_directory(run->options.out))
        return status_fail(STATUS_USAGE, "--out %s is not a directory, as --requests needs", run->options.out);
    TRY(file_join(run->options.out, "request.h5", path, sizeof path));
    return run_tables_check_path(path);
}

static bool has_prompt(const options_t *options) {
    return options->prompt || options->prompt_file || options->tokens || options->tokens_file || options->requests;
}

/* Rank 0: where request `index` leaves its run file, "" for nowhere, and whether that file is already whole. */
static status_t find_path(const run_t *run, int64_t index, char path[PATH_BYTES], int *is_done) {
    path[0] = '\0';
    *is_done = 0;
    if (!run->options.out) return STATUS_OK;
    if (!run->options.requests) {
        if (strlen(run->options.out) >= PATH_BYTES) return status_fail(STATUS_USAGE, "--out is too long");
        strcpy(path, run->options.out);
        return STATUS_OK;
    }
    char name[REQUEST_ID_BYTES + 4];
    snprintf(name, sizeof name, "%s.h5", run->requests.requests[index].id);
    TRY(file_join(run->options.out, name, path, PATH_BYTES));
    *is_done = run_file_is_complete(path);
    return STATUS_OK;
}

static status_t run_requests(const run_t *run) {
    bool is_rank0 = comm_tp_rank(run->comm) == 0;
    generate_context_t context = {.engine = run->engine,
                                  .comm = run->comm,
                                  .backend = run->backend,
                                  .stops = run->plan.stops,
                                  .tokenizer = run->tokenizer,
                                  .command_line = run->command_line,
                                  .command = COMMAND_RUN};
    for (int64_t i = 0; i < run->plan.n_requests; i++) {
        char path[PATH_BYTES] = "";
        int is_done = 0;
        status_t status = interrupt_check();
        if (is_rank0 && status == STATUS_OK) status = find_path(run, i, path, &is_done);
        TRY(comm_agree(run->comm, status));
        comm_broadcast(run->comm, &is_done, sizeof is_done);
        const request_t *request = is_rank0 ? &run->requests.requests[i] : NULL;
        if (is_rank0 && request->id[0]) log_info("request  %s%s", request->id, is_done ? ": already done" : "");
        if (!is_done) TRY(generate(&context, request, path[0] ? path : NULL, NULL));
    }
    return STATUS_OK;
}

/* The stages in order. What rank 0 alone finds wrong is agreed on before the others go on. */
static status_t run_stages(run_t *run, int argc, char **argv) {
    TRY(comm_agree(run->comm, options_parse(run->store, COMMAND_RUN, argc, argv, &run->options)));
    bool is_rank0 = comm_tp_rank(run->comm) == 0;
    if (run->options.help) {
        if (is_rank0) options_help(stdout, COMMAND_RUN, "mpirun -np T galvani run --model DIR --prompt TEXT [options]");
        return STATUS_OK;
    }
    options_apply(&run->options);
    if (!run->options.model) return status_fail(STATUS_USAGE, "--model is missing; see galvani run --help");

    if (!run->options.plan && run->options.tp && run->options.tp != comm_tp_size(run->comm))
        return status_fail(STATUS_USAGE, "--tp %d needs as many ranks: start it with mpirun -np %d, or add --plan",
                           (int)run->options.tp, (int)run->options.tp);

    status_t status = STATUS_OK;
    if (is_rank0) {
        if (!run->options.plan) status = prepare_out(run);
        if (status == STATUS_OK && (!run->options.plan || has_prompt(&run->options))) status = read_requests(run);
    }
    TRY(comm_agree(run->comm, status));
    comm_broadcast(run->comm, &run->plan, sizeof run->plan);
    if (run->options.plan)
        return plan_print(&run->options, run->comm,
                          has_prompt(&run->options) ? run->plan.max_context : run->options.max_context);
    const load_args_t load = {.options = &run->options,
                              .comm = run->comm,
                              .max_context = run->plan.max_context,
                              .n_valid_tokens = run->plan.n_valid_tokens};
    TRY(load_engine(&load, &run->backend, &run->engine));
    return run_requests(run);
}

status_t cli_run(int argc, char **argv, comm_t *comm) {
    run_t run = {.comm = comm};
    status_t status = option_store_create(&run.store);
    if (status == STATUS_OK) status = options_join(argc, argv, &run.command_line);
    status = comm_agree(comm, status);
    if (status == STATUS_OK) status = run_stages(&run, argc, argv);
    engine_destroy(run.engine);
    if (run.backend) run.backend->ops->destroy(run.backend);
    requests_release(&run.requests);
    tokenizer_destroy(run.tokenizer);
    memory_free(run.command_line);
    option_store_destroy(run.store);
    return status;
}
