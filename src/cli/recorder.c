#include "cli/recorder.h"

#include <string.h>

#include "base/memory.h"

/* Begin and length of one op. Every rank runs the same ops in the same order, so rank 0 knows their names. */
typedef struct op_time {
    int64_t start_ns, dur_ns;
} op_time_t;

struct recorder {
    comm_t *comm;
    engine_t *engine;
    int64_t start_ns;
    op_trace_level_t trace;
    int64_t n_steps;
    run_file_t *file;     /* rank 0 */
    int64_t *group_ns;    /* [tp_size, OP_N_GROUPS], rank 0 */
    int64_t *device_ns;   /* [tp_size], rank 0 */
    op_time_t *op_times;  /* [capacity] */
    op_time_t *all_times; /* [tp_size, capacity], rank 0 */
    op_record_t *records; /* [capacity], rank 0 */
    size_t capacity;
    clock_offset_t *clocks; /* [tp_size], at the start, rank 0 */
};

static status_t allocate(size_t n, size_t item_bytes, void **pointer) {
    return memory_alloc(MEMORY_OTHER, n, item_bytes, pointer);
}

static status_t allocate_all(const recorder_args_t *args, recorder_t *recorder) {
    size_t n_ranks = (size_t)comm_tp_size(args->comm);
    void *memory;
    TRY(allocate(n_ranks, sizeof(clock_offset_t), &memory));
    recorder->clocks = memory;
    TRY(allocate(n_ranks * OP_N_GROUPS, sizeof(int64_t), &memory));
    recorder->group_ns = memory;
    TRY(allocate(n_ranks, sizeof(int64_t), &memory));
    recorder->device_ns = memory;
    TRY(op_trace_set_level(engine_trace(args->engine), args->trace));
    if (args->trace == OP_TRACE_OPS) {
        recorder->capacity = engine_trace(args->engine)->capacity;
        TRY(allocate(recorder->capacity, sizeof(op_time_t), &memory));
        recorder->op_times = memory;
        TRY(allocate(recorder->capacity * n_ranks, sizeof(op_time_t), &memory));
        recorder->all_times = memory;
        TRY(allocate(recorder->capacity, sizeof(op_record_t), &memory));
        recorder->records = memory;
    }
    return STATUS_OK;
}

/* Rank 0. */
static status_t create_file(const run_file_args_t *args, recorder_t *recorder) {
    run_file_args_t with_clocks = *args;
    with_clocks.clocks = recorder->clocks;
    return run_file_create(&with_clocks, &recorder->file);
}

status_t recorder_create(const recorder_args_t *args, recorder_t **recorder) {
    void *memory = NULL;
    status_t status = allocate(1, sizeof(recorder_t), &memory);
    if (status == STATUS_OK) {
        *(recorder_t *)memory =
            (recorder_t){.comm = args->comm, .engine = args->engine, .start_ns = args->start_ns, .trace = args->trace};
        status = allocate_all(args, memory);
    }
    status = comm_agree(args->comm, status);
    if (status == STATUS_OK) {
        recorder_t *created = memory;
        if (args->trace != OP_TRACE_OFF) clocks_measure(args->comm, created->clocks);
        status = comm_agree(args->comm, args->file ? create_file(args->file, created) : STATUS_OK);
    }
    if (status != STATUS_OK) {
        recorder_destroy(memory);
        return status;
    }
    op_trace_reset(engine_trace(args->engine));
    *recorder = memory;
    return STATUS_OK;
}

size_t recorder_routes(engine_t *engine, run_route_t routes[RECORDER_MAX_ROUTES]) {
    size_t n_routes;
    const engine_route_t *taken = engine_routes(engine, &n_routes);
    for (size_t i = 0; i < n_routes && i < RECORDER_MAX_ROUTES; i++)
        routes[i] =
            (run_route_t){.name = taken[i].name, .chosen = taken[i].on ? "on" : "off", .reason = taken[i].reason};
    return n_routes < RECORDER_MAX_ROUTES ? n_routes : RECORDER_MAX_ROUTES;
}

/* Gathers each rank's sums; rank 0 appends the row. */
static status_t add_row(recorder_t *recorder, const sample_t *sample, int64_t begin_ns, int64_t end_ns) {
    int64_t group_ns[OP_N_GROUPS] = {0};
    if (recorder->trace != OP_TRACE_OFF) {
        memcpy(group_ns, engine_trace(recorder->engine)->group_ns, sizeof group_ns);
        int64_t busy_ns = 0;
        for (int group = 0; group < OP_N_GROUPS; group++)
            busy_ns += group_ns[group];
        group_ns[OP_GROUP_HOST_GAP] = end_ns - begin_ns - busy_ns;
        comm_gather(recorder->comm, group_ns, sizeof group_ns, recorder->group_ns);
    }
    if (!recorder->file) return STATUS_OK;
    for (int rank = 0; rank < comm_tp_size(recorder->comm); rank++) {
        recorder->device_ns[rank] = 0;
        for (int group = 0; group < OP_GROUP_HOST_GAP; group++)
            recorder->device_ns[rank] += recorder->group_ns[rank * OP_N_GROUPS + group];
    }
    run_step_t step = {.token = sample->token,
                       .start_ns = begin_ns - recorder->start_ns,
                       .wall_ns = end_ns - begin_ns,
                       .host_gap_ns = group_ns[OP_GROUP_HOST_GAP],
                       .device_ns = recorder->device_ns,
                       .pairs = sample->pairs,
                       .logits = sample->logits,
                       .top_logprobs = sample->top_logprobs,
                       .top_tokens = sample->top_tokens,
                       .group_ns = recorder->group_ns};
    return run_file_append(recorder->file, &step);
}

