#include "device/device.cuh"
#include "device/launch.cuh"
#include "push/push.cuh"
#include "push/push_small.cuh"

namespace {

enum { THREADS = PUSH_SMALL_THREADS, WORD_ITEMS = 4 };

/* Grid: n_items / PUSH_SMALL_BLOCK_ITEMS. A thread has four values: it writes 16 bytes to each peer and reads 16 of
 * each. Values past the end are sent as zeros. Any size up to PUSH_SMALL_ITEMS, 2 to MOST_RANKS ranks. */
template <int MOST_RANKS>
__global__ void __launch_bounds__(THREADS)
    push_small_f16_kernel(stamp_t stamp, const __grid_constant__ push_args_t args) {
    const int block = blockIdx.x, thread = threadIdx.x, rank = args.tp_rank;
    push_mailbox_t *own = args.mailboxes[rank];
    size_t first = (size_t)block * PUSH_SMALL_BLOCK_ITEMS + (size_t)thread * WORD_ITEMS;
    int n = first < args.n_items ? (int)min((size_t)WORD_ITEMS, args.n_items - first) : 0;
    __half *data = args.data + first;

    previous_wait(stamp);
    if (args.has_own_device) next_start();
    uint32_t round = __ldcg(&own->counts.small_blocks[block]) + 1;
    int parity = (int)(round & 1);
    union {
        uint2 word;
        __half values[WORD_ITEMS];
    } mine = {make_uint2(0, 0)};
    if (n == WORD_ITEMS) {
        mine.word = *(const uint2 *)data;
    } else {
#pragma unroll
        for (int i = 0; i < WORD_ITEMS; i++)
            if (i < n) mine.values[i] = data[i];
    }
#pragma unroll
    for (int peer = 0; peer < MOST_RANKS; peer++) {
        if (peer < args.tp_size && peer != rank)
            push_store(&args.mailboxes[peer]->small[parity][rank][block][thread], mine.word, round);
    }

    uint2 words[MOST_RANKS];
    push_wait wait;
    for (int missing = 0; missing >= 0;) {
        bool has_come[MOST_RANKS];
        missing = -1;
#pragma unroll
        for (int peer = 0; peer < MOST_RANKS; peer++) {
            words[peer] = mine.word;
            has_come[peer] = true;
            if (peer < args.tp_size && peer != rank)
                has_come[peer] = push_load(&own->small[parity][peer][block][thread], round, &words[peer]);
        }
#pragma unroll
        for (int peer = 0; peer < MOST_RANKS; peer++)
            if (!has_come[peer]) missing = peer;
        if (missing >= 0 && wait.is_over(args, missing)) break;
    }

    float sums[WORD_ITEMS] = {};
#pragma unroll
    for (int peer = 0; peer < MOST_RANKS; peer++) {
        if (peer >= args.tp_size) continue;
        const __half2 *pairs = (const __half2 *)&words[peer];
#pragma unroll
        for (int i = 0; i < WORD_ITEMS / 2; i++) {
            float2 pair = __half22float2(pairs[i]);
            sums[2 * i] = peer == 0 ? pair.x : sums[2 * i] + pair.x;
            sums[2 * i + 1] = peer == 0 ? pair.y : sums[2 * i + 1] + pair.y;
        }
    }
#pragma unroll
    for (int i = 0; i < WORD_ITEMS; i++)
        mine.values[i] = __float2half_rn(sums[i]);
    if (n == WORD_ITEMS) {
        *(uint2 *)data = mine.word;
    } else {
#pragma unroll
        for (int i = 0; i < WORD_ITEMS; i++)
            if (i < n) data[i] = mine.values[i];
    }
    __syncthreads(); /* every thread has read the count */
    if (thread == 0) own->counts.small_blocks[block] = round;
}

} // namespace

void launch_push_small(const push_args_t *args, const device_queue_t *queue) {
    unsigned int n_blocks = blocks_for((int64_t)args->n_items, PUSH_SMALL_BLOCK_ITEMS);
    auto kernel = args->tp_size == 2   ? push_small_f16_kernel<2>
                  : args->tp_size <= 4 ? push_small_f16_kernel<4>
                                       : push_small_f16_kernel<PUSH_MAX_RANKS>;
    launch_kernel(queue, kernel, n_blocks, THREADS, 0, *args);
}
