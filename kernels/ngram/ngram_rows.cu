#include "device/launch.cuh"
#include "ngram/ngram_rows.h"

/* One thread a row id. A few hundred bytes; any size. */
static __global__ void ngram_rows_kernel(stamp_t stamp, ngram_rows_args_t args) {
    previous_wait(stamp);
    next_start();
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.n_tokens * args.n_heads) return;
    int64_t position = index / args.n_heads, head = index % args.n_heads;
    int64_t n_context = args.ngram_size - 1, order = head / args.heads_per_ngram + 2;
    uint64_t mixed = (uint64_t)(int64_t)args.tokens[position] * (uint64_t)args.multipliers[0];
    bool cut = false;
    for (int64_t back = 1; back < order; back++) {
        int32_t token = position >= back ? args.tokens[position - back] : args.context[n_context + position - back];
        cut = cut || token == args.eos_token_id;
        if (cut) token = args.eos_token_id;
        mixed ^= (uint64_t)(int64_t)token * (uint64_t)args.multipliers[back];
    }
    int64_t remainder = (int64_t)mixed % args.head_sizes[head];
    if (remainder < 0) remainder += args.head_sizes[head];
    args.rows[index] = remainder + args.head_offsets[head];
}

status_t launch_ngram_rows(const ngram_rows_args_t *args, const device_queue_t *queue) {
    int64_t n = args->n_tokens * args->n_heads;
    launch_kernel(queue, ngram_rows_kernel, (unsigned int)((n + 127) / 128), 128, 0, *args);
    return queue_check_launch("ngram_rows");
}
