#include "model/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "router/router.h"
#include "shard/progress.h"

/* Multipliers, sizes and offsets of a PLE layer's n-gram hash. */
enum { N_NGRAM_ARRAYS = 3 };

typedef struct loader {
    tensor_source_t *source;
    const schema_tensor_t *tensors;
    size_t n_tensors;
    weights_t *weights;
    char group[32]; /* "/layers/07" */
    void *staging;  /* for what is widened before it goes where it belongs */
    size_t staging_bytes;
    double *dense_errors; /* [DENSE_N_ROLES, DENSE8_ERRORS] in backend memory; NULL for FP16 */
    progress_t progress;
} loader_t;

/* Vectors and convolution taps are few and are used in FP32 arithmetic, so they are kept as FP32. */
static bool is_widened(const schema_tensor_t *tensor) {
    const char *name = strrchr(tensor->path, '/') + 1;
    return tensor->dtype == DTYPE_BF16 && (tensor->n_dims == 1 || strcmp(name, "conv1d") == 0);
}

static memory_label_t label_of(const schema_tensor_t *tensor) {
    const char *name = strrchr(tensor->path, '/') + 1;
    return strcmp(name, "table") == 0 ? MEMORY_PLE_TABLE : MEMORY_WEIGHTS;
}

/* Of the router's matrix, behind the shared expert's gate. */
static int64_t n_router_zeros(const model_config_t *config) {
    return router_rows(config->num_experts) - config->num_experts - 1;
}

/* As it is stored, or widened. */
static status_t memory_of(const schema_tensor_t *tensor, size_t *bytes) {
    *bytes = 0;
    if (strcmp(strrchr(tensor->path, '/') + 1, "table_scale") == 0) return STATUS_OK; /* stands in ple_weights_t */
    TRY(schema_tensor_bytes(tensor, bytes));
    return is_widened(tensor) ? memory_product(*bytes, sizeof(float) / sizeof(uint16_t), bytes) : STATUS_OK;
}

status_t weights_tensor_bytes(const weights_plan_t *plan, size_t index, memory_label_t *label, size_t *bytes) {
    const schema_tensor_t *tensor = &plan->tensors[index];
    *label = label_of(tensor);
    TRY(memory_of(tensor, bytes));
    if (strcmp(strrchr(tensor->path, '/') + 1, "shared_expert_gate") == 0)
        *bytes *= (size_t)(1 + n_router_zeros(plan->config));
    if (plan->dense.is_8bit && dense_role_of(tensor) < DENSE_N_ROLES) *bytes = dense_tensor_bytes(tensor, &plan->dense);
    return STATUS_OK;
}

status_t weights_count(const weights_plan_t *plan, size_t needed[MEMORY_N_LABELS]) {
    const model_config_t *config = plan->config;
    for (size_t i = 0; i < plan->n_tensors; i++) {
        memory_label_t label;
        size_t bytes;
        TRY(weights_tensor_bytes(plan, i, &label, &bytes));
        needed[label] += bytes;
    }
    int64_t n_constants = config->ngram_size + 2 * config_n_ngram_heads(config);
    needed[MEMORY_WEIGHTS] += (size_t)(config->n_ple_layers * n_constants) * sizeof(int64_t);
    if (plan->dense.is_8bit) needed[MEMORY_WORKSPACE] += dense_scratch_bytes(plan->tensors, plan->n_tensors);
    return STATUS_OK;
}

static status_t reserve_staging(loader_t *loader, size_t bytes) {
    if (bytes <= loader->staging_bytes) return STATUS_OK;
    memory_free(loader->staging);
    loader->staging = NULL;
    loader->staging_bytes = 0;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &loader->staging));
    loader->staging_bytes = bytes;
    return STATUS_OK;
}

static status_t allocate(loader_t *loader, memory_label_t label, size_t bytes, void **pointer) {
    weights_t *weights = loader->weights;
    backend_t *backend = weights->backend;
    TRY(backend->ops->alloc(backend, label, bytes, pointer));
    weights->allocations[weights->n_allocations++] = *pointer;
    return STATUS_OK;
}

