/* Device memory through MPI, on several ranks: sums with --comm mpi and gathered results, with the route cuda_aware_mpi
 * and without it, to the bit. Where MPI takes no device memory the route must be refused, and the rest still right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "gpu_support.h"
#include "support/all_ranks.h"

static comm_t *comm;
static backend_t *backend;

static void *host_memory(size_t bytes) {
    void *memory = NULL;
    assert_all_ok(comm, memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    return memory;
}

static void set_route(bool on) { backend->ops->routes(backend)[ROUTE_CUDA_AWARE_MPI] = (route_state_t){.wanted = on}; }

static void assert_route_taken(void) {
    const route_state_t *route = &backend->ops->routes(backend)[ROUTE_CUDA_AWARE_MPI];
    assert_int_equal(route->n_launches > 0, comm_takes_device(comm));
    assert_int_equal(route->refusal != NULL, !comm_takes_device(comm));
}

/* The value that a rank has at a place: small whole numbers, so that sums are exact. */
static float value_of(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 13) % 64); }

/* One sum; its time of several, in us. */
static double sum_once(size_t n, const uint16_t *own, void *device, uint16_t *result) {
    size_t bytes = n * sizeof *own;
    enum { REPEATS = 20 };
    int64_t begin_ns = 0;
    for (int i = 0; i <= REPEATS; i++) {
        assert_all_ok(comm, backend->ops->upload(backend, device, own, bytes));
        assert_all_ok(comm, backend->ops->all_reduce(backend, device, n));
        assert_all_ok(comm, backend->ops->synchronize(backend));
        if (i == 0) begin_ns = clock_now_ns();
    }
    double us = (double)(clock_now_ns() - begin_ns) / 1e3 / REPEATS;
    assert_all_ok(comm, backend->ops->download(backend, result, device, bytes));
    return us;
}

static void sum_case(size_t n) {
    int n_ranks = comm_tp_size(comm);
    uint16_t *own = host_memory(n * 2), *routed = host_memory(n * 2), *general = host_memory(n * 2);
    void *device;
    assert_all_ok(comm, backend->ops->alloc(backend, MEMORY_OTHER, n * 2, &device));
    for (size_t i = 0; i < n; i++)
        own[i] = f16_from_float(value_of(comm_tp_rank(comm), i));
    set_route(true);
    double routed_us = sum_once(n, own, device, routed);
    if (n > 1) assert_route_taken(); /* one value is not worth it */
    set_route(false);
    double general_us = sum_once(n, own, device, general);
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int rank = 0; rank < n_ranks; rank++)
            sum += value_of(rank, i);
        if (routed[i] != f16_from_float(sum) || general[i] != routed[i])
            fail_msg("value %zu of %zu: %g by the route, %g without, not %g", i, n, (double)f16_to_float(routed[i]),
                     (double)f16_to_float(general[i]), (double)sum);
    }
    if (comm_tp_rank(comm) == 0)
        printf("    sum of %zu values: %.1f us, %.1f with the route off\n", n, routed_us, general_us);
    backend->ops->free(backend, device);
    memory_free(own);
    memory_free(routed);
    memory_free(general);
}

static void test_sums(void **state) {
    (void)state;
    sum_case(1);
    sum_case(2560);
    sum_case(300001);
}

static void test_gather(void **state) {
    (void)state;
    enum { N = 62080 }; /* a quarter of the logits */
    int n_ranks = comm_tp_size(comm);
    bool is_root = comm_tp_rank(comm) == 0;
    float *own = host_memory(N * sizeof(float)), *room = host_memory(N * sizeof(float));
    float *gathered = is_root ? host_memory((size_t)n_ranks * N * sizeof(float)) : NULL;
    void *device;
    if (!is_root) (void)comm_agree(comm, STATUS_OK); /* rank 0's allocation */
    assert_all_ok(comm, backend->ops->alloc(backend, MEMORY_OTHER, N * sizeof(float), &device));
    for (size_t i = 0; i < N; i++)
        own[i] = value_of(comm_tp_rank(comm), i);
    assert_all_ok(comm, backend->ops->upload(backend, device, own, N * sizeof(float)));
    for (int on = 1; on >= 0; on--) {
        set_route(on);
        int64_t begin_ns = clock_now_ns();
        enum { REPEATS = 20 };
        for (int i = 0; i < REPEATS; i++)
            assert_all_ok(comm, backend->ops->gather(backend, device, N * sizeof(float), room, gathered));
        double us = (double)(clock_now_ns() - begin_ns) / 1e3 / REPEATS;
        if (on) assert_route_taken();
        for (size_t i = 0; is_root && i < (size_t)n_ranks * N; i++)
            assert_true(gathered[i] == value_of((int)(i / N), i % N));
        if (is_root) printf("    gathering %d FP32 a rank, route %s: %.1f us\n", N, on ? "on" : "off", us);
        if (is_root) memset(gathered, 0xFF, (size_t)n_ranks * N * sizeof(float));
    }
    backend->ops->free(backend, device);
    memory_free(own);
    memory_free(room);
    memory_free(gathered);
}

/* What sharing replicated weights would go at: no test but a figure. */
static void test_broadcast(void **state) {
    (void)state;
    enum { BYTES = 256 << 20 };
    if (!comm_takes_device(comm)) skip();
    void *device;
    assert_all_ok(comm, backend->ops->alloc(backend, MEMORY_OTHER, BYTES, &device));
    assert_all_ok(comm, backend->ops->synchronize(backend));
    for (int i = 0; i < 3; i++) {
        comm_barrier(comm);
        int64_t begin_ns = clock_now_ns();
        comm_broadcast(comm, device, BYTES);
        comm_barrier(comm);
        if (i == 2 && comm_tp_rank(comm) == 0)
            printf("    broadcast from device to device: %.1f GB/s\n", BYTES / (double)(clock_now_ns() - begin_ns));
    }
    backend->ops->free(backend, device);
}

int main(void) {
    backend_args_t args = {.kind = BACKEND_CUDA, .all_reduce = "mpi"};
    status_t status = comm_init(&args.comm);
    comm = args.comm;
    if (status != STATUS_OK || backend_open(&args, &backend) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return EXIT_FAILURE;
    }
    if (comm_tp_rank(comm) == 0)
        printf("    %s %s device memory\n", comm_library(comm), comm_takes_device(comm) ? "takes" : "takes no");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_broadcast),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
