#include "device/device.cuh"
#include "push/push.h"

namespace {

enum { THREADS = 128, VECTOR = 8, MIN_BLOCK_ITEMS = THREADS * VECTOR };

__device__ __forceinline__ void store_release(uint32_t *flag, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *flag) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ __forceinline__ int64_t now_ns() {
    int64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Grid: n_items / block_items. A thread moves 16 bytes at a time; a last part of fewer than 8 values goes one by one.
 */
__global__ void __launch_bounds__(THREADS) push_f16_kernel(const __grid_constant__ push_args_t args, int block_items) {
    int block = blockIdx.x, rank = args.tp_rank, n_ranks = args.tp_size;
    push_mailbox_t *own = args.mailboxes[rank];
    uint32_t round = own->rounds[block] + 1;
    int parity = (int)(round & 1);
    size_t first = (size_t)block * (size_t)block_items;
    int n = (int)min((size_t)block_items, args.n_items - first), n_whole = n / VECTOR * VECTOR;
    __half *data = args.data + first;

    for (int i = (int)threadIdx.x * VECTOR; i < n_whole; i += THREADS * VECTOR) {
        uint4 word = *(const uint4 *)(data + i);
        for (int peer = 0; peer < n_ranks; peer++)
            *(uint4 *)&args.mailboxes[peer]->values[parity][rank][block][i] = word;
    }
    for (int i = n_whole + (int)threadIdx.x; i < n; i += THREADS) {
        for (int peer = 0; peer < n_ranks; peer++)
            args.mailboxes[peer]->values[parity][rank][block][i] = __half_as_ushort(data[i]);
    }
    __syncthreads();
    if ((int)threadIdx.x < n_ranks) {
        __threadfence_system();
        store_release(&args.mailboxes[threadIdx.x]->flags[parity][rank][block], round);
        const uint32_t *flag = &own->flags[parity][threadIdx.x][block];
        int64_t begin = now_ns();
        while (load_acquire(flag) != round) {
            if (*(volatile int32_t *)args.fault != 0) break;
            if (now_ns() - begin > args.limit_ns) *(volatile int32_t *)args.fault = 1 + (int32_t)threadIdx.x;
        }
    }
    __syncthreads();

    for (int i = (int)threadIdx.x * VECTOR; i < n_whole; i += THREADS * VECTOR) {
        float sums[VECTOR], values[VECTOR];
        unpack8(__ldcg((const uint4 *)&own->values[parity][0][block][i]), sums);
        for (int peer = 1; peer < n_ranks; peer++) {
            unpack8(__ldcg((const uint4 *)&own->values[parity][peer][block][i]), values);
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                sums[j] += values[j];
        }
        __half2 halves[VECTOR / 2];
#pragma unroll
        for (int j = 0; j < VECTOR / 2; j++)
            halves[j] = __floats2half2_rn(sums[2 * j], sums[2 * j + 1]);
        *(uint4 *)(data + i) = *(const uint4 *)halves;
    }
    for (int i = n_whole + (int)threadIdx.x; i < n; i += THREADS) {
        float sum = 0.0f;
        for (int peer = 0; peer < n_ranks; peer++)
            sum += __half2float(__ushort_as_half(__ldcg(&own->values[parity][peer][block][i])));
        data[i] = __float2half_rn(sum);
    }
    if (threadIdx.x == 0) own->rounds[block] = round;
}

} // namespace

status_t launch_push(const push_args_t *args, const device_queue_t *queue) {
    constexpr size_t MOST = (size_t)PUSH_MAX_BLOCKS * PUSH_BLOCK_ITEMS;
    push_args_t part = *args;
    for (size_t done = 0; done < args->n_items; done += MOST) {
        part.data = args->data + done;
        part.n_items = args->n_items - done < MOST ? args->n_items - done : MOST;
        size_t block_items = (part.n_items + PUSH_MAX_BLOCKS - 1) / PUSH_MAX_BLOCKS;
        block_items = (block_items + MIN_BLOCK_ITEMS - 1) / MIN_BLOCK_ITEMS * MIN_BLOCK_ITEMS;
        unsigned int n_blocks = (unsigned int)((part.n_items + block_items - 1) / block_items);
        push_f16_kernel<<<n_blocks, THREADS, 0, queue->stream>>>(part, (int)block_items);
    }
    return queue_check_launch("push");
}
