#include "device/device.cuh"
#include "device/launch.cuh"
#include "embed/embed.h"

enum { THREADS = 256 };

/* Grid: (tokens, hidden_size / 256). A thread reads one value of the token's row and writes it hc_count times. Any
 * size. */
static __global__ void __launch_bounds__(THREADS) embed_f16_kernel(stamp_t stamp, embed_args_t args) {
    previous_wait(stamp);
    next_start();
    int64_t token = blockIdx.x, hidden_size = args.embed.columns, i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (i >= hidden_size) return;
    float value = __half2float(((const __half *)args.embed.data)[args.tokens[token] * hidden_size + i]);
    float *h = args.h + token * args.hc_count * hidden_size + i;
    for (int64_t stream = 0; stream < args.hc_count; stream++)
        h[stream * hidden_size] = value;
}

status_t launch_embed(const embed_args_t *args, const device_queue_t *queue) {
    dim3 grid((unsigned int)args->n_tokens, blocks_for(args->embed.columns, THREADS));
    launch_kernel(queue, embed_f16_kernel, grid, THREADS, 0, *args);
    return queue_check_launch("embed");
}