/* The tensor GROUP/NAME. The source has the whole schema. */
static status_t find(const loader_t *loader, const char *name, size_t *index) {
    char path[SCHEMA_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", loader->group, name);
    for (size_t i = 0; i < loader->n_tensors; i++) {
        if (strcmp(loader->tensors[i].path, path) == 0) {
            *index = i;
            return STATUS_OK;
        }
    }
    return status_fail(STATUS_INPUT, "the shard holds no tensor %s", path);
}

static status_t read_tensor(loader_t *loader, size_t index, void *destination) {
    size_t bytes;
    TRY(schema_tensor_bytes(&loader->tensors[index], &bytes));
    TRY(tensor_source_load(loader->source, index, loader->weights->backend, destination));
    progress_add(&loader->progress, bytes);
    return STATUS_OK;
}

/* One tensor as it is stored. */
static status_t load_tensor(loader_t *loader, const char *name, void **data) {
    size_t index, bytes;
    TRY(find(loader, name, &index));
    TRY(schema_tensor_bytes(&loader->tensors[index], &bytes));
    TRY(allocate(loader, label_of(&loader->tensors[index]), bytes, data));
    return read_tensor(loader, index, *data);
}

/* The rows of several matrices of equal width, one below the other, in `place`; NULL: in memory of their own. `names`
 * ends with NULL; so many rows of zeros follow. */
static status_t load_stored(loader_t *loader, const char *const names[], int64_t n_zero_rows, void *place,
                            matrix_t *matrix) {
    size_t index, bytes, total = 0;
    int64_t n_rows = 0;
    for (int i = 0; names[i]; i++) {
        TRY(find(loader, names[i], &index));
        TRY(schema_tensor_bytes(&loader->tensors[index], &bytes));
        total += bytes;
        n_rows += loader->tensors[index].shape[0];
    }
    const schema_tensor_t *last = &loader->tensors[index];
    total += bytes / (size_t)last->shape[0] * (size_t)n_zero_rows;
    n_rows += n_zero_rows;
    void *data = place; /* memory comes cleared */
    if (!place) TRY(allocate(loader, label_of(last), total, &data));
    *matrix = (matrix_t){.data = data, .dtype = last->dtype, .rows = n_rows, .columns = last->shape[1]};
    for (int i = 0; names[i]; i++) {
        TRY(find(loader, names[i], &index));
        TRY(read_tensor(loader, index, data));
        TRY(schema_tensor_bytes(&loader->tensors[index], &bytes));
        data = (char *)data + bytes;
    }
    return STATUS_OK;
}

/* The same, in the form that the backend's ops take. */
static status_t load_stack(loader_t *loader, const char *const names[], matrix_t *matrix) {
    backend_t *backend = loader->weights->backend;
    TRY(load_stored(loader, names, 0, NULL, matrix));
    return backend->ops->adopt_matrix(backend, matrix);
}

/* A dense projection, in the form that is asked for. The FP16 one passes through the scratch unless it is kept. */
static status_t load_dense(loader_t *loader, dense_role_t role, const char *const names[], matrix_t *matrix) {
    weights_t *weights = loader->weights;
    backend_t *backend = weights->backend;
    if (!weights->dense.is_8bit) return load_stack(loader, names, matrix);
    matrix_t f16;
    void *memory;
    TRY(load_stored(loader, names, 0, weights->dense.keep_f16 ? NULL : weights->dense_scratch, &f16));
    TRY(backend->ops->adopt_matrix(backend, &f16));
    TRY(allocate(loader, MEMORY_WEIGHTS, dense8_bytes(weights->dense.dtype, f16.rows, f16.columns), &memory));
    const dense8_args_t args = {.source = f16,
                                .target = dense8_matrix(weights->dense.dtype, f16.rows, f16.columns, memory),
                                .errors = loader->dense_errors + role * DENSE8_ERRORS};
    TRY(backend->ops->dense8_quantize(backend, &args));
    *matrix = args.target;
    if (weights->dense.keep_f16)
        weights->dense_pairs[weights->n_dense_pairs++] =
            (dense_pair_t){.place = matrix, .f16 = f16, .dense8 = args.target};
    return STATUS_OK;
}

static status_t load_matrix(loader_t *loader, const char *name, matrix_t *matrix) {
    return load_stack(loader, (const char *const[]){name, NULL}, matrix);
}

/* A vector or the taps of a convolution, as FP32. */
static status_t load_floats(loader_t *loader, const char *name, float **data) {
    size_t index, bytes, float_bytes;
    TRY(find(loader, name, &index));
    const schema_tensor_t *tensor = &loader->tensors[index];
    TRY(schema_tensor_bytes(tensor, &bytes));
    TRY(memory_of(tensor, &float_bytes));
    void *destination;
    TRY(allocate(loader, label_of(tensor), float_bytes, &destination));
    *data = destination;
    if (!is_widened(tensor)) return read_tensor(loader, index, destination);

    progress_add(&loader->progress, bytes);
    TRY(reserve_staging(loader, float_bytes + bytes));
    float *widened = loader->staging;
    uint16_t *stored = (uint16_t *)(void *)((char *)loader->staging + float_bytes);
    TRY(tensor_source_read(loader->source, index, stored));
    for (size_t i = 0; i < bytes / sizeof *stored; i++)
        widened[i] = bf16_to_float(stored[i]);
    backend_t *backend = loader->weights->backend;
    return backend->ops->upload(backend, destination, widened, float_bytes);
}

static void set_group(loader_t *loader, const char *group, int64_t layer) {
    snprintf(loader->group, sizeof loader->group, "/%s/%02" PRId64, group, layer);
}

static status_t load_gr(loader_t *loader, const char *mixer, bool with_inject, gr_weights_t *weights) {
    char name[64];
    snprintf(name, sizeof name, "%s/hc_norm", mixer);
    TRY(load_floats(loader, name, &weights->hc_norm));
    snprintf(name, sizeof name, "%s/input_mix_weight_down", mixer);
    TRY(load_dense(loader, DENSE_GR_DOWN, (const char *const[]){name, NULL}, &weights->down));
    snprintf(name, sizeof name, "%s/input_mix_weight_up", mixer);
    TRY(load_dense(loader, DENSE_GR_UP, (const char *const[]){name, NULL}, &weights->up));
    if (!with_inject) return STATUS_OK;
    snprintf(name, sizeof name, "%s/block_inject_weight", mixer);
    return load_matrix(loader, name, &weights->block_inject);
}

static status_t load_gdn(loader_t *loader, gdn_weights_t *weights) {
    static const char *const in_proj[] = {"gdn/in_proj_qkv", "gdn/in_proj_z", "gdn/in_proj_b", "gdn/in_proj_a", NULL};
    static const char *const out_proj[] = {"gdn/out_proj", NULL};
    TRY(load_dense(loader, DENSE_GDN_IN, in_proj, &weights->in_proj));
    TRY(load_floats(loader, "gdn/conv1d", &weights->conv));
    TRY(load_floats(loader, "gdn/A_log", &weights->A_log));
    TRY(load_floats(loader, "gdn/dt_bias", &weights->dt_bias));
    TRY(load_floats(loader, "gdn/norm", &weights->norm));
    return load_dense(loader, DENSE_GDN_OUT, out_proj, &weights->out_proj);
}

static status_t load_qsa(loader_t *loader, qsa_weights_t *weights) {
    static const char *const in_proj[] = {"qsa/q_proj", "qsa/k_proj", "qsa/v_proj", "qsa/index_qk_proj", NULL};
    static const char *const o_proj[] = {"qsa/o_proj", NULL};
    TRY(load_dense(loader, DENSE_QSA_IN, in_proj, &weights->in_proj));
    TRY(load_floats(loader, "qsa/q_norm", &weights->q_norm));
    TRY(load_floats(loader, "qsa/k_norm", &weights->k_norm));
    TRY(load_floats(loader, "qsa/index_q_norm", &weights->index_q_norm));
    TRY(load_floats(loader, "qsa/index_k_norm", &weights->index_k_norm));
    return load_dense(loader, DENSE_QSA_OUT, o_proj, &weights->o_proj);
}

static status_t load_experts(loader_t *loader, expert_weights_t *experts) {
    void *data;
    if (tensor_source_info(loader->source)->options.expert_format == EXPERTS_F16) {
        TRY(load_tensor(loader, "moe/gate_up", &data));
        experts->gate_up_f16 = data;
        TRY(load_tensor(loader, "moe/down", &data));
        experts->down_f16 = data;
        return STATUS_OK;
    }
    TRY(load_tensor(loader, "moe/gate_up_codes", &data));
    experts->gate_up_codes = data;
    TRY(load_tensor(loader, "moe/gate_up_scales", &data));
    experts->gate_up_scales = data;
    TRY(load_tensor(loader, "moe/gate_up_scale_2", &data));
    experts->gate_up_scale_2 = data;
    TRY(load_tensor(loader, "moe/down_codes", &data));
    experts->down_codes = data;
    TRY(load_tensor(loader, "moe/down_scales", &data));
    experts->down_scales = data;
    TRY(load_tensor(loader, "moe/down_scale_2", &data));
    experts->down_scale_2 = data;
    return STATUS_OK;
}

static status_t load_moe(loader_t *loader, moe_weights_t *weights) {
    static const char *const router[] = {"moe/router", "moe/shared_expert_gate", NULL};
    static const char *const gate_up[] = {"moe/shared_gate_proj", "moe/shared_up_proj", NULL};
    backend_t *backend = loader->weights->backend;
    TRY(load_stored(loader, router, n_router_zeros(&loader->weights->config), NULL, &weights->router));
    TRY(backend->ops->adopt_matrix(backend, &weights->router));
    TRY(load_stack(loader, gate_up, &weights->shared_gate_up));
    TRY(load_matrix(loader, "moe/shared_down_proj", &weights->shared_down));
    return load_experts(loader, &weights->experts);
}

static status_t upload_constants(loader_t *loader, const int64_t *values, int64_t n, int64_t **constants) {
    backend_t *backend = loader->weights->backend;
    void *data;
    TRY(allocate(loader, MEMORY_WEIGHTS, (size_t)n * sizeof *values, &data));
    *constants = data;
    return backend->ops->upload(backend, data, values, (size_t)n * sizeof *values);
}

static status_t load_ngram(loader_t *loader, ple_weights_t *weights) {
    const ngram_constants_t *ngram = &weights->ngram;
    TRY(upload_constants(loader, ngram->multipliers, ngram->ngram_size, &weights->multipliers));
    TRY(upload_constants(loader, ngram->head_sizes, ngram->n_heads, &weights->head_sizes));
    return upload_constants(loader, ngram->head_offsets, ngram->n_heads, &weights->head_offsets);
}

static status_t load_ple(loader_t *loader, int64_t ple_index, ple_weights_t *weights) {
    static const char *const kv_proj[] = {"key_proj", "value_proj", NULL};
    const weights_t *model = loader->weights;
    ngram_derive(&model->config, ple_index, &weights->ngram);
    set_group(loader, "ple", model->config.ple_layers[ple_index]);
    TRY(load_stored(loader, (const char *const[]){"table", NULL}, 0, NULL, &weights->table));
    TRY(load_ngram(loader, weights));
    weights->first_row = model->local.tp_rank * weights->table.rows;
    size_t index;
    TRY(find(loader, "table_scale", &index));
    TRY(tensor_source_read(loader->source, index, &weights->table_scale));
    TRY(load_stack(loader, kv_proj, &weights->kv_proj));
    TRY(load_floats(loader, "norm_key", &weights->norm_key));
    TRY(load_floats(loader, "norm_query", &weights->norm_query));
    TRY(load_floats(loader, "norm_conv", &weights->norm_conv));
    return load_floats(loader, "conv1d", &weights->conv);
}

static status_t load_layer(loader_t *loader, int64_t layer) {
    TRY(interrupt_check());
    weights_t *model = loader->weights;
    layer_weights_t *weights = &model->layers[layer];
    int64_t ple_index;
    if (config_ple_index(&model->config, layer, &ple_index)) {
        TRY(load_ple(loader, ple_index, &model->ple[ple_index]));
        weights->ple = &model->ple[ple_index];
    }
    set_group(loader, "layers", layer);
    TRY(load_gr(loader, "attn_hc", true, &weights->attn_hc));
    if (model->config.layer_types[layer] == LAYER_GDN)
        TRY(load_gdn(loader, &weights->gdn));
    else
        TRY(load_qsa(loader, &weights->qsa));
    TRY(load_gr(loader, "mlp_hc", true, &weights->mlp_hc));
    return load_moe(loader, &weights->moe);
}

static status_t load_ends(loader_t *loader) {
    weights_t *model = loader->weights;
    loader->group[0] = '\0';
    TRY(load_matrix(loader, "embed", &model->embed));
    TRY(load_matrix(loader, "lm_head", &model->lm_head));
    return load_gr(loader, "final_hc", false, &model->final_hc);
}

/* The struct with its arrays, all matrices still empty. */
static status_t create_empty(const tensor_source_t *source, backend_t *backend, const dense_form_t *dense,
                             size_t n_tensors, weights_t **weights) {
    const shard_info_t *info = tensor_source_info(source);
    void *memory;
    status_t status;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(weights_t), &memory));
    weights_t *created = memory;
    created->config = info->config;
    created->local = local_shape(&info->config, info->options.tp_rank, info->options.tp_size);
    created->backend = backend;
    created->dense = *dense;
    size_t n_allocations = 2 * n_tensors + N_NGRAM_ARRAYS * (size_t)info->config.n_ple_layers;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, n_allocations, sizeof(void *), &memory), failed);
    created->allocations = memory;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, (size_t)info->config.num_hidden_layers, sizeof(layer_weights_t), &memory),
             failed);
    created->layers = memory;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, (size_t)info->config.n_ple_layers, sizeof(ple_weights_t), &memory), failed);
    created->ple = memory;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, dense->keep_f16 ? n_tensors : 0, sizeof(dense_pair_t), &memory), failed);
    created->dense_pairs = memory;
    *weights = created;
    return STATUS_OK;

