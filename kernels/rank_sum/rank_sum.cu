/* A thread an item, blocks of 256; any sizes. Reads n_ranks * 2 bytes an item, writes 2. */

#include "rank_sum/rank_sum.h"

#include "device/launch.cuh"

enum { THREADS = 256 };

static __global__ void rank_sum_f16_kernel(rank_sum_args_t args) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    previous_wait();
    if (i >= args.n_items) return;
    float sum = __half2float(args.parts[i]);
    for (int64_t rank = 1; rank < args.n_ranks; rank++)
        sum += __half2float(args.parts[rank * args.n_items + i]);
    args.data[i] = __float2half_rn(sum);
}

status_t launch_rank_sum(const rank_sum_args_t *args, const device_queue_t *queue) {
    unsigned int n_blocks = (unsigned int)((args->n_items + THREADS - 1) / THREADS);
    launch_kernel(queue, rank_sum_f16_kernel, dim3(n_blocks), dim3(THREADS), 0, *args);
    return queue_check_launch("rank_sum");
}
