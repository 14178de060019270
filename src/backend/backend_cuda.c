#include "backend/backend_cuda.h"

#include <stdint.h>
#include <stdio.h>

#include "backend/check_cuda.h"
#include "backend/cuda_sizes.h"
#include "backend/facts_cuda.h"
#include "backend/gemm_cuda.h"
#include "backend/memory_cuda.h"
#include "backend/nccl_cuda.h"
#include "backend/recording_cuda.h"
#include "backend/state_cuda.h"
#include "backend/transfer_cuda.h"
#include "base/log.h"
#include "gr/gr_m1.h"
#include "linear/linear_m1.h"
#include "push/push.h"

static status_t cuda_adopt_matrix(backend_t *backend, matrix_t *matrix) {
    cuda_state_t *state = state_of(backend);
    if (matrix->dtype == DTYPE_F16) return STATUS_OK;
    if (matrix->dtype != DTYPE_BF16)
        return status_fail(STATUS_INPUT, "a matrix of %s: the CUDA backend takes BF16 and F16",
                           dtype_name(matrix->dtype));
    TRY(launch_bf16_to_f16((void *)(uintptr_t)matrix->data, matrix->rows * matrix->columns, state->losses,
                           &state->queue));
    matrix->dtype = DTYPE_F16;
    return STATUS_OK;
}

static status_t cuda_loaded(backend_t *backend) {
    f16_losses_t losses;
    cuda_note_memory();
    TRY(cuda_download(backend, &losses, state_of(backend)->losses, sizeof losses));
    cuda_free_stages(backend);
    if (losses.n_saturated)
        log_warning(
            "%llu weights are too large for FP16 and were set to +-65504; the CPU backend keeps them as they are",
            losses.n_saturated);
    log_info("weights  %llu of this rank's BF16 weights are below FP16's full precision and were rounded",
             losses.n_rounded);
    return STATUS_OK;
}

static status_t cuda_dense8_quantize(backend_t *backend, const dense8_args_t *args) {
    return launch_dense8_quantize(args, &state_of(backend)->queue);
}

static status_t cuda_dense8_dequantize(backend_t *backend, const dense8_args_t *args) {
    return launch_dense8_dequantize(args, &state_of(backend)->queue);
}

static void cuda_set_dense8_scratch(backend_t *backend, activation_t *scratch) {
    state_of(backend)->queue.gemm_scratch = scratch;
}

/* Stamps are made by the kernel that comes behind the mark, when all work before it is complete. */
static status_t stamp_next(cuda_state_t *state, unsigned long long *slot) {
    if (state->due.n && state->due.slots + state->due.n != slot) {
        queue_stamp(&state->queue);
        TRY(queue_check_launch("a time stamp"));
    }
    if (!state->due.n) state->due.slots = slot;
    state->due.n++;
    return STATUS_OK;
}

static status_t cuda_mark(backend_t *backend, size_t index) {
    cuda_state_t *state = state_of(backend);
    return stamp_next(state, state->stamps + index);
}

static status_t cuda_read_marks(backend_t *backend, size_t n, int64_t *ns) {
    cuda_state_t *state = state_of(backend);
    queue_stamp(&state->queue);
    TRY(cuda_download(backend, ns, state->stamps, n * sizeof *ns));
    for (size_t i = n; i-- > 0;)
        ns[i] -= ns[0];
    return STATUS_OK;
}

static route_state_t *cuda_routes(backend_t *backend) { return state_of(backend)->routes; }

static status_t cuda_gather(backend_t *backend, const void *data, size_t bytes, void *room, void *gathered) {
    bool takes_device =
        comm_tp_size(backend->comm) > 1 && all_reduce_takes_device(backend->comm, &state_of(backend)->queue);
    if (takes_device)
        TRY(cuda_synchronize(backend));
    else
        TRY(cuda_download(backend, room, data, bytes));
    comm_gather(backend->comm, takes_device ? data : room, bytes, gathered);
    return STATUS_OK;
}

static status_t cuda_all_reduce(backend_t *backend, activation_t *data, size_t n) {
    cuda_state_t *state = state_of(backend);
    if (comm_tp_size(backend->comm) == 1) return STATUS_OK;
    return all_reduce_run(state->all_reduce, data, n);
}

static status_t cuda_advance_begin(backend_t *backend, const advance_args_t *args) {
    return stamp_next(state_of(backend), (unsigned long long *)args->begin_ns);
}

static status_t cuda_advance(backend_t *backend, const advance_args_t *args) {
    const cuda_state_t *state = state_of(backend);
    advance_args_t completed = *args;
    if (state->all_reduce) completed.push = all_reduce_get_push(state->all_reduce);
    return launch_advance(&completed, &state->queue);
}

#define OP(name)                                                                                                       \
    static status_t cuda_##name(backend_t *backend, const name##_args_t *args) {                                       \
        return launch_##name(args, &state_of(backend)->queue);                                                         \
    }