failed:
    weights_destroy(created);
    return status;
}

static status_t begin_progress(loader_t *loader, bool is_shown) {
    uint64_t total = 0;
    for (size_t i = 0; i < loader->n_tensors; i++) {
        size_t bytes;
        TRY(schema_tensor_bytes(&loader->tensors[i], &bytes));
        total += bytes;
    }
    progress_start(&loader->progress, "loading", total, is_shown);
    return STATUS_OK;
}

/* What each rank has read, and how fast. Collective. */
static status_t report(loader_t *loader) {
    comm_t *comm = loader->weights->backend->comm;
    struct {
        double gb, gb_per_s;
    } own, *all = NULL;
    void *memory;
    double seconds = (double)(clock_now_ns() - loader->progress.start_ns) / 1e9;
    own.gb = (double)loader->progress.done_bytes / 1e9;
    own.gb_per_s = own.gb / seconds;
    bool is_root = comm_tp_rank(comm) == 0;
    TRY(comm_agree(comm,
                   is_root ? memory_alloc(MEMORY_OTHER, (size_t)comm_tp_size(comm), sizeof own, &memory) : STATUS_OK));
    if (is_root) all = memory;
    comm_gather(comm, &own, sizeof own, all);
    for (int rank = 0; is_root && rank < comm_tp_size(comm); rank++)
        log_info("weights  rank %d: %.2f GB at %.2f GB/s", rank, all[rank].gb, all[rank].gb_per_s);
    memory_free(all);
    return STATUS_OK;
}

