#include "device/launch.cuh"
#include "embed/embed.h"

/* One block a token. Reads one row of the table, writes it hc_count times. Any size. */
static __global__ void embed_f16_kernel(stamp_t stamp, embed_args_t args) {
    previous_wait(stamp);
    next_start();
    int64_t token = blockIdx.x, hidden_size = args.embed.columns;
    const __half *row = (const __half *)args.embed.data + args.tokens[token] * hidden_size;
    float *h = args.h + token * args.hc_count * hidden_size;
    for (int64_t i = threadIdx.x; i < hidden_size; i += blockDim.x) {
        float value = __half2float(row[i]);
        for (int64_t stream = 0; stream < args.hc_count; stream++)
            h[stream * hidden_size + i] = value;
    }
}

status_t launch_embed(const embed_args_t *args, const device_queue_t *queue) {
    launch_kernel(queue, embed_f16_kernel, (unsigned int)args->n_tokens, 256, 0, *args);
    return queue_check_launch("embed");
}
