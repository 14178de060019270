/* galvani microbench: one operator at a time, as a table and as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "engine/engine.h"
#include "microbench/microbench.h"
#include "trace/provenance.h"

enum { MAX_ROWS_OF_OP = 1 + N_KERNEL_ROUTES };

typedef struct run {
    comm_t *comm;
    option_store_t *store;
    options_t options;
    char *command_line;
    model_config_t config;
    backend_t *backend;
    double bandwidth; /* bytes a second */
    microbench_row_t *rows;
    int n_rows;
} run_t;

static bool is_rank0(const run_t *run) { return comm_tp_rank(run->comm) == 0; }

enum { DEFAULT_CONTEXT = 8192 };

static status_t check_options(run_t *run) {
    options_t *options = &run->options;
    int tp_size = options->tp ? (int)options->tp : comm_tp_size(run->comm);
    const schema_options_t schema = {.tp_size = tp_size, .expert_format = EXPERTS_NVFP4, .ple_dtype = DTYPE_F8_E4M3};
    if (options->context == 0)
        options->context = run->config.max_position_embeddings < DEFAULT_CONTEXT ? run->config.max_position_embeddings
                                                                                 : DEFAULT_CONTEXT;
    for (int i = 0; i < options->n_words; i++) {
        int op = 0;
        while (op < microbench_n_ops && strcmp(microbench_ops[op]->name, options->words[i]) != 0)
            op++;
        if (op == microbench_n_ops)
            return status_fail(STATUS_USAGE, "there is no operator %s; see galvani microbench --help",
                               options->words[i]);
    }
    if (options->tp && comm_tp_size(run->comm) > 1 && options->tp != comm_tp_size(run->comm))
        return status_fail(STATUS_USAGE, "--tp %d stands beside mpirun -np %d; one rank can take the shapes of any T",
                           tp_size, comm_tp_size(run->comm));
    if (options->n_tokens > options->context)
        return status_fail(STATUS_USAGE, "a call of %" PRId64 " tokens does not fit a --context of %" PRId64,
                           options->n_tokens, options->context);
    TRY(schema_check(&run->config, &schema, STATUS_USAGE));
    if (options->context > run->config.max_position_embeddings)
        return status_fail(STATUS_USAGE, "--context is %" PRId64 "; the model's max_position_embeddings is %" PRId64,
                           options->context, run->config.max_position_embeddings);
    return STATUS_OK;
}

/* Those of kernels, and whether calls are recorded: the engine's others mean nothing to a single operator. */
static status_t set_routes(const run_t *run) {
    const options_t *options = &run->options;
    backend_t *backend = run->backend;
    for (int i = 0; i < options->n_routes; i++) {
        const route_choice_t *choice = &options->routes[i];
        TRY(engine_check_route(choice->name));
        bool is_known = strcmp(choice->name, "cuda_graph") == 0;
        if (is_known) backend->can_record = backend->can_record && choice->on;
        for (int route = 0; route < N_KERNEL_ROUTES && !is_known; route++) {
            is_known = strcmp(choice->name, kernel_route_name((kernel_route_t)route)) == 0;
            if (is_known && backend->ops->routes) backend->ops->routes(backend)[route].wanted = choice->on;
        }
        if (!is_known)
            return status_fail(
                STATUS_USAGE, "route %s belongs to whole steps: an operator has the routes of kernels and cuda_graph%s",
                choice->name, strcmp(choice->name, "dense8") == 0 ? "; see --dense" : "");
    }
    return STATUS_OK;
}

static bool is_wanted(const options_t *options, const char *name) {
    for (int i = 0; i < options->n_words; i++) {
        if (strcmp(options->words[i], name) == 0) return true;
    }
    return options->n_words == 0;
}

static double rate_of(const microbench_row_t *row) { return row->bytes / row->us * 1e6; }

static void print_head(const run_t *run, int tp_size) {
    const options_t *options = &run->options;
    printf("%s, shapes of one of %d rank%s, %s backend: %" PRId64 " token%s a call, %" PRId64
           " in the sequence\nfloor: the bytes that a call must move at %.0f GB/s (%s)\n\n",
           options->model, tp_size, tp_size == 1 ? "" : "s", run->backend->ops->name, options->n_tokens,
           options->n_tokens == 1 ? "" : "s", options->context, run->bandwidth / 1e9,
           options->bandwidth > 0 ? "--bandwidth" : "a copy, measured");
    printf("%-14s %10s %11s %9s %8s %7s %7s  %s\n", "operator", "error", "us", "MB", "GB/s", "floor", "copies",
           "routes");
    fflush(stdout);
}

static void print_row(const run_t *run, const microbench_row_t *row) {
    char error[16];
    snprintf(error, sizeof error, row->is_wrong ? "WRONG" : "%.1e", row->relative_error);
    printf("%-14s %10s %11.2f %9.3f %8.0f %5.0f %% %7d  %s%s%s\n", row->without ? "" : row->op, error, row->us,
           row->bytes / 1e6, rate_of(row) / 1e9, 100.0 * rate_of(row) / run->bandwidth, row->n_copies, row->routes,
           row->without ? (row->routes[0] ? "; without " : "without ") : "", row->without ? row->without : "");
    fflush(stdout);
}

