/* The push all-reduce between the ranks that mpirun started, in its general form and in that for few values: whole
 * numbers, so that every sum is exact; random sizes and delays; guards behind the data; the counts of rounds passing
 * 2^32; and small values whose sum depends on the order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "backend/push_cuda.h"
#include "base/dtype.h"
#include "device/route.h"
#include "push/push.h"

enum { MAX_ITEMS = 300000, GUARDS = 64, N_CALLS = 400 };

static comm_t *comm;
static route_state_t routes[N_KERNEL_ROUTES];
static stamp_t due;
static device_queue_t queue = {.routes = routes, .due = &due};

static void require(status_t status) {
    if (status != STATUS_OK) fail_msg("%s", status_message());
}

static void require_cuda(cudaError_t error) {
    if (error != cudaSuccess) fail_msg("%s", cudaGetErrorString(error));
}

/* Equal on all ranks. */
static uint32_t random_state = 12345;
static uint32_t random_word(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float value_of(int rank, int call, size_t i) {
    return (float)((int)((i * 7 + (size_t)call * 13 + (size_t)rank * 29) % 61) - 30);
}

static size_t size_of_call(void) {
    static const size_t sizes[] = {1, 7, 8, 160, 2560, 2561, 4096, 16384, 16385, 131072, 262145, MAX_ITEMS};
    uint32_t word = random_word();
    return word % 4 ? sizes[word % (sizeof sizes / sizeof *sizes)] : 1 + word % 10000;
}

/* Mixes both forms, unless the route is off. */
static void check_sums(void) {
    int rank = comm_tp_rank(comm), n_ranks = comm_tp_size(comm);
    push_t *push = NULL;
    require(push_create(comm, &queue, UINT32_MAX - 150, &push));
    uint16_t *host = malloc((MAX_ITEMS + GUARDS) * sizeof *host);
    void *device;
    assert_non_null(host);
    require_cuda(cudaMalloc(&device, (MAX_ITEMS + GUARDS) * sizeof *host));
    int64_t n_wrong = 0;
    for (int call = 0; call < N_CALLS; call++) {
        size_t n = size_of_call();
        int late_rank = (int)(random_word() % (uint32_t)(2 * n_ranks));
        for (size_t i = 0; i < n + GUARDS; i++)
            host[i] = i < n ? f16_from_float(value_of(rank, call, i)) : 0x7E57;
        require_cuda(cudaMemcpyAsync(device, host, (n + GUARDS) * sizeof *host, cudaMemcpyHostToDevice, queue.stream));
        if (rank == late_rank) nanosleep(&(struct timespec){.tv_nsec = 200000 + (long)(random_state % 1000000)}, NULL);
        require(push_all_reduce(push, device, n));
        require_cuda(cudaMemcpyAsync(host, device, (n + GUARDS) * sizeof *host, cudaMemcpyDeviceToHost, queue.stream));
        require_cuda(cudaStreamSynchronize(queue.stream));
        require(push_check(push));
        for (size_t i = 0; i < n; i++) {
            float sum = 0.0f;
            for (int r = 0; r < n_ranks; r++)
                sum += value_of(r, call, i);
            n_wrong += host[i] != f16_from_float(sum) && f16_to_float(host[i]) != sum;
        }
        for (size_t i = n; i < n + GUARDS; i++)
            n_wrong += host[i] != 0x7E57;
    }
    comm_barrier(comm);
    push_destroy(push);
    cudaFree(device);
    free(host);
    assert_int_equal(n_wrong, 0);
}

static void test_sums(void **state) {
    (void)state;
    check_sums();
    assert_true(routes[ROUTE_PUSH_ALLREDUCE].n_launches > 0);
}

static void test_general_form(void **state) {
    (void)state;
    routes[ROUTE_PUSH_ALLREDUCE] = (route_state_t){.wanted = false};
    check_sums();
    assert_int_equal(routes[ROUTE_PUSH_ALLREDUCE].n_launches, 0);
    routes[ROUTE_PUSH_ALLREDUCE].wanted = true;
}

/* Both forms add in rank order and round once. */
static void test_order(void **state) {
    (void)state;
    enum { N = 2561 };
    int n_ranks = comm_tp_size(comm);
    push_t *push = NULL;
    void *device;
    uint16_t host[N];
    require(push_create(comm, &queue, 0, &push));
    require_cuda(cudaMalloc(&device, sizeof host));
    for (int form = 0; form < 2; form++) {
        routes[ROUTE_PUSH_ALLREDUCE].wanted = form == 0;
        for (int i = 0; i < N; i++)
            host[i] = f16_from_float(value_of(comm_tp_rank(comm), form, (size_t)i) * 1.1f + 0.013f);
        require_cuda(cudaMemcpyAsync(device, host, sizeof host, cudaMemcpyHostToDevice, queue.stream));
        require(push_all_reduce(push, device, N));
        require_cuda(cudaMemcpyAsync(host, device, sizeof host, cudaMemcpyDeviceToHost, queue.stream));
        require_cuda(cudaStreamSynchronize(queue.stream));
        for (int i = 0; i < N; i++) {
            float sum = 0.0f;
            for (int r = 0; r < n_ranks; r++)
                sum += f16_to_float(f16_from_float(value_of(r, form, (size_t)i) * 1.1f + 0.013f));
            assert_int_equal(host[i], f16_from_float(sum));
        }
    }
    routes[ROUTE_PUSH_ALLREDUCE].wanted = true;
    require(push_check(push));
    comm_barrier(comm);
    push_destroy(push);
    cudaFree(device);
}

/* Time of a call, many in a row as one recording, as a decode step has them. */
static void time_calls(push_t *push, activation_t *device, size_t n, int n_calls, const char *form) {
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    float ms, best_ms = INFINITY;
    require_cuda(cudaEventCreate(&begin));
    require_cuda(cudaEventCreate(&end));
    require(push_all_reduce(push, device, n));
    require_cuda(cudaStreamSynchronize(queue.stream));
    require_cuda(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n_calls; i++)
        require(push_all_reduce(push, device, n));
    require_cuda(cudaStreamEndCapture(queue.stream, &graph));
    require_cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    comm_barrier(comm);
    for (int repeat = 0; repeat < 5; repeat++) {
        require_cuda(cudaEventRecord(begin, queue.stream));
        require_cuda(cudaGraphLaunch(executable, queue.stream));
        require_cuda(cudaEventRecord(end, queue.stream));
        require_cuda(cudaStreamSynchronize(queue.stream));
        require_cuda(cudaEventElapsedTime(&ms, begin, end));
        if (ms < best_ms) best_ms = ms;
    }
    require(push_check(push));
    if (comm_tp_rank(comm) == 0)
        printf("    %7zu values, %s: %.2f us a call\n", n, form, (double)best_ms * 1e3 / n_calls);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

static void test_latency(void **state) {
    (void)state;
    static const size_t sizes[] = {160, 2560, 16384, 131072, 1310720, 5242880};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    push_t *push = NULL;
    void *device;
    require(push_create(comm, &queue, 0, &push));
    require_cuda(cudaMalloc(&device, sizes[N_SIZES - 1] * sizeof(uint16_t)));
    require_cuda(cudaMemset(device, 0, sizes[N_SIZES - 1] * sizeof(uint16_t)));
    for (size_t i = 0; i < N_SIZES; i++) {
        for (int pdl = 0; pdl < 2 && sizes[i] <= PUSH_SMALL_ITEMS; pdl++) {
            routes[ROUTE_PDL].wanted = pdl == 1;
            time_calls(push, device, sizes[i], 200, pdl ? "without flags, dependent launch" : "without flags");
        }
        routes[ROUTE_PUSH_ALLREDUCE].wanted = false;
        time_calls(push, device, sizes[i], sizes[i] > 131072 ? 10 : 100, "general form");
        routes[ROUTE_PUSH_ALLREDUCE].wanted = true;
    }
    comm_barrier(comm);
    push_destroy(push);
    cudaFree(device);
}

int main(void) {
    int n_devices = 0;
    if (comm_init(&comm) != STATUS_OK || cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0)
        return EXIT_FAILURE;
    cudaSetDevice(comm_local_rank(comm) % n_devices);
    if (cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking) != cudaSuccess) return EXIT_FAILURE;
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, comm_local_rank(comm) % n_devices);
    if (properties.major < 9) queue.pdl_refusal = "needs sm_90";
    for (int route = 0; route < N_KERNEL_ROUTES; route++)
        routes[route].wanted = true;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_general_form),
                                       cmocka_unit_test(test_order), cmocka_unit_test(test_latency)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