/* Gathers each rank's operators; rank 0 appends them rank by rank. */
static status_t add_ops(recorder_t *recorder) {
    const op_trace_t *trace = engine_trace(recorder->engine);
    size_t n = trace->n_records;
    for (size_t i = 0; i < n; i++)
        recorder->op_times[i] = (op_time_t){.start_ns = trace->records[i].start_ns - recorder->start_ns,
                                            .dur_ns = trace->records[i].dur_ns};
    comm_gather(recorder->comm, recorder->op_times, n * sizeof(op_time_t), recorder->all_times);
    if (!recorder->file) return STATUS_OK;
    for (int rank = 0; rank < comm_tp_size(recorder->comm); rank++) {
        for (size_t i = 0; i < n; i++) {
            const op_time_t *time = &recorder->all_times[(size_t)rank * n + i];
            recorder->records[i] = trace->records[i];
            recorder->records[i].start_ns = time->start_ns - recorder->clocks[rank].offset_ns;
            recorder->records[i].dur_ns = time->dur_ns;
        }
        TRY(run_file_append_ops(recorder->file, recorder->n_steps, rank, recorder->records, n));
    }
    return STATUS_OK;
}

status_t recorder_add(recorder_t *recorder, const sample_t *sample, int64_t begin_ns, int64_t end_ns) {
    status_t status = add_row(recorder, sample, begin_ns, end_ns);
    if (recorder->trace == OP_TRACE_OPS) {
        status_t ops_status = add_ops(recorder);
        if (status == STATUS_OK) status = ops_status;
    }
    recorder->n_steps++;
    op_trace_reset(engine_trace(recorder->engine));
    return status;
}

run_memory_t recorder_memory(void) {
    return (run_memory_t){.weights = (int64_t)memory_bytes(MEMORY_WEIGHTS),
                          .kv_cache = (int64_t)memory_bytes(MEMORY_KV_CACHE),
                          .state = (int64_t)memory_bytes(MEMORY_STATE),
                          .workspace = (int64_t)(memory_bytes(MEMORY_WORKSPACE) + memory_bytes(MEMORY_COMM)),
                          .cuda_graph = (int64_t)memory_bytes(MEMORY_CUDA_GRAPH),
                          .pinned_host = (int64_t)(memory_bytes(MEMORY_PLE_TABLE) + memory_bytes(MEMORY_PINNED)),
                          .peak_device = (int64_t)memory_peak_device_bytes(),
                          .peak_host_rss = (int64_t)memory_peak_rss_bytes()};
}

status_t recorder_finish(recorder_t *recorder, const char *text, size_t text_bytes, const char *stop_reason) {
    size_t n_ranks = (size_t)comm_tp_size(recorder->comm);
    run_memory_t mine = recorder_memory();
    void *all = NULL, *clocks = NULL;
    status_t status = allocate(n_ranks, sizeof mine, &all);
    if (status == STATUS_OK) status = allocate(n_ranks, sizeof(clock_offset_t), &clocks);
    status = comm_agree(recorder->comm, status);
    if (status != STATUS_OK) goto out;
    comm_gather(recorder->comm, &mine, sizeof mine, all);
    if (recorder->trace != OP_TRACE_OFF) clocks_measure(recorder->comm, clocks);
    if (recorder->file) {
        run_route_t routes[RECORDER_MAX_ROUTES];
        const run_end_t end = {.text = text,
                               .text_bytes = text_bytes,
                               .memory = all,
                               .stop_reason = stop_reason,
                               .routes = routes,
                               .n_routes = recorder_routes(recorder->engine, routes),
                               .clocks = recorder->trace != OP_TRACE_OFF ? clocks : NULL};
        run_file_t *file = recorder->file;
        recorder->file = NULL;
        status = run_file_finish(file, &end);
    }

out:
    memory_free(all);
    memory_free(clocks);
    return status;
}

void recorder_destroy(recorder_t *recorder) {
    if (!recorder) return;
    run_file_abandon(recorder->file);
    memory_free(recorder->group_ns);
    memory_free(recorder->device_ns);
    memory_free(recorder->op_times);
    memory_free(recorder->all_times);
    memory_free(recorder->records);
    memory_free(recorder->clocks);
    memory_free(recorder);
}