OP(fill)
OP(embed)
OP(ngram_rows)
OP(linear)
OP(gr_mix)
OP(gr_inject)
OP(gdn_core)
OP(qsa_prepare)
OP(qsa_select)
OP(qsa_attend)
OP(qsa_core)
OP(router)
OP(experts)
OP(shared_expert)
OP(ple_gather)
OP(ple_mix)
OP(lm_head)
OP(argmax)
#undef OP

static const char *defer_refusal(const device_queue_t *queue, const linear_args_t *producer,
                                 const gr_mix_args_t *next) {
    if (!queue->routes[ROUTE_GR].wanted) return "part of gr";
    if (producer && !queue->routes[ROUTE_GEMV_M1].wanted) return "part of gemv_m1";
    if (!producer && !queue->routes[ROUTE_SHARED_GATE].wanted) return "part of shared_gate";
    const char *refusal = producer ? linear_m1_refusal(producer) : NULL;
    return refusal ? refusal : gr_m1_receive_refusal(next, queue);
}

static bool cuda_defers_sum(backend_t *backend, const linear_args_t *producer, const gr_mix_args_t *next) {
    const device_queue_t *queue = &state_of(backend)->queue;
    if (comm_tp_size(backend->comm) == 1) return false;
    return route_take(queue, ROUTE_FUSED_ALLREDUCE, defer_refusal(queue, producer, next));
}

static bool cuda_moe_is_joined(backend_t *backend, const moe_args_t *args) {
    return moe_is_joined(args, &state_of(backend)->queue);
}

static status_t cuda_moe_in(backend_t *backend, const moe_args_t *args) {
    return launch_moe_in(args, &state_of(backend)->queue);
}

static status_t cuda_moe_gate_up(backend_t *backend, const moe_args_t *args) {
    return launch_moe_gate_up(args, &state_of(backend)->queue);
}

static status_t cuda_moe_down(backend_t *backend, const moe_args_t *args) {
    return launch_moe_down(args, &state_of(backend)->queue);
}

static void cuda_destroy(backend_t *backend) {
    cuda_state_t *state = state_of(backend);
    if (state) {
        all_reduce_destroy(state->all_reduce);
        gemm_destroy(&state->queue);
        while (state->blocks)
            cuda_free(backend, state->blocks->pointer);
        memory_free(state->devices);
        cuda_free_stages(backend);
        if (state->slots) cudaFreeHost(state->slots);
        if (state->queue.stream) cudaStreamDestroy(state->queue.stream);
        memory_free(state);
    }
    memory_free(backend);
}

static const backend_ops_t cuda_ops = {
    .name = "cuda",
    .activation_bytes = sizeof(uint16_t),
    .prefill_chunk = 8192,
    .is_device = true,
    .runtime_bytes = (size_t)CUDA_RUNTIME_MIB << 20,
    .recorded_layer_bytes = (size_t)CUDA_RECORDED_LAYER_KIB << 10,
    .alloc_granule = (size_t)CUDA_ALLOC_GRANULE_MIB << 20,
    .comm_peer_bytes = PUSH_PEER_BYTES,
    .available = cuda_available,
    .check_memory = cuda_check_memory,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .zero = cuda_zero,
    .host_address = cuda_host_address,
    .upload = cuda_upload,
    .download = cuda_download,
    .synchronize = cuda_synchronize,
    .stage = cuda_stage,
    .stage_upload = cuda_stage_upload,
    .copy = cuda_copy,
    .adopt_matrix = cuda_adopt_matrix,
    .loaded = cuda_loaded,
    .takes_dense8 = true,
    .dense8_quantize = cuda_dense8_quantize,
    .dense8_dequantize = cuda_dense8_dequantize,
    .set_dense8_scratch = cuda_set_dense8_scratch,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .record_n_launches = cuda_record_n_launches,
    .replay = cuda_replay,
    .record_free = cuda_record_free,
    .mark = cuda_mark,
    .read_marks = cuda_read_marks,
    .await = cuda_await,
    .routes = cuda_routes,
    .gather = cuda_gather,
    .all_reduce = cuda_all_reduce,
    .gr_mix_workspace_bytes = gr_mix_cuda_workspace_bytes,
    .gdn_core_workspace_bytes = gdn_core_cuda_workspace_bytes,
    .qsa_select_workspace_bytes = qsa_select_cuda_workspace_bytes,
    .qsa_attend_workspace_bytes = qsa_attend_cuda_workspace_bytes,
    .experts_workspace_bytes = experts_cuda_workspace_bytes,
    .shared_expert_workspace_bytes = shared_expert_cuda_workspace_bytes,
    .moe_workspace_bytes = moe_cuda_workspace_bytes,
    .ple_mix_workspace_bytes = ple_mix_cuda_workspace_bytes,
    .fill = cuda_fill,
    .embed = cuda_embed,
    .ngram_rows = cuda_ngram_rows,
    .linear = cuda_linear,
    .gr_mix = cuda_gr_mix,
    .gr_inject = cuda_gr_inject,
    .gdn_core = cuda_gdn_core,
    .qsa_prepare = cuda_qsa_prepare,
    .qsa_select = cuda_qsa_select,
    .qsa_attend = cuda_qsa_attend,
    .qsa_core = cuda_qsa_core,
    .router = cuda_router,
    .experts = cuda_experts,
    .shared_expert = cuda_shared_expert,
    .defers_sum = cuda_defers_sum,
    .moe_is_joined = cuda_moe_is_joined,
    .moe_in = cuda_moe_in,
    .moe_gate_up = cuda_moe_gate_up,
    .moe_down = cuda_moe_down,
    .ple_gather = cuda_ple_gather,
    .ple_mix = cuda_ple_mix,
    .lm_head = cuda_lm_head,
    .argmax = cuda_argmax,
    .advance_begin = cuda_advance_begin,
    .advance = cuda_advance,
    .destroy = cuda_destroy,
};

