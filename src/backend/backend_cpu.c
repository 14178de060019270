#include "backend/backend_cpu.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"

static status_t cpu_check_memory(backend_t *backend, const size_t needed[MEMORY_N_LABELS]) {
    size_t rank_bytes = 0, host_bytes;
    for (int label = 0; label < MEMORY_N_LABELS; label++) {
        if (__builtin_add_overflow(rank_bytes, needed[label], &rank_bytes))
            return status_fail(STATUS_MEMORY, "the memory needed does not fit in 64 bits");
    }
    int n_ranks = comm_local_size(backend->comm);
    TRY(memory_product(rank_bytes, (size_t)n_ranks, &host_bytes));
    size_t available = memory_available_bytes();
    if (host_bytes <= available) return STATUS_OK;

    const double gib = 1024.0 * 1024.0 * 1024.0;
    return status_fail(
        STATUS_MEMORY,
        "not enough memory: %d rank(s) on this host need %.2f GiB each (weights %.2f, PLE table %.2f, "
        "KV cache %.2f, rest %.2f), %.2f GiB together, and %.2f GiB are available",
        n_ranks, (double)rank_bytes / gib, (double)needed[MEMORY_WEIGHTS] / gib, (double)needed[MEMORY_PLE_TABLE] / gib,
        (double)needed[MEMORY_KV_CACHE] / gib,
        (double)(rank_bytes - needed[MEMORY_WEIGHTS] - needed[MEMORY_PLE_TABLE] - needed[MEMORY_KV_CACHE]) / gib,
        (double)host_bytes / gib, (double)available / gib);
}

static status_t cpu_available(backend_t *backend, int n_ranks, size_t *bytes) {
    (void)backend;
    *bytes = memory_available_bytes() / (size_t)n_ranks;
    return STATUS_OK;
}

static status_t cpu_alloc(backend_t *backend, memory_label_t label, size_t bytes, void **pointer) {
    (void)backend;
    return memory_alloc(label, bytes, 1, pointer);
}

static void cpu_free(backend_t *backend, void *pointer) {
    (void)backend;
    memory_free(pointer);
}

static status_t cpu_zero(backend_t *backend, void *pointer, size_t bytes) {
    (void)backend;
    memset(pointer, 0, bytes);
    return STATUS_OK;
}

static void *cpu_host_address(backend_t *backend, void *pointer) {
    (void)backend;
    return pointer;
}

static status_t cpu_upload(backend_t *backend, void *destination, const void *host, size_t bytes) {
    (void)backend;
    memcpy(destination, host, bytes);
    return STATUS_OK;
}

static status_t cpu_download(backend_t *backend, void *host, const void *source, size_t bytes) {
    (void)backend;
    memcpy(host, source, bytes);
    return STATUS_OK;
}

static status_t cpu_synchronize(backend_t *backend) {
    (void)backend;
    return STATUS_OK;
}

static status_t cpu_copy(backend_t *backend, void *destination, const void *source, size_t bytes) {
    (void)backend;
    memcpy(destination, source, bytes);
    return STATUS_OK;
}

static status_t cpu_adopt_matrix(backend_t *backend, matrix_t *matrix) {
    (void)backend;
    (void)matrix;
    return STATUS_OK;
}

static status_t cpu_loaded(backend_t *backend) {
    (void)backend;
    return STATUS_OK;
}

static status_t cpu_dense8_quantize(backend_t *backend, const dense8_args_t *args) {
    (void)backend;
    return dense8_quantize_cpu(args);
}

static status_t cpu_dense8_dequantize(backend_t *backend, const dense8_args_t *args) {
    (void)backend;
    return dense8_dequantize_cpu(args);
}

static status_t cpu_gather(backend_t *backend, const void *data, size_t bytes, void *room, void *gathered) {
    (void)room;
    comm_gather(backend->comm, data, bytes, gathered);
    return STATUS_OK;
}

static status_t cpu_all_reduce(backend_t *backend, activation_t *data, size_t n) {
    return comm_all_reduce_sum(backend->comm, data, n);
}

static status_t cpu_embed(backend_t *backend, const embed_args_t *args) {
    (void)backend;
    return embed_cpu(args);
}

static status_t cpu_ngram_rows(backend_t *backend, const ngram_rows_args_t *args) {
    (void)backend;
    return ngram_rows_cpu(args);
}

static status_t cpu_linear(backend_t *backend, const linear_args_t *args) {
    (void)backend;
    return linear_cpu(args);
}

static status_t cpu_gr_mix(backend_t *backend, const gr_mix_args_t *args) {
    (void)backend;
    return gr_mix_cpu(args);
}

static status_t cpu_gr_inject(backend_t *backend, const gr_inject_args_t *args) {
    (void)backend;
    return gr_inject_cpu(args);
}

