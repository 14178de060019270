#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "microbench/microbench.h"

enum {
    CACHES = 4, /* a round of all copies moves more than this many times the last cache */
    MAX_COPIES = 128,
    MIN_CALLS = 32, /* calls timed together */
    BANDWIDTH_PASSES = 5
};

void microbench_compare(double result, double reference, microbench_error_t *error) {
    double difference = result - reference;
    if (!isfinite(difference)) {
        error->is_wrong = true;
        return;
    }
    error->squares += difference * difference;
    error->reference_squares += reference * reference;
}

/* sqrt(squares / reference_squares) */
static double relative(const microbench_error_t *error) {
    return sqrt(error->squares / (error->reference_squares > 0 ? error->reference_squares : 1.0));
}

void microbench_take_worst(const microbench_error_t *output, microbench_error_t *error) {
    bool is_wrong = error->is_wrong || output->is_wrong;
    if (relative(output) > relative(error)) *error = *output;
    error->is_wrong = is_wrong;
}

static int compare_ns(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* What runs between two time stamps. */
typedef struct batch {
    const microbench_op_t *op;
    const char *args; /* [n_copies] */
    int n_copies, n_calls;
} batch_t;

static status_t run_calls(backend_t *backend, const batch_t *batch) {
    for (int i = 0; i < batch->n_calls; i++)
        TRY(batch->op->run(backend, batch->args + (size_t)(i % batch->n_copies) * batch->op->args_bytes));
    return STATUS_OK;
}

static status_t run_stamped(backend_t *backend, const batch_t *batch) {
    TRY(backend->ops->mark(backend, 0));
    TRY(run_calls(backend, batch));
    return backend->ops->mark(backend, 1);
}

/* By the device's stamps where it has them, else by the clock. `recording` is NULL where the calls are not recorded. */
static status_t time_pass(backend_t *backend, const batch_t *batch, void *recording, int64_t *ns) {
    int64_t begin_ns = clock_now_ns(), stamps[2];
    if (recording)
        TRY(backend->ops->replay(backend, recording));
    else
        TRY(backend->ops->mark ? run_stamped(backend, batch) : run_calls(backend, batch));
    TRY(backend->ops->synchronize(backend));
    *ns = clock_now_ns() - begin_ns;
    if (!backend->ops->mark) return STATUS_OK;
    TRY(backend->ops->read_marks(backend, 2, stamps));
    *ns = stamps[1] - stamps[0];
    return STATUS_OK;
}

static status_t time_batch(backend_t *backend, const batch_t *batch, int n_passes, double *us) {
    void *recording = NULL, *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)n_passes + 1, sizeof(int64_t), &memory));
    int64_t *ns = memory;
    status_t status = STATUS_OK;
    if (backend->can_record) {
        status = backend->ops->record_begin(backend);
        if (status == STATUS_OK) {
            status = run_stamped(backend, batch);
            status_t ended = backend->ops->record_end(backend, &recording);
            if (status == STATUS_OK) status = ended;
        }
    }
    /* The first pass is not counted. */
    for (int pass = 0; pass <= n_passes; pass++) {
        status = comm_agree(backend->comm, status);
        if (status == STATUS_OK) status = time_pass(backend, batch, recording, &ns[pass]);
    }
    status = comm_agree(backend->comm, status);
    if (recording) backend->ops->record_free(backend, recording);
    qsort(ns + 1, (size_t)n_passes, sizeof *ns, compare_ns);
    if (status == STATUS_OK) *us = (double)ns[1 + n_passes / 2] / batch->n_calls / 1e3;
    memory_free(ns);
    return status;
}

static status_t prepare_copies(microbench_t *bench, const microbench_op_t *op, char *args, int *n_copies) {
    double cold_bytes = 0, wanted = CACHES * (double)bench->backend->cache_bytes;
    int n = 0;
    while (n < MAX_COPIES && (n == 0 || cold_bytes <= wanted)) {
        void *copy = args + (size_t)n * op->args_bytes;
        operands_begin_copy(&bench->operands, n);
        TRY(op->prepare(bench, copy));
        cold_bytes += op->bytes(bench, copy);
        n++;
    }
    *n_copies = n;
    return bench->backend->ops->synchronize(bench->backend);
}

/* The routes that have been taken more often than `before` says: a bit each, and as a list. */
static unsigned find_taken(const route_state_t *routes, const int64_t *before, char *text) {
    unsigned taken = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; routes && i < N_KERNEL_ROUTES; i++) {
        if (routes[i].n_launches == before[i]) continue;
        taken |= 1u << i;
        if (used >= MICROBENCH_ROUTES_BYTES) continue;
        used += (size_t)snprintf(text + used, MICROBENCH_ROUTES_BYTES - used, "%s%s", used ? "," : "",
                                 kernel_route_name((kernel_route_t)i));
    }
    return taken;
}