const backend_ops_t *backend_cuda_ops(void) { return &cuda_ops; }

void backend_cuda_print_version(FILE *stream) {
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    fprintf(stream, "CUDA      %d.%d\n", runtime / 1000, runtime % 1000 / 10);
    fprintf(stream, "NCCL      %s\n", nccl_version()[0] ? nccl_version() : "not built in");
}

bool backend_cuda_available(void) {
    int n_devices = 0;
    return cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0;
}

static status_t open_device(backend_t *backend) {
    cuda_state_t *state = state_of(backend);
    int n_devices;
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess || n_devices == 0)
        return status_fail(STATUS_DEVICE, "no CUDA device: %s; use --backend cpu", cudaGetErrorString(error));
    state->device = comm_local_rank(backend->comm) % n_devices;
    TRY(check_cuda(cudaSetDevice(state->device), "choosing a device"));
    TRY(check_cuda(cudaGetDeviceProperties(&properties, state->device), "reading the device's properties"));
    snprintf(state->device_name, sizeof state->device_name, "%s", properties.name);
    state->queue.n_sms = properties.multiProcessorCount;
    backend->cache_bytes = (size_t)properties.l2CacheSize;
    int code_arch;
    TRY(queue_check_device(properties.name, &code_arch));
    state->queue.routes = state->routes;
    state->queue.due = &state->due;
    for (int route = 0; route < N_KERNEL_ROUTES; route++)
        state->routes[route].wanted = true;
    if (properties.major < 9 || code_arch < 90) state->queue.pdl_refusal = "needs a device and code of sm_90 or newer";
    if (properties.major < 8 || code_arch < 80) state->queue.mma_refusal = "needs a device and code of sm_80 or newer";
    TRY(check_cuda(cudaStreamCreateWithFlags(&state->queue.stream, cudaStreamNonBlocking), "creating a stream"));
    void *memory;
    TRY(check_cuda(cudaHostAlloc(&memory, (size_t)CUDA_N_SLOTS * CUDA_SLOT_BYTES, cudaHostAllocDefault),
                   "pinning host memory"));
    state->slots = memory;
    TRY(cuda_alloc(backend, MEMORY_OTHER, BACKEND_MAX_MARKS * sizeof *state->stamps, &memory));
    state->stamps = memory;
    TRY(cuda_alloc(backend, MEMORY_OTHER, sizeof(f16_losses_t), &memory));
    state->losses = memory;
    return gemm_create(&state->queue);
}

status_t backend_cuda_create(const backend_args_t *backend_args, backend_t **backend) {
    comm_t *comm = backend_args->comm;
    void *memory;
    status_t status;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(backend_t), &memory));
    backend_t *created = memory;
    *created = (backend_t){.ops = &cuda_ops, .comm = comm};
    TRY_GOTO(memory_alloc(MEMORY_OTHER, 1, sizeof(cuda_state_t), &created->state), failed);
    TRY_GOTO(comm_agree(comm, open_device(created)), failed);
    TRY_GOTO(cuda_count_sharing(created), failed);
    TRY_GOTO(cuda_gather_facts(created), failed);
    cuda_state_t *state = state_of(created);
    all_reduce_route_t route = ALL_REDUCE_AUTO;
    if (backend_args->all_reduce && !all_reduce_route_from_name(backend_args->all_reduce, &route))
        TRY_GOTO(status_fail(STATUS_USAGE, "--comm is auto, push, nccl or mpi, not %s", backend_args->all_reduce),
                 failed);
    if (comm_tp_size(comm) > 1) {
        const all_reduce_args_t args = {.comm = comm, .queue = &state->queue, .route = route};
        TRY_GOTO(all_reduce_create(&args, &state->all_reduce), failed);
        state->queue.push = all_reduce_get_push(state->all_reduce);
        created->can_record = all_reduce_get_route(state->all_reduce) != ALL_REDUCE_MPI;
        if (!all_reduce_get_push(state->all_reduce)) created->advance_refusal = "needs push between the ranks";
        log_info("comm     %s", all_reduce_route_name(all_reduce_get_route(state->all_reduce)));
    } else {
        created->can_record = true;
    }
    *backend = created;
    return STATUS_OK;

failed:
    cuda_destroy(created);
    return status;
}
