#include "backend/backend_cuda.h"

#include <ctype.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/all_reduce_cuda.h"
#include "backend/check_cuda.h"
#include "backend/cuda_sizes.h"
#include "backend/gemm_cuda.h"
#include "backend/nccl_cuda.h"
#include "backend/pinned_cuda.h"
#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "device/convert.h"
#include "device/route.h"
#include "push/push.h"

enum {
    /* Small uploads are copied into a pinned slot and go on by themselves. */
    N_SLOTS = 64,
    SLOT_BYTES = 16384,
    DEVICE_TEXT_BYTES = 256
};

/* One allocation; the list is walked only when freeing, which is rare. */
typedef struct block {
    struct block *next;
    void *pointer;
    size_t bytes;
    memory_label_t label;
} block_t;

typedef struct cuda_state {
    device_queue_t queue;
    route_state_t routes[N_KERNEL_ROUTES];
    int device;
    size_t n_sharing; /* ranks of this host on this rank's device, itself included */
    char device_name[256];
    char *devices; /* [ranks, DEVICE_TEXT_BYTES] on rank 0: what facts.devices points to */
    char driver[32], cuda[32];
    block_t *blocks;
    unsigned char *slots; /* [N_SLOTS, SLOT_BYTES], pinned */
    int next_slot;
    unsigned char *stages;                /* [BACKEND_N_STAGES, BACKEND_STAGE_BYTES], pinned; NULL but while loading */
    cudaEvent_t staged[BACKEND_N_STAGES]; /* behind the last copy from each */
    f16_losses_t *losses;                 /* of the matrices so far, on the device */
    all_reduce_t *all_reduce;             /* NULL with one rank */
    unsigned long long *stamps;           /* [BACKEND_MAX_MARKS] of the device's clock, in its memory */
    stamp_t due;
} cuda_state_t;

static cuda_state_t *state_of(const backend_t *backend) { return backend->state; }

static bool is_pinned(memory_label_t label) { return label == MEMORY_PLE_TABLE || label == MEMORY_PINNED; }

static double gib(size_t bytes) { return (double)bytes / (1024.0 * 1024.0 * 1024.0); }

/* How many of `n_local` ranks of this host share this rank's device: of those that run it is known, others would be
 * dealt out in turn. */
static size_t n_sharing(const backend_t *backend, int n_local) {
    int n_devices = 1;
    if (n_local == comm_local_size(backend->comm)) return state_of(backend)->n_sharing;
    cudaGetDeviceCount(&n_devices);
    size_t n = 0;
    for (int rank = 0; rank < n_local; rank++) {
        if (rank % n_devices == comm_local_rank(backend->comm) % n_devices) n++;
    }
    return n;
}

static status_t cuda_check_memory(backend_t *backend, const size_t needed[MEMORY_N_LABELS]) {
    size_t device_bytes = 0, pinned_bytes = 0, device_free, device_total,
           sharing = n_sharing(backend, comm_local_size(backend->comm));
    for (int label = 0; label < MEMORY_N_LABELS; label++) {
        size_t *sum = is_pinned((memory_label_t)label) ? &pinned_bytes : &device_bytes;
        if (__builtin_add_overflow(*sum, needed[label], sum))
            return status_fail(STATUS_MEMORY, "the memory needed does not fit in 64 bits");
    }
    TRY(check_cuda(cudaMemGetInfo(&device_free, &device_total), "asking for the free memory"));
    if (device_bytes > device_free / sharing)
        return status_fail(STATUS_MEMORY,
                           "not enough device memory: a rank needs %.2f GiB (weights %.2f, KV cache %.2f, states %.2f, "
                           "workspace %.2f); %s has %.2f GiB free of %.2f, for %zu rank(s)",
                           gib(device_bytes), gib(needed[MEMORY_WEIGHTS]), gib(needed[MEMORY_KV_CACHE]),
                           gib(needed[MEMORY_STATE]), gib(needed[MEMORY_WORKSPACE]), state_of(backend)->device_name,
                           gib(device_free), gib(device_total), sharing);
    size_t host_bytes, host_free = memory_available_bytes();
    TRY(memory_product(pinned_bytes, (size_t)comm_local_size(backend->comm), &host_bytes));
    if (host_bytes > host_free)
        return status_fail(STATUS_MEMORY,
                           "not enough host memory: %d rank(s) need %.2f GiB each for the PLE table, in pinned memory; "
                           "%.2f GiB are available",
                           comm_local_size(backend->comm), gib(pinned_bytes), gib(host_free));
    return STATUS_OK;
}