static status_t find_slowest(comm_t *comm, double own_us, double *us) {
    void *memory;
    TRY(comm_agree(comm, memory_alloc(MEMORY_OTHER, (size_t)comm_tp_size(comm), sizeof own_us, &memory)));
    const double *all = memory;
    comm_all_gather(comm, &own_us, sizeof own_us, memory);
    *us = own_us;
    for (int rank = 0; rank < comm_tp_size(comm); rank++)
        *us = fmax(*us, all[rank]);
    memory_free(memory);
    return STATUS_OK;
}

static status_t measure_row(microbench_t *bench, const batch_t *batch, int n_passes, microbench_row_t *row,
                            unsigned *taken) {
    backend_t *backend = bench->backend;
    const route_state_t *routes = backend->ops->routes ? backend->ops->routes(backend) : NULL;
    int64_t before[N_KERNEL_ROUTES];
    for (int i = 0; i < N_KERNEL_ROUTES; i++)
        before[i] = routes ? routes[i].n_launches : 0;
    row->op = batch->op->name;
    row->n_copies = batch->n_copies;
    row->bytes = batch->op->bytes(bench, batch->args);

    microbench_error_t error = {0};
    status_t status = operands_reset(&bench->operands);
    if (status == STATUS_OK) status = batch->op->run(backend, batch->args);
    if (status == STATUS_OK) status = backend->ops->synchronize(backend);
    *taken = find_taken(routes, before, row->routes);
    if (status == STATUS_OK) status = batch->op->reference(bench, batch->args, &error);
    TRY(comm_agree(backend->comm, status));
    row->is_wrong = error.is_wrong;
    row->relative_error = relative(&error);

    double us;
    TRY(time_batch(backend, batch, n_passes, &us));
    return find_slowest(backend->comm, us, &row->us);
}

/* The row as asked for, then one for each route that it took. */
static status_t measure_rows(microbench_t *bench, const batch_t *batch, int n_passes, microbench_row_t *rows,
                             int *n_rows) {
    backend_t *backend = bench->backend;
    unsigned taken, ignored;
    int n = 1;
    TRY(measure_row(bench, batch, n_passes, &rows[0], &taken));
    for (int i = 0; i < N_KERNEL_ROUTES; i++) {
        if (!(taken & 1u << i)) continue;
        route_state_t *route = &backend->ops->routes(backend)[i];
        route->wanted = false;
        rows[n].without = kernel_route_name((kernel_route_t)i);
        status_t status = measure_row(bench, batch, n_passes, &rows[n], &ignored);
        route->wanted = true;
        TRY(status);
        n++;
    }
    *n_rows = n;
    return STATUS_OK;
}

status_t microbench_measure(microbench_t *bench, const microbench_op_t *op, int n_passes, microbench_row_t *rows,
                            int *n_rows) {
    void *args;
    memset(rows, 0, (1 + N_KERNEL_ROUTES) * sizeof *rows);
    status_t status = memory_alloc(MEMORY_OTHER, MAX_COPIES, op->args_bytes, &args);
    TRY(comm_agree(bench->backend->comm, status));
    batch_t batch = {.op = op, .args = args};
    status = comm_agree(bench->backend->comm, prepare_copies(bench, op, args, &batch.n_copies));
    if (status == STATUS_OK) {
        batch.n_calls = (MIN_CALLS + batch.n_copies - 1) / batch.n_copies * batch.n_copies;
        status = measure_rows(bench, &batch, n_passes, rows, n_rows);
    }
    bench->backend->ops->synchronize(bench->backend);
    operands_free(&bench->operands);
    memory_free(args);
    return status;
}

typedef struct copy_args {
    void *from, *to;
    size_t bytes;
} copy_args_t;

static status_t run_copy(backend_t *backend, const void *args) {
    const copy_args_t *copy = args;
    return backend->ops->copy(backend, copy->to, copy->from, copy->bytes);
}

status_t microbench_bandwidth(backend_t *backend, double *bytes_per_s) {
    static const microbench_op_t op = {.name = "copy", .args_bytes = sizeof(copy_args_t), .run = run_copy};
    size_t bytes = 2 * CACHES * backend->cache_bytes, most = (size_t)256 << 20;
    copy_args_t copy = {.bytes = bytes < most ? bytes : most};
    const batch_t batch = {.op = &op, .args = (const char *)&copy, .n_copies = 1, .n_calls = 1};
    double us, best = 0;
    status_t status = backend->ops->alloc(backend, MEMORY_OTHER, copy.bytes, &copy.from);
    if (status == STATUS_OK) status = backend->ops->alloc(backend, MEMORY_OTHER, copy.bytes, &copy.to);
    status = comm_agree(backend->comm, status);
    for (int i = 0; status == STATUS_OK && i < BANDWIDTH_PASSES; i++) {
        status = time_batch(backend, &batch, 1, &us);
        if (status == STATUS_OK) best = fmax(best, 2.0 * (double)copy.bytes / us * 1e6);
    }
    backend->ops->free(backend, copy.to);
    backend->ops->free(backend, copy.from);
    if (status == STATUS_OK) *bytes_per_s = best;
    return status;
}
