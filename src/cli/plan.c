#include "cli/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "model/memory_plan.h"
#include "model/tensor_source.h"
#include "shard/shard_file.h"

/* The model's tensors as rank 0 will hold them. */
typedef struct planned_model {
    model_config_t config;
    schema_tensor_t *tensors;
    size_t n_tensors;
    const char *note; /* "" or what was taken for granted */
} planned_model_t;

/* What there is to fit in. */
typedef struct room {
    bool is_known;
    size_t bytes; /* of the backend's memory for each rank */
} room_t;

static double gib(size_t bytes) { return (double)bytes / (1024.0 * 1024.0 * 1024.0); }

backend_kind_t plan_backend_kind(const char *name) {
    if (strcmp(name, "cpu") == 0) return BACKEND_CPU;
    return strcmp(name, "cuda") == 0 ? BACKEND_CUDA : BACKEND_AUTO;
}

status_t plan_dense_form(const options_t *options, const backend_ops_t *ops, dense_form_t *form) {
    bool is_auto = strcmp(options->dense, "auto") == 0, is_on = true, is_controlled = false;
    *form = (dense_form_t){0};
    if (strcmp(options->dense, "fp16") == 0) return STATUS_OK;
    /* The lane takes the form whose quality held (docs/performance.md); else weights are what the model says. */
    if (is_auto && (options->command != COMMAND_BENCH || !ops->takes_dense8)) return STATUS_OK;
    if (!ops->takes_dense8)
        return status_fail(STATUS_USAGE,
                           "--dense %s needs GPUs: the %s backend keeps weights as they are stored; take --dense auto",
                           options->dense, ops->name);
    for (int i = 0; i < options->n_routes; i++)
        if (strcmp(options->routes[i].name, "dense8") == 0) is_on = options->routes[i].on;
    for (int i = 0; i < options->n_control_routes; i++)
        is_controlled |= strcmp(options->control_routes[i].name, "dense8") == 0;
    form->is_8bit = is_on || is_controlled;
    form->dtype = strcmp(options->dense, "qpn8") == 0 ? DTYPE_QPN8 : DTYPE_Q8;
    form->keep_f16 = is_controlled;
    return STATUS_OK;
}

/* A directory without shards for so many ranks may be a checkpoint that has yet to be converted. */
static bool is_unsharded(const char *model, int tp_size) {
    char path[SHARD_PATH_BYTES];
    return strncmp(model, TENSOR_SOURCE_SYNTHETIC, strlen(TENSOR_SOURCE_SYNTHETIC)) != 0 &&
           shard_file_path(model, 0, tp_size, path) == STATUS_OK && !file_exists(path) &&
           file_join(model, "config.json", path, sizeof path) == STATUS_OK && file_exists(path);
}

static status_t read_model(const options_t *options, int tp_size, planned_model_t *model) {
    schema_options_t schema = {.tp_size = tp_size, .expert_format = EXPERTS_NVFP4, .ple_dtype = DTYPE_F8_E4M3};
    model->note = "";
    if (is_unsharded(options->model, tp_size)) {
        model->note = "; from its config.json alone: NVFP4 experts, FP8 PLE table";
        TRY(config_read(options->model, &model->config));
    } else {
        tensor_source_t *source;
        const tensor_source_args_t args = {.model = options->model, .tp_size = tp_size};
        TRY(tensor_source_open(&args, &source));
        model->config = tensor_source_info(source)->config;
        schema = tensor_source_info(source)->options;
        tensor_source_close(source);
    }
    TRY(schema_check(&model->config, &schema, STATUS_USAGE));
    return schema_build(&model->config, &schema, &model->tensors, &model->n_tensors);
}

/* Ranks of one host: those that run now, or all that are planned for. */
static int local_ranks(const options_t *options, comm_t *comm, int tp_size) {
    return options->device_memory || tp_size != comm_tp_size(comm) ? tp_size : comm_local_size(comm);
}