static status_t cpu_gdn_core(backend_t *backend, const gdn_core_args_t *args) {
    (void)backend;
    return gdn_core_cpu(args);
}

static status_t cpu_qsa_prepare(backend_t *backend, const qsa_prepare_args_t *args) {
    (void)backend;
    return qsa_prepare_cpu(args);
}

static status_t cpu_qsa_select(backend_t *backend, const qsa_select_args_t *args) {
    (void)backend;
    return qsa_select_cpu(args);
}

static status_t cpu_qsa_attend(backend_t *backend, const qsa_attend_args_t *args) {
    (void)backend;
    return qsa_attend_cpu(args);
}

static status_t cpu_qsa_core(backend_t *backend, const qsa_core_args_t *args) {
    (void)backend;
    return qsa_core_cpu(args);
}

static status_t cpu_router(backend_t *backend, const router_args_t *args) {
    (void)backend;
    return router_cpu(args);
}

static status_t cpu_experts(backend_t *backend, const experts_args_t *args) {
    (void)backend;
    return experts_cpu(args);
}

static status_t cpu_shared_expert(backend_t *backend, const shared_expert_args_t *args) {
    (void)backend;
    return shared_expert_cpu(args);
}

static status_t cpu_ple_gather(backend_t *backend, const ple_gather_args_t *args) {
    (void)backend;
    return ple_gather_cpu(args);
}

static status_t cpu_ple_mix(backend_t *backend, const ple_mix_args_t *args) {
    (void)backend;
    return ple_mix_cpu(args);
}

static status_t cpu_lm_head(backend_t *backend, const lm_head_args_t *args) {
    (void)backend;
    return lm_head_cpu(args);
}

static status_t cpu_argmax(backend_t *backend, const argmax_args_t *args) {
    (void)backend;
    return argmax_cpu(args);
}

static status_t cpu_fill(backend_t *backend, const fill_args_t *args) {
    (void)backend;
    return fill_cpu(args);
}

static void cpu_destroy(backend_t *backend) { memory_free(backend); }

static const backend_ops_t cpu_ops = {
    .name = "cpu",
    .activation_bytes = sizeof(activation_t),
    .prefill_chunk = 256,
    .comm_peer_bytes = COMM_PEER_BYTES,
    .available = cpu_available,
    .check_memory = cpu_check_memory,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .zero = cpu_zero,
    .host_address = cpu_host_address,
    .upload = cpu_upload,
    .download = cpu_download,
    .synchronize = cpu_synchronize,
    .copy = cpu_copy,
    .adopt_matrix = cpu_adopt_matrix,
    .loaded = cpu_loaded,
    .dense8_quantize = cpu_dense8_quantize,
    .dense8_dequantize = cpu_dense8_dequantize,
    .gather = cpu_gather,
    .all_reduce = cpu_all_reduce,
    .gr_mix_workspace_bytes = gr_mix_workspace_bytes,
    .gdn_core_workspace_bytes = gdn_core_workspace_bytes,
    .qsa_select_workspace_bytes = qsa_select_workspace_bytes,
    .qsa_attend_workspace_bytes = qsa_attend_workspace_bytes,
    .experts_workspace_bytes = experts_workspace_bytes,
    .shared_expert_workspace_bytes = shared_expert_workspace_bytes,
    .ple_mix_workspace_bytes = ple_mix_workspace_bytes,
    .embed = cpu_embed,
    .ngram_rows = cpu_ngram_rows,
    .linear = cpu_linear,
    .gr_mix = cpu_gr_mix,
    .gr_inject = cpu_gr_inject,
    .gdn_core = cpu_gdn_core,
    .qsa_prepare = cpu_qsa_prepare,
    .qsa_select = cpu_qsa_select,
    .qsa_attend = cpu_qsa_attend,
    .qsa_core = cpu_qsa_core,
    .router = cpu_router,
    .experts = cpu_experts,
    .shared_expert = cpu_shared_expert,
    .ple_gather = cpu_ple_gather,
    .ple_mix = cpu_ple_mix,
    .lm_head = cpu_lm_head,
    .argmax = cpu_argmax,
    .fill = cpu_fill,
    .destroy = cpu_destroy,
};

const backend_ops_t *backend_cpu_ops(void) { return &cpu_ops; }

status_t backend_cpu_create(comm_t *comm, backend_t **backend) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(backend_t), &memory));
    if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(comm_local_cores(comm));
    *backend = memory;
    **backend = (backend_t){.ops = &cpu_ops,
                            .comm = comm,
                            .advance_refusal = "on the CPU a token is on the host when it is chosen",
                            .cache_bytes = cpu_cache_bytes(),
                            .facts = {.devices = "", .driver = "", .cuda = "", .nccl = ""}};
    return STATUS_OK;
}