/* What the libraries have taken already counts as available. */
static status_t cuda_available(backend_t *backend, int n_ranks, size_t *bytes) {
    size_t device_free, device_total;
    TRY(check_cuda(cudaMemGetInfo(&device_free, &device_total), "asking for the free memory"));
    *bytes = device_free / n_sharing(backend, n_ranks) + backend->ops->runtime_bytes;
    return STATUS_OK;
}

static status_t cuda_alloc(backend_t *backend, memory_label_t label, size_t bytes, void **pointer) {
    cuda_state_t *state = state_of(backend);
    void *memory, *record;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(block_t), &record));
    size_t asked = bytes ? bytes : 1;
    cudaError_t error = is_pinned(label) ? pinned_alloc(asked, &memory) : cudaMalloc(&memory, asked);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        memory_free(record);
        return status_fail(STATUS_MEMORY, "no %s for %s: %.1f MiB needed: %s%s",
                           is_pinned(label) ? "pinned host memory" : "device memory", memory_label_name(label),
                           (double)bytes / 1048576.0, cudaGetErrorString(error),
                           is_pinned(label) ? " (see ulimit -l, and the memory limit of the job)" : "");
    }
    if (!is_pinned(label)) error = cudaMemsetAsync(memory, 0, asked, state->queue.stream);
    block_t *block = record;
    *block = (block_t){.next = state->blocks, .pointer = memory, .bytes = asked, .label = label};
    state->blocks = block;
    memory_account(label, asked);
    *pointer = memory;
    return check_cuda(error, "clearing memory");
}

static void cuda_free(backend_t *backend, void *pointer) {
    if (!pointer) return;
    for (block_t **link = &state_of(backend)->blocks; *link; link = &(*link)->next) {
        block_t *block = *link;
        if (block->pointer != pointer) continue;
        *link = block->next;
        if (is_pinned(block->label))
            pinned_free(pointer, block->bytes);
        else
            cudaFree(pointer);
        memory_unaccount(block->label, block->bytes);
        memory_free(block);
        return;
    }
}

static status_t cuda_zero(backend_t *backend, void *pointer, size_t bytes) {
    queue_stamp(&state_of(backend)->queue);
    return check_cuda(cudaMemsetAsync(pointer, 0, bytes, state_of(backend)->queue.stream), "clearing memory");
}

static void *cuda_host_address(backend_t *backend, void *pointer) {
    for (const block_t *block = state_of(backend)->blocks; block; block = block->next) {
        if (block->pointer == pointer) return is_pinned(block->label) ? pointer : NULL;
    }
    return NULL;
}

/* Around calls that return when the queued work is done, sums over ranks among it. */
static void set_on_device(const cuda_state_t *state, bool is_on_device) {
    if (state->all_reduce) heartbeat_set_on_device(is_on_device);
}

static status_t cuda_synchronize(backend_t *backend) {
    const cuda_state_t *state = state_of(backend);
    set_on_device(state, true);
    cudaError_t error = cudaStreamSynchronize(state->queue.stream);
    set_on_device(state, false);
    TRY(check_cuda(error, "the work on the device"));
    return state->all_reduce ? all_reduce_check(state->all_reduce) : STATUS_OK;
}