static status_t write_json(const run_t *run, int tp_size) {
    const options_t *options = &run->options;
    char host[PROVENANCE_TEXT_BYTES], now[32];
    provenance_host(host);
    clock_utc_text(now, sizeof now);
    json_t *rows = json_array();
    for (int i = 0; i < run->n_rows; i++) {
        const microbench_row_t *row = &run->rows[i];
        json_t *entry = json_pack("{s:s, s:s, s:s?, s:b, s:f, s:f, s:f, s:f, s:f, s:i}", "op", row->op, "routes",
                                  row->routes, "without", row->without, "wrong", row->is_wrong, "relative_error",
                                  row->relative_error, "us", row->us, "bytes", row->bytes, "bytes_per_s", rate_of(row),
                                  "share_of_floor", rate_of(row) / run->bandwidth, "copies", row->n_copies);
        json_array_append_new(rows, entry);
    }
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:f, s:b, s:o}", "format",
                  "galvani-microbench", "model", options->model, "backend", run->backend->ops->name, "devices",
                  run->backend->facts.devices, "command_line", run->command_line, "options",
                  options_to_json(COMMAND_MICROBENCH, options), "git_commit", provenance_commit(), "host", host, "time",
                  now, "n_ranks", comm_tp_size(run->comm), "tp_size", tp_size, "tokens", (json_int_t)options->n_tokens,
                  "context", (json_int_t)options->context, "bytes_per_s", run->bandwidth, "bandwidth_measured",
                  options->bandwidth == 0, "rows", rows);
    return json_write_file(root, options->json);
}

static status_t measure(run_t *run, int tp_size) {
    const options_t *options = &run->options;
    int tp_rank = comm_tp_size(run->comm) > 1 ? comm_tp_rank(run->comm) : 0;
    dense_form_t dense;
    TRY(plan_dense_form(options, run->backend->ops, &dense));
    microbench_t bench = {.backend = run->backend,
                          .config = &run->config,
                          .local = local_shape(&run->config, tp_rank, tp_size),
                          .n_tokens = options->n_tokens,
                          .pos = options->context - options->n_tokens,
                          .operands = {.backend = run->backend, .dense = dense.is_8bit ? dense.dtype : DTYPE_F16}};
    run->bandwidth = options->bandwidth * 1e9;
    if (options->bandwidth == 0) TRY(microbench_bandwidth(run->backend, &run->bandwidth));
    if (is_rank0(run)) print_head(run, tp_size);
    bool is_wrong = false;
    for (int i = 0; i < microbench_n_ops; i++) {
        const microbench_op_t *op = microbench_ops[i];
        microbench_row_t *rows = run->rows + run->n_rows;
        int n_rows;
        if (!is_wanted(options, op->name) || (op->exists && !op->exists(&bench))) continue;
        TRY(microbench_measure(&bench, op, (int)options->passes, rows, &n_rows));
        for (int row = 0; row < n_rows; row++) {
            is_wrong = is_wrong || rows[row].is_wrong;
            if (is_rank0(run)) print_row(run, &rows[row]);
        }
        run->n_rows += n_rows;
    }
    return is_wrong ? status_fail(STATUS_NUMERICS, "an operator gave results that rounding cannot explain") : STATUS_OK;
}

static void print_help(void) {
    options_help(stdout, COMMAND_MICROBENCH, "[mpirun -np T] galvani microbench [OPERATOR...] [options]");
    printf("\nOperators (all)\n");
    for (int i = 0; i < microbench_n_ops; i++)
        printf("  %-30s %s\n", microbench_ops[i]->name, microbench_ops[i]->summary);
}

/* The stages in order. */
static status_t run_stages(run_t *run, int argc, char **argv) {
    options_t *options = &run->options;
    TRY(comm_agree(run->comm, options_parse(run->store, COMMAND_MICROBENCH, argc, argv, options)));
    if (options->help) {
        if (is_rank0(run)) print_help();
        return STATUS_OK;
    }
    options_apply(options);
    TRY(comm_agree(run->comm, load_config(options->model, &run->config)));
    TRY(check_options(run));
    TRY(comm_agree(run->comm, is_rank0(run) && options->json ? file_check_writable(options->json) : STATUS_OK));
    const backend_args_t backend_args = {
        .kind = plan_backend_kind(options->backend), .comm = run->comm, .all_reduce = options->comm};
    TRY(comm_agree(run->comm, backend_open(&backend_args, &run->backend)));
    TRY(set_routes(run));
    void *memory;
    size_t n_rows = (size_t)microbench_n_ops * MAX_ROWS_OF_OP;
    TRY(comm_agree(run->comm, memory_alloc(MEMORY_OTHER, n_rows, sizeof(microbench_row_t), &memory)));
    run->rows = memory;
    int tp_size = options->tp ? (int)options->tp : comm_tp_size(run->comm);
    status_t status = comm_agree(run->comm, measure(run, tp_size)), written = STATUS_OK;
    if (is_rank0(run) && options->json && (status == STATUS_OK || status == STATUS_NUMERICS))
        written = write_json(run, tp_size);
    return status != STATUS_OK ? status : comm_agree(run->comm, written);
}

status_t cli_microbench(int argc, char **argv, comm_t *comm) {
    run_t run = {.comm = comm};
    status_t status = option_store_create(&run.store);
    if (status == STATUS_OK) status = options_join(argc, argv, &run.command_line);
    status = comm_agree(comm, status);
    if (status == STATUS_OK) status = run_stages(&run, argc, argv);
    if (run.backend) run.backend->ops->destroy(run.backend);
    memory_free(run.rows);
    memory_free(run.command_line);
    option_store_destroy(run.store);
    return status;
}