static status_t prepare_dense(loader_t *loader) {
    weights_t *weights = loader->weights;
    backend_t *backend = weights->backend;
    void *memory;
    if (!weights->dense.is_8bit) return STATUS_OK;
    size_t bytes = dense_scratch_bytes(loader->tensors, loader->n_tensors);
    TRY(backend->ops->alloc(backend, MEMORY_WORKSPACE, bytes, &weights->dense_scratch));
    backend->ops->set_dense8_scratch(backend, weights->dense_scratch);
    bytes = (size_t)DENSE_N_ROLES * DENSE8_ERRORS * sizeof(double);
    TRY(backend->ops->alloc(backend, MEMORY_OTHER, bytes, &memory));
    loader->dense_errors = memory;
    return STATUS_OK;
}

static status_t read_dense_errors(loader_t *loader) {
    backend_t *backend = loader->weights->backend;
    if (!loader->dense_errors) return STATUS_OK;
    for (int role = 0; role < DENSE_N_ROLES; role++) {
        double squares[2];
        TRY(backend->ops->download(backend, squares, loader->dense_errors + role * DENSE8_ERRORS, sizeof squares));
        loader->weights->dense_errors[role] = squares[1] > 0.0 ? sqrt(squares[0] / squares[1]) : 0.0;
    }
    return STATUS_OK;
}