/* Looks into memory, which costs the device nothing, and now and then asks whether there is still work to wait for. */
static status_t cuda_await(backend_t *backend, const uint64_t *word, uint64_t value) {
    const int64_t patience_ns = 1000000;
    const cuda_state_t *state = state_of(backend);
    int64_t asked_ns = clock_now_ns();
    status_t status = STATUS_OK;
    set_on_device(state, true);
    while (status == STATUS_OK && __atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
        sched_yield();
        if (clock_now_ns() - asked_ns < patience_ns) continue;
        asked_ns = clock_now_ns();
        cudaError_t error = cudaStreamQuery(state->queue.stream);
        if (error == cudaErrorNotReady) continue;
        status = check_cuda(error, "the work on the device");
        if (status == STATUS_OK && __atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
            status = status_fail(STATUS_DEVICE, "the device has ended its work without saying so");
    }
    set_on_device(state, false);
    TRY(status);
    return state->all_reduce ? all_reduce_check(state->all_reduce) : STATUS_OK;
}

static status_t cuda_upload(backend_t *backend, void *destination, const void *host, size_t bytes) {
    cuda_state_t *state = state_of(backend);
    queue_stamp(&state->queue);
    if (bytes <= SLOT_BYTES) {
        if (state->next_slot == N_SLOTS) { /* every slot may still be read */
            TRY(cuda_synchronize(backend));
            state->next_slot = 0;
        }
        void *slot = state->slots + (size_t)state->next_slot++ * SLOT_BYTES;
        memcpy(slot, host, bytes);
        return check_cuda(cudaMemcpyAsync(destination, slot, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                          "a copy to the device");
    }
    TRY(check_cuda(cudaMemcpyAsync(destination, host, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                   "a copy to the device"));
    return cuda_synchronize(backend);
}

static status_t cuda_download(backend_t *backend, void *host, const void *source, size_t bytes) {
    const cuda_state_t *state = state_of(backend);
    set_on_device(state, true); /* the copy itself waits where `host` is not pinned */
    cudaError_t error = cudaMemcpyAsync(host, source, bytes, cudaMemcpyDeviceToHost, state->queue.stream);
    set_on_device(state, false);
    TRY(check_cuda(error, "a copy from the device"));
    return cuda_synchronize(backend);
}

static status_t cuda_stage(backend_t *backend, int index, void **host) {
    cuda_state_t *state = state_of(backend);
    if (!state->stages) {
        void *memory;
        TRY(check_cuda(cudaHostAlloc(&memory, (size_t)BACKEND_N_STAGES * BACKEND_STAGE_BYTES, cudaHostAllocDefault),
                       "pinning host memory"));
        state->stages = memory;
        for (int i = 0; i < BACKEND_N_STAGES; i++)
            TRY(check_cuda(cudaEventCreateWithFlags(&state->staged[i], cudaEventDisableTiming), "creating an event"));
    }
    TRY(check_cuda(cudaEventSynchronize(state->staged[index]), "a copy to the device"));
    *host = state->stages + (size_t)index * BACKEND_STAGE_BYTES;
    return STATUS_OK;
}

static status_t cuda_stage_upload(backend_t *backend, int index, void *destination, size_t bytes) {
    cuda_state_t *state = state_of(backend);
    const void *host = state->stages + (size_t)index * BACKEND_STAGE_BYTES;
    TRY(check_cuda(cudaMemcpyAsync(destination, host, bytes, cudaMemcpyHostToDevice, state->queue.stream),
                   "a copy to the device"));
    return check_cuda(cudaEventRecord(state->staged[index], state->queue.stream), "a copy to the device");
}

static void free_stages(cuda_state_t *state) {
    if (!state->stages) return;
    for (int i = 0; i < BACKEND_N_STAGES; i++)
        if (state->staged[i]) cudaEventDestroy(state->staged[i]);
    cudaFreeHost(state->stages);
    state->stages = NULL;
}

static status_t cuda_copy(backend_t *backend, void *destination, const void *source, size_t bytes) {
    const device_queue_t *queue = &state_of(backend)->queue;
    queue_stamp(queue);
    return check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, queue->stream),
                      "a copy on the device");
}

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

static void note_memory(void) {
    size_t device_free, device_total;
    if (cudaMemGetInfo(&device_free, &device_total) == cudaSuccess) memory_note_device(device_total - device_free);
}

static status_t cuda_loaded(backend_t *backend) {
    f16_losses_t losses;
    note_memory();
    TRY(cuda_download(backend, &losses, state_of(backend)->losses, sizeof losses));
    free_stages(state_of(backend));
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

static status_t cuda_record_begin(backend_t *backend) {
    queue_stamp(&state_of(backend)->queue); /* of work before the step */
    return check_cuda(cudaStreamBeginCapture(state_of(backend)->queue.stream, cudaStreamCaptureModeThreadLocal),
                      "recording a step");
}

typedef struct cuda_recording {
    cudaGraphExec_t executable;
    size_t bytes; /* of device memory that it took */
    size_t n_launches;
} cuda_recording_t;

/* Kernel nodes of a graph. */
static status_t count_launches(cudaGraph_t graph, size_t *n_launches) {
    size_t n_nodes = 0, n = 0;
    void *memory;
    TRY(check_cuda(cudaGraphGetNodes(graph, NULL, &n_nodes), "counting a recorded step's launches"));
    TRY(memory_alloc(MEMORY_OTHER, n_nodes, sizeof(cudaGraphNode_t), &memory));
    cudaGraphNode_t *nodes = memory;
    cudaError_t error = cudaGraphGetNodes(graph, nodes, &n_nodes);
    for (size_t i = 0; i < n_nodes && error == cudaSuccess; i++) {
        enum cudaGraphNodeType type;
        error = cudaGraphNodeGetType(nodes[i], &type);
        n += error == cudaSuccess && type == cudaGraphNodeTypeKernel;
    }
    memory_free(memory);
    *n_launches = n;
    return check_cuda(error, "counting a recorded step's launches");
}

static status_t cuda_record_end(backend_t *backend, void **recording) {
    queue_stamp(&state_of(backend)->queue); /* the step makes its last ones itself */
    cudaGraph_t graph = NULL;
    size_t free_before = 0, free_after = 0, total;
    void *memory;
    TRY(check_cuda(cudaStreamEndCapture(state_of(backend)->queue.stream, &graph), "recording a step"));
    status_t status = memory_alloc(MEMORY_OTHER, 1, sizeof(cuda_recording_t), &memory);
    if (status != STATUS_OK) {
        cudaGraphDestroy(graph);
        return status;
    }
    cuda_recording_t *created = memory;
    status = count_launches(graph, &created->n_launches);
    if (status != STATUS_OK) {
        cudaGraphDestroy(graph);
        memory_free(created);
        return status;
    }
    cudaMemGetInfo(&free_before, &total);
    cudaError_t error = cudaGraphInstantiateWithFlags(&created->executable, graph, 0);
    cudaMemGetInfo(&free_after, &total);
    cudaGraphDestroy(graph);
    if (error != cudaSuccess) {
        memory_free(created);
        return check_cuda(error, "making a recorded step executable");
    }
    created->bytes = free_before > free_after ? free_before - free_after : 0;
    memory_account(MEMORY_CUDA_GRAPH, created->bytes);
    note_memory();
    *recording = created;
    return STATUS_OK;
}

static size_t cuda_record_n_launches(const void *recording) {
    return ((const cuda_recording_t *)recording)->n_launches;
}

static status_t cuda_replay(backend_t *backend, void *recording) {
    const cuda_recording_t *made = recording;
    queue_stamp(&state_of(backend)->queue);
    return check_cuda(cudaGraphLaunch(made->executable, state_of(backend)->queue.stream), "replaying a step");
}

static void cuda_record_free(backend_t *backend, void *recording) {
    cuda_recording_t *made = recording;
    (void)backend;
    if (!made) return;
    cudaGraphExecDestroy(made->executable);
    memory_unaccount(MEMORY_CUDA_GRAPH, made->bytes);
    memory_free(made);
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
        free_stages(state);
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

/* -1 where the kernel does not say. */
static int numa_node(const char *bus) {
    char path[96];
    int node = -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    for (char *c = path; *c; c++)
        *c = (char)tolower(*c);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &node) != 1) node = -1;
    fclose(file);
    return node;
}

/* How this device reaches the others of its host. Atomics reach a peer over NVLink, not over PCIe. */
static void describe_peers(int device, char *text, size_t text_bytes) {
    int n_devices = 1, n_peers = 0, n_nvlink = 0;
    cudaGetDeviceCount(&n_devices);
    for (int other = 0; other < n_devices; other++) {
        int reachable = 0, atomics = 0;
        if (other == device) continue;
        cudaDeviceCanAccessPeer(&reachable, device, other);
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, other);
        n_peers += reachable != 0;
        n_nvlink += reachable && atomics;
    }
    if (n_devices == 1)
        snprintf(text, text_bytes, "no peers");
    else
        snprintf(text, text_bytes, "reaches %d of %d peers, %d by NVLink", n_peers, n_devices - 1, n_nvlink);
}