/* Collective: a device is opened by all ranks together. */
static void find_room(const options_t *options, comm_t *comm, backend_kind_t kind, int n_local, room_t *room) {
    backend_t *backend;
    *room = (room_t){.is_known = options->device_memory > 0, .bytes = (size_t)options->device_memory};
    if (room->is_known) return;
    if (backend_create(kind, comm, &backend) == STATUS_OK) {
        room->is_known = backend->ops->available(backend, n_local, &room->bytes) == STATUS_OK;
        backend->ops->destroy(backend);
    }
    status_clear();
}

static void print_line(const char *name, size_t bytes, const char *what) {
    printf("  %-14s %12.1f%s%s\n", name, (double)bytes / 1048576.0, what[0] ? "  " : "", what);
}

static void print_parts(const memory_plan_t *plan, bool is_device) {
    printf("                          MiB\n");
    for (int group = 0; group < WEIGHTS_N_GROUPS; group++)
        if (plan->weights[group])
            print_line(weight_group_name((weight_group_t)group), plan->weights[group], group == 0 ? "weights" : "");
    print_line("weights", plan->needed[MEMORY_WEIGHTS], "together");
    if (!is_device) print_line("ple_table", plan->needed[MEMORY_PLE_TABLE], "hashed n-gram embeddings");
    print_line("kv_cache", plan->needed[MEMORY_KV_CACHE], "keys, values and index keys");
    print_line("state", plan->needed[MEMORY_STATE], "GDN, convolutions, PLE");
    print_line("workspace", plan->needed[MEMORY_WORKSPACE], "activations and scratch");
    if (is_device) print_line("cuda_graph", plan->needed[MEMORY_CUDA_GRAPH], "estimate");
    print_line("comm", plan->needed[MEMORY_COMM], "communication buffers");
    if (is_device) print_line("rounding", plan->needed[MEMORY_OTHER], "of the weights' allocations to whole pages");
    if (is_device) print_line("runtime", plan->runtime, "device context, code, libraries; estimate");
}

/* The planned context and some usual ones, each with what it takes and leaves. */
static status_t print_contexts(const memory_plan_args_t *planned, const room_t *room) {
    int64_t limit = planned->config->max_position_embeddings, largest = 0;
    const int64_t contexts[] = {planned->max_context, 8192 + 512, 32768, 131072, limit};
    int64_t last = 0;
    printf("   context      GiB%s\n", room->is_known ? "     left" : "");
    while (last < limit) {
        int64_t next = limit;
        for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++)
            if (contexts[i] > last && contexts[i] < next) next = contexts[i];
        memory_plan_args_t args = *planned;
        memory_plan_t plan;
        args.max_context = next;
        TRY(memory_plan_make(&args, &plan));
        printf("%10" PRId64 " %8.2f", next, gib(plan.backend));
        if (room->is_known && plan.backend <= room->bytes) printf(" %8.2f", gib(room->bytes - plan.backend));
        if (room->is_known && plan.backend > room->bytes) printf("  lacks %.2f", gib(plan.backend - room->bytes));
        printf("\n");
        last = next;
    }
    if (!room->is_known) return STATUS_OK;
    TRY(memory_plan_largest_context(planned, room->bytes, &largest));
    printf("the largest context that fits: %" PRId64 " tokens%s\n", largest,
           largest == limit ? ", all that the model takes" : "");
    return STATUS_OK;
}

/* Where no device is here: what devices of usual sizes would take. */
static status_t print_usual_devices(const memory_plan_args_t *args) {
    static const int sizes_gib[] = {16, 24, 32, 40, 80};
    printf("no %s device is here; --device-memory tells what there is to fit in\n", args->ops->name);
    for (size_t i = 0; i < sizeof sizes_gib / sizeof *sizes_gib; i++) {
        int64_t largest;
        TRY(memory_plan_largest_context(args, (size_t)sizes_gib[i] << 30, &largest));
        printf("  devices of %d GiB take contexts up to %" PRId64 "\n", sizes_gib[i], largest);
    }
    return STATUS_OK;
}