static void loader_close(loader_t *loader, backend_t *backend) {
    progress_end(&loader->progress);
    memory_free(loader->staging);
    backend->ops->free(backend, loader->dense_errors);
}

status_t weights_load(tensor_source_t *source, backend_t *backend, const dense_form_t *dense, bool show_progress,
                      weights_t **weights) {
    comm_t *comm = backend->comm;
    loader_t loader = {.source = source};
    loader.tensors = tensor_source_tensors(source, &loader.n_tensors);
    weights_t *created = NULL;
    status_t status = begin_progress(&loader, show_progress && comm_tp_rank(comm) == 0);
    if (status == STATUS_OK) status = create_empty(source, backend, dense, loader.n_tensors, &created);
    TRY_GOTO(comm_agree(comm, status), failed);
    loader.weights = created;
    TRY_GOTO(comm_agree(comm, prepare_dense(&loader)), failed);
    TRY_GOTO(comm_agree(comm, load_ends(&loader)), failed);
    for (int64_t layer = 0; layer < created->config.num_hidden_layers; layer++)
        TRY_GOTO(comm_agree(comm, load_layer(&loader, layer)), failed);
    TRY_GOTO(comm_agree(comm, backend->ops->loaded(backend)), failed);
    if (show_progress) TRY_GOTO(report(&loader), failed);
    TRY_GOTO(comm_agree(comm, read_dense_errors(&loader)), failed);
    loader_close(&loader, backend);
    *weights = created;
    return STATUS_OK;

failed:
    loader_close(&loader, backend);
    weights_destroy(created);
    return status;
}

void weights_use_dense8(weights_t *weights, bool on) {
    for (size_t i = 0; i < weights->n_dense_pairs; i++) {
        const dense_pair_t *pair = &weights->dense_pairs[i];
        *pair->place = on ? pair->dense8 : pair->f16;
    }
}

void weights_destroy(weights_t *weights) {
    if (!weights) return;
    backend_t *backend = weights->backend;
    for (size_t i = 0; i < weights->n_allocations; i++)
        backend->ops->free(backend, weights->allocations[i]);
    if (weights->dense_scratch) backend->ops->set_dense8_scratch(backend, NULL);
    backend->ops->free(backend, weights->dense_scratch);
    memory_free(weights->dense_pairs);
    memory_free(weights->allocations);
    memory_free(weights->layers);
    memory_free(weights->ple);
    memory_free(weights);
}
