#include "device/device.cuh"
#include "device/launch.cuh"
#include "push/push.cuh"
#include "push/push_small.cuh"

namespace {

enum { THREADS = 256, VECTOR = 8, MIN_BLOCK_ITEMS = THREADS * VECTOR };

__device__ __forceinline__ void store_release(uint32_t *flag, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *flag) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

/* Writes a round's n values to every peer and waits for theirs. */
__device__ __forceinline__ void exchange(const push_args_t &args, const __half *data, int n, uint32_t round) {
    const int block = blockIdx.x, rank = args.tp_rank, n_ranks = args.tp_size, n_whole = n / VECTOR * VECTOR;
    const int parity = (int)(round & 1);
    for (int i = (int)threadIdx.x * VECTOR; i < n_whole; i += THREADS * VECTOR) {
        uint4 word = *(const uint4 *)(data + i);
        for (int peer = 0; peer < n_ranks; peer++) {
            if (peer != rank) *(uint4 *)&args.mailboxes[peer]->values[parity][rank][block][i] = word;
        }
    }
    for (int i = n_whole + (int)threadIdx.x; i < n; i += THREADS) {
        for (int peer = 0; peer < n_ranks; peer++) {
            if (peer != rank) args.mailboxes[peer]->values[parity][rank][block][i] = __half_as_ushort(data[i]);
        }
    }
    __syncthreads();
    const int peer = (int)threadIdx.x;
    if (peer < n_ranks && peer != rank) {
        __threadfence_system();
        store_release(&args.mailboxes[peer]->flags[parity][rank][block], round);
        const uint32_t *flag = &args.mailboxes[rank]->flags[parity][peer][block];
        push_wait wait;
        while (load_acquire(flag) != round) {
            if (wait.is_over(args, peer)) break;
        }
    }
    __syncthreads();
}

/* data = the sum of a round's n values. */
__device__ __forceinline__ void add_up(const push_args_t &args, __half *data, int n, uint32_t round) {
    const int block = blockIdx.x, rank = args.tp_rank, n_ranks = args.tp_size, n_whole = n / VECTOR * VECTOR;
    const uint16_t(*values)[PUSH_MAX_BLOCKS][PUSH_BLOCK_ITEMS] = args.mailboxes[rank]->values[round & 1];
    for (int i = (int)threadIdx.x * VECTOR; i < n_whole; i += THREADS * VECTOR) {
        float sums[VECTOR], own[VECTOR], added[VECTOR];
        unpack8(*(const uint4 *)(data + i), own);
        for (int peer = 0; peer < n_ranks; peer++) {
            if (peer != rank) unpack8(__ldcg((const uint4 *)&values[peer][block][i]), added);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float value = peer == rank ? own[j] : added[j];
                sums[j] = peer == 0 ? value : sums[j] + value;
            }
        }
        __half2 halves[VECTOR / 2];
#pragma unroll
        for (int j = 0; j < VECTOR / 2; j++)
            halves[j] = __floats2half2_rn(sums[2 * j], sums[2 * j + 1]);
        *(uint4 *)(data + i) = *(const uint4 *)halves;
    }
    for (int i = n_whole + (int)threadIdx.x; i < n; i += THREADS) {
        float sum = 0.0f;
        for (int peer = 0; peer < n_ranks; peer++) {
            float value =
                peer == rank ? __half2float(data[i]) : __half2float(__ushort_as_half(__ldcg(&values[peer][block][i])));
            sum = peer == 0 ? value : sum + value;
        }
        data[i] = __float2half_rn(sum);
    }
}

/* Grid: up to PUSH_MAX_BLOCKS, which take turns over pieces of block_items values, a round each. A thread moves 16
 * bytes at a time; a last part of fewer than 8 values goes one by one. Any size. */
__global__ void __launch_bounds__(THREADS)
    push_f16_kernel(stamp_t stamp, const __grid_constant__ push_args_t args, int block_items) {
    previous_wait(stamp);
    uint32_t *count = &args.mailboxes[args.tp_rank]->counts.blocks[blockIdx.x];
    uint32_t round = __ldcg(count);
    for (size_t first = (size_t)blockIdx.x * (size_t)block_items; first < args.n_items;
         first += (size_t)gridDim.x * (size_t)block_items) {
        int n = (int)min((size_t)block_items, args.n_items - first);
        round++;
        exchange(args, args.data + first, n, round);
        add_up(args, args.data + first, n, round);
    }
    if (threadIdx.x == 0) *count = round; /* every thread has read it: each round has a __syncthreads */
}

} // namespace

status_t launch_push(const push_args_t *args, const device_queue_t *queue) {
    if (args->n_items == 0) return STATUS_OK;
    if (args->n_items <= PUSH_SMALL_ITEMS && route_take(queue, ROUTE_PUSH_ALLREDUCE, NULL)) {
        launch_push_small(args, queue);
    } else {
        int64_t n_items = (int64_t)args->n_items, most = args->has_own_device ? PUSH_MAX_BLOCKS : PUSH_SHARED_BLOCKS;
        int64_t block_items = (n_items + most - 1) / most;
        block_items = (block_items + MIN_BLOCK_ITEMS - 1) / MIN_BLOCK_ITEMS * MIN_BLOCK_ITEMS;
        if (block_items > PUSH_BLOCK_ITEMS) block_items = PUSH_BLOCK_ITEMS;
        int64_t n_blocks = (n_items + block_items - 1) / block_items;
        if (n_blocks > most) n_blocks = most;
        launch_kernel(queue, push_f16_kernel, (unsigned int)n_blocks, THREADS, 0, *args, (int)block_items);
    }
    return queue_check_launch("push");
}