/* Collective. A device is known by host and bus: CUDA_VISIBLE_DEVICES may give each rank another list of them. */
static status_t count_sharing(backend_t *backend) {
    struct {
        char bus[32], host[224];
    } own, *all;
    cuda_state_t *state = state_of(backend);
    size_t n_ranks = (size_t)comm_tp_size(backend->comm);
    void *memory;
    memset(&own, 0, sizeof own);
    cudaDeviceGetPCIBusId(own.bus, sizeof own.bus, state->device);
    gethostname(own.host, sizeof own.host - 1);
    TRY(comm_agree(backend->comm, memory_alloc(MEMORY_OTHER, n_ranks, sizeof own, &memory)));
    all = memory;
    comm_all_gather(backend->comm, &own, sizeof own, all);
    for (size_t rank = 0; rank < n_ranks; rank++)
        state->n_sharing += memcmp(&all[rank], &own, sizeof own) == 0;
    memory_free(memory);
    return STATUS_OK;
}

/* Collective: fills the facts, and says on rank 0 which devices are used. */
static status_t gather_facts(backend_t *backend) {
    cuda_state_t *state = state_of(backend);
    int n_ranks = comm_tp_size(backend->comm), driver = 0, runtime = 0;
    char own[DEVICE_TEXT_BYTES] = "", bus[32] = "", peers[64];
    void *memory = NULL;
    bool is_root = comm_tp_rank(backend->comm) == 0;
    status_t status = is_root ? memory_alloc(MEMORY_OTHER, (size_t)n_ranks, DEVICE_TEXT_BYTES, &memory) : STATUS_OK;
    TRY(comm_agree(backend->comm, status));
    state->devices = memory;
    cudaDeviceGetPCIBusId(bus, sizeof bus, state->device);
    describe_peers(state->device, peers, sizeof peers);
    snprintf(own, sizeof own, "rank %d: %.128s, bus %s, NUMA node %d, %s", comm_tp_rank(backend->comm),
             state->device_name, bus, numa_node(bus), peers);
    comm_gather(backend->comm, own, sizeof own, state->devices);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(state->driver, sizeof state->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(state->cuda, sizeof state->cuda, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (file) {
        if (fscanf(file, "%31s", state->driver) != 1) state->driver[0] = '\0';
        fclose(file);
    }
    backend->facts =
        (backend_facts_t){.devices = "", .driver = state->driver, .cuda = state->cuda, .nccl = nccl_version()};
    if (!is_root) return STATUS_OK;
    for (int rank = 0; rank < n_ranks; rank++)
        log_info("device   %s", state->devices + (size_t)rank * DEVICE_TEXT_BYTES);
    /* The texts move together, into one. */
    size_t length = strlen(state->devices);
    for (int rank = 1; rank < n_ranks; rank++) {
        const char *text = state->devices + (size_t)rank * DEVICE_TEXT_BYTES;
        size_t n = strlen(text);
        memcpy(state->devices + length, "; ", 2);
        memmove(state->devices + length + 2, text, n + 1);
        length += n + 2;
    }
    backend->facts.devices = state->devices;
    return STATUS_OK;
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
    TRY(check_cuda(cudaHostAlloc(&memory, (size_t)N_SLOTS * SLOT_BYTES, cudaHostAllocDefault), "pinning host memory"));
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
    TRY_GOTO(count_sharing(created), failed);
    TRY_GOTO(gather_facts(created), failed);
    cuda_state_t *state = state_of(created);
    all_reduce_route_t route = ALL_REDUCE_AUTO;
    if (backend_args->all_reduce && !all_reduce_route_from_name(backend_args->all_reduce, &route))
        TRY_GOTO(status_fail(STATUS_USAGE, "--comm is auto, push, nccl or mpi, not %s", backend_args->all_reduce),
                 failed);
    if (comm_tp_size(comm) > 1) {
        const all_reduce_args_t args = {.comm = comm, .queue = &state->queue, .route = route};
        TRY_GOTO(all_reduce_create(&args, &state->all_reduce), failed);
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