static status_t print_plan(const options_t *options, const planned_model_t *model, const memory_plan_args_t *args,
                           int n_local, const room_t *room) {
    bool is_device = args->ops->is_device;
    memory_plan_t plan;
    TRY(memory_plan_make(args, &plan));
    printf("memory plan of %s: each of %d rank%s, %s backend, context %" PRId64 ", prefill chunk %" PRId64 "%s\n",
           options->model, args->local.tp_size, args->local.tp_size == 1 ? "" : "s", args->ops->name, args->max_context,
           plan.prefill_chunk, model->note);
    print_parts(&plan, is_device);
    print_line("total", plan.backend, is_device ? "device memory" : "");
    if (is_device) {
        print_line("pinned host", plan.host, "PLE table");
        printf("  together, for %d rank%s of one host: %.2f GiB\n", n_local, n_local == 1 ? "" : "s",
               gib(plan.host) * n_local);
    }
    printf("\n");
    if (room->is_known)
        printf("available to each rank: %.2f GiB%s\n", gib(room->bytes),
               options->device_memory ? " (--device-memory)" : "");
    else
        TRY(print_usual_devices(args));
    if (!is_device && strcmp(options->backend, "auto") == 0)
        printf("planned for the CPU, as no GPU is here; --device-memory 32GiB plans for GPUs of that size\n");
    TRY(print_contexts(args, room));
    if (room->is_known && plan.backend > room->bytes)
        return status_fail(STATUS_MEMORY,
                           "not enough memory: a rank needs %.2f GiB at a context of %" PRId64
                           ", and %.2f GiB are available",
                           gib(plan.backend), args->max_context, gib(room->bytes));
    return STATUS_OK;
}

static status_t check_context(const model_config_t *config, int64_t *max_context) {
    int64_t limit = config->max_position_embeddings;
    if (*max_context == 0) *max_context = limit < 8192 + 512 ? limit : 8192 + 512;
    if (*max_context <= limit) return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "a context of %" PRId64 " tokens is wanted; the model's max_position_embeddings is %" PRId64,
                       *max_context, limit);
}

static status_t plan_model(const options_t *options, planned_model_t *model, int tp_size, int n_local,
                           const backend_ops_t *ops, const room_t *room, int64_t max_context) {
    TRY(read_model(options, tp_size, model));
    TRY(check_context(&model->config, &max_context));
    dense_form_t dense;
    TRY(plan_dense_form(options, ops, &dense));
    memory_plan_args_t args = {.config = &model->config,
                               .dense = dense,
                               .tensors = model->tensors,
                               .n_tensors = model->n_tensors,
                               .local = local_shape(&model->config, 0, tp_size),
                               .ops = ops,
                               .max_context = max_context,
                               .prefill_chunk = options->prefill_chunk,
                               .available = room->is_known ? room->bytes : 0,
                               .record = ops->is_device};
    return print_plan(options, model, &args, n_local, room);
}

status_t plan_print(const options_t *options, comm_t *comm, int64_t max_context) {
    backend_kind_t kind = plan_backend_kind(options->backend);
    if (kind == BACKEND_AUTO && options->device_memory) kind = BACKEND_CUDA;
    int tp_size = options->tp ? (int)options->tp : comm_tp_size(comm);
    int n_local = local_ranks(options, comm, tp_size);
    room_t room;
    find_room(options, comm, kind, n_local, &room);
    if (comm_tp_rank(comm) != 0) return STATUS_OK;
    planned_model_t model = {0};
    status_t status = plan_model(options, &model, tp_size, n_local, backend_sizes(kind), &room, max_context);
    memory_free(model.tensors);
    return status;
}
