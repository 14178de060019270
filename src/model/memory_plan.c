#include "model/memory_plan.h"

#include <string.h>

#include "model/sequence.h"
#include "model/step.h"
#include "model/weights.h"

const char *weight_group_name(weight_group_t group) {
    static const char *const names[WEIGHTS_N_GROUPS] = {
        [WEIGHTS_EMBED] = "embed",     [WEIGHTS_LM_HEAD] = "lm_head", [WEIGHTS_GR] = "gr",
        [WEIGHTS_GDN] = "gdn",         [WEIGHTS_QSA] = "qsa",         [WEIGHTS_ROUTER] = "router",
        [WEIGHTS_EXPERTS] = "experts", [WEIGHTS_PLE] = "ple",         [WEIGHTS_SHARED_EXPERT] = "shared_expert",
    };
    return names[group];
}

/* By the dataset's path; the first part that it holds decides. */
static weight_group_t group_of(const char *path) {
    static const struct {
        const char *part;
        weight_group_t group;
    } parts[] = {
        {"/embed", WEIGHTS_EMBED},       {"/lm_head", WEIGHTS_LM_HEAD},
        {"/ple/", WEIGHTS_PLE},          {"_hc/", WEIGHTS_GR},
        {"/gdn/", WEIGHTS_GDN},          {"/qsa/", WEIGHTS_QSA},
        {"/moe/router", WEIGHTS_ROUTER}, {"/moe/shared_", WEIGHTS_SHARED_EXPERT},
        {"/moe/", WEIGHTS_EXPERTS},
    };
    size_t i = 0;
    while (!strstr(path, parts[i].part))
        i++;
    return parts[i].group;
}

static status_t add(size_t bytes, size_t *sum) {
    if (__builtin_add_overflow(*sum, bytes, sum))
        return status_fail(STATUS_MEMORY, "the memory needed does not fit in 64 bits");
    return STATUS_OK;
}

/* What an allocation of so many bytes takes besides. A little too much where tensors are stacked in one. */
static size_t rounding(size_t granule, size_t bytes) {
    return granule && bytes > granule / 2 ? (granule - bytes % granule) % granule : 0;
}

static status_t count_weights(const memory_plan_args_t *args, memory_plan_t *plan) {
    const weights_plan_t weights = {
        .config = args->config, .tensors = args->tensors, .n_tensors = args->n_tensors, .dense = args->dense};
    for (size_t i = 0; i < args->n_tensors; i++) {
        memory_label_t label;
        size_t bytes;
        TRY(weights_tensor_bytes(&weights, i, &label, &bytes));
        if (label != MEMORY_WEIGHTS) continue;
        TRY(add(bytes, &plan->weights[group_of(args->tensors[i].path)]));
        TRY(add(rounding(args->ops->alloc_granule, bytes), &plan->needed[MEMORY_OTHER]));
    }
    TRY(weights_count(&weights, plan->needed));
    /* The hash constants of PLE are no tensors. */
    size_t tensors = 0;
    for (int group = 0; group < WEIGHTS_N_GROUPS; group++)
        TRY(add(plan->weights[group], &tensors));
    return add(plan->needed[MEMORY_WEIGHTS] - tensors, &plan->weights[WEIGHTS_PLE]);
}

static status_t make_with_chunk(const memory_plan_args_t *args, int64_t prefill_chunk, memory_plan_t *plan) {
    memory_plan_t made = {.runtime = args->ops->runtime_bytes, .prefill_chunk = prefill_chunk};
    backend_t backend = {.ops = args->ops};
    const sequence_args_t sequence = {
        .config = args->config, .local = args->local, .backend = &backend, .max_context = args->max_context};
    const step_args_t step = {.config = args->config,
                              .local = args->local,
                              .backend = &backend,
                              .max_tokens = prefill_chunk,
                              .max_context = args->max_context};
    TRY(count_weights(args, &made));
    sequence_count(&sequence, made.needed);
    step_count(&step, made.needed);
    if (args->record)
        made.needed[MEMORY_CUDA_GRAPH] = args->ops->recorded_layer_bytes * (size_t)args->config->num_hidden_layers;
    if (args->local.tp_size > 1) made.needed[MEMORY_COMM] = args->ops->comm_peer_bytes * (size_t)args->local.tp_size;

    TRY(add(made.runtime, &made.backend));
    for (int label = 0; label < MEMORY_N_LABELS; label++) {
        bool is_apart = label == MEMORY_PLE_TABLE && args->ops->is_device;
        TRY(add(made.needed[label], is_apart ? &made.host : &made.backend));
    }
    *plan = made;
    return STATUS_OK;
}

status_t memory_plan_make(const memory_plan_args_t *args, memory_plan_t *plan) {
    int64_t chunk = args->prefill_chunk ? args->prefill_chunk : args->ops->prefill_chunk;
    if (chunk > args->max_context) chunk = args->max_context;
    TRY(make_with_chunk(args, chunk, plan));
    while (!args->prefill_chunk && args->available && plan->backend > args->available &&
           chunk / 2 >= MEMORY_PLAN_LEAST_CHUNK) {
        chunk /= 2;
        TRY(make_with_chunk(args, chunk, plan));
    }
    return STATUS_OK;
}

status_t memory_plan_largest_context(const memory_plan_args_t *args, size_t available, int64_t *max_context) {
    int64_t fits = 0, too_much = args->config->max_position_embeddings + 1;
    while (too_much - fits > 1) {
        memory_plan_args_t tried = *args;
        memory_plan_t plan;
        tried.max_context = fits + (too_much - fits) / 2;
        tried.available = available;
        TRY(memory_plan_make(&tried, &plan));
        if (plan.backend <= available)
            fits = tried.max_context;
        else
            too_much = tried.max_context;
    }
    *max_context = fits;
    return STATUS_OK;
}
