/* The push all-reduce between the ranks that mpirun started: whole numbers, so that every sum is exact; random sizes
 * and delays; guards behind the data; the count of rounds passing 2^32. */
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
#include "push/push.h"

enum { MAX_ITEMS = 300000, GUARDS = 64, N_CALLS = 400 };

static comm_t *comm;
static device_queue_t queue;

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
    static const size_t sizes[] = {1, 7, 8, 160, 2560, 2561, 4096, 131072, 131073, MAX_ITEMS};
    uint32_t word = random_word();
    return word % 4 ? sizes[word % (sizeof sizes / sizeof *sizes)] : 1 + word % 10000;
}

static void test_sums(void **state) {
    (void)state;
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

/* Time of the size that a decode step sums, many in a row. */
static void test_latency(void **state) {
    (void)state;
    enum { N = 2560, REPEATS = 2000 };
    push_t *push = NULL;
    void *device;
    cudaEvent_t begin, end;
    float ms;
    require(push_create(comm, &queue, 0, &push));
    require_cuda(cudaMalloc(&device, N * sizeof(uint16_t)));
    require_cuda(cudaMemset(device, 0, N * sizeof(uint16_t)));
    require_cuda(cudaEventCreate(&begin));
    require_cuda(cudaEventCreate(&end));
    comm_barrier(comm);
    for (int i = 0; i < REPEATS; i++) {
        if (i == REPEATS / 2) require_cuda(cudaEventRecord(begin, queue.stream));
        require(push_all_reduce(push, device, N));
    }
    require_cuda(cudaEventRecord(end, queue.stream));
    require_cuda(cudaStreamSynchronize(queue.stream));
    require(push_check(push));
    require_cuda(cudaEventElapsedTime(&ms, begin, end));
    if (comm_tp_rank(comm) == 0) printf("    %d values: %.2f us a call\n", N, (double)ms * 1e3 / (REPEATS / 2));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_latency)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
