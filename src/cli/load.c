#include "cli/load.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/plan.h"
#include "model/synthetic.h"
#include "model/tensor_source.h"

enum { PATH_BYTES = 4096 };

static status_t load_tokenizer(const char *model, const model_config_t *config, tokenizer_t **tokenizer) {
    char path[PATH_BYTES];
    TRY(file_join(model, "tokenizer.json", path, sizeof path));
    if (!file_exists(path)) return STATUS_OK;
    TRY(tokenizer_load(model, tokenizer));
    int32_t n_tokens = tokenizer_n_tokens(*tokenizer);
    if (n_tokens <= config->vocab_size) return STATUS_OK;
    return status_fail(STATUS_INPUT,
                       "%s has %" PRId32 " tokens, but the model's vocabulary %" PRId64 ": it is of another model",
                       path, n_tokens, config->vocab_size);
}

status_t load_config(const char *model, model_config_t *config) {
    size_t prefix = strlen(TENSOR_SOURCE_SYNTHETIC), bytes = strlen(model);
    bool is_synthetic = strncmp(model, TENSOR_SOURCE_SYNTHETIC, prefix) == 0;
    bool is_file = bytes > 5 && strcmp(model + bytes - 5, ".json") == 0;
    if (!is_synthetic && !is_file) return config_read(model, config);
    char *json;
    TRY(synthetic_config(is_synthetic ? model + prefix : model, config, &json));
    memory_free(json);
    return STATUS_OK;
}

status_t load_facts(const options_t *options, int tp_size, model_config_t *config, tokenizer_t **tokenizer) {
    const tensor_source_args_t args = {
        .model = options->model, .tp_size = tp_size, .seed = (uint64_t)options->synthetic_seed};
    tensor_source_t *source;
    *tokenizer = NULL;
    TRY(tensor_source_open(&args, &source));
    *config = tensor_source_info(source)->config;
    tensor_source_close(source);
    status_t status = load_tokenizer(options->model, config, tokenizer);
    if (status != STATUS_OK) {
        tokenizer_destroy(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}

status_t load_engine(const load_args_t *args, backend_t **backend, engine_t **engine) {
    const options_t *options = args->options;
    int64_t begin_ns = clock_now_ns();
    *backend = NULL;
    *engine = NULL;
    for (int i = 0; i < options->n_routes; i++)
        TRY(engine_check_route(options->routes[i].name));
    for (int i = 0; i < options->n_control_routes; i++)
        TRY(engine_check_route(options->control_routes[i].name));
    const backend_args_t backend_args = {
        .kind = plan_backend_kind(options->backend), .comm = args->comm, .all_reduce = options->comm};
    TRY(comm_agree(args->comm, backend_open(&backend_args, backend)));
    dense_form_t dense;
    TRY(plan_dense_form(options, (*backend)->ops, &dense));
    const engine_args_t engine_args = {.model = options->model,
                                       .dense = dense,
                                       .synthetic_seed = (uint64_t)options->synthetic_seed,
                                       .comm = args->comm,
                                       .backend = *backend,
                                       .max_context = args->max_context,
                                       .prefill_chunk = options->prefill_chunk,
                                       .n_valid_tokens = args->n_valid_tokens,
                                       .cuda_graph = true,
                                       .show_progress = !options->quiet};
    TRY(engine_create(&engine_args, engine));
    log_info("loaded   %s in %.2f s, %.1f MiB a rank", options->model, (double)(clock_now_ns() - begin_ns) / 1e9,
             (double)memory_bytes(MEMORY_WEIGHTS) / 1048576.0);
    return load_routes(options, *engine);
}

status_t load_routes(const options_t *options, engine_t *engine) {
    size_t n_routes;
    const engine_route_t *routes = engine_routes(engine, &n_routes);
    for (size_t i = 0; i < n_routes; i++)
        TRY(engine_set_route(engine, routes[i].name, true));
    for (int i = 0; i < options->n_routes; i++)
        TRY(engine_set_route(engine, options->routes[i].name, options->routes[i].on));
    return STATUS_OK;
}
