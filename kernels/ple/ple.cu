#include "device/device.cuh"
#include "device/launch.cuh"
#include "ple/ple.h"

namespace {

enum { GATHER_THREADS = 64, MAX_GATE_THREADS = 1024, CONV_THREADS = 128, CONV_TOKENS = 32, FEW_STATES = 16, BATCH = 4 };

/* The codes s eeee mmm at FP16's sign, lower exponent and upper mantissa bits are the value times 2^-8, exactly. */
__device__ __forceinline__ float e4m3_to_float(uint8_t code) {
    return __half2float(__ushort_as_half((unsigned short)((code & 0x80u) << 8 | (code & 0x7Fu) << 7))) * 256.0f;
}

/* Grid: (heads, tokens), one block a row. The table lies in pinned host memory, so a row's bytes are asked for once and
 * together, and stored when all are there. Any row width. */
__global__ void __launch_bounds__(GATHER_THREADS) ple_gather_kernel(stamp_t stamp, ple_gather_args_t args) {
    next_start();
    previous_wait(stamp);
    int64_t at = (int64_t)blockIdx.y * args.n_heads + blockIdx.x, width = args.table.columns;
    int64_t row = args.rows[at] - args.first_row;
    bool held = row >= 0 && row < args.table.rows, is_f8 = args.table.dtype == DTYPE_F8_E4M3;
    const uint8_t *f8 = (const uint8_t *)args.table.data + row * width;
    const uint16_t *bf16 = (const uint16_t *)args.table.data + row * width;
    __half *e = args.e + at * width;
    for (int64_t first = threadIdx.x; first < width; first += BATCH * GATHER_THREADS) {
        uint16_t codes[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int64_t column = first + i * GATHER_THREADS;
            codes[i] = 0; /* in both types */
            if (held && column < width) codes[i] = is_f8 ? f8[column] : bf16[column];
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int64_t column = first + i * GATHER_THREADS;
            float value = is_f8 ? e4m3_to_float((uint8_t)codes[i]) : __uint_as_float((uint32_t)codes[i] << 16);
            if (column < width) e[column] = __float2half_rn(value * args.table_scale);
        }
    }
}

/* The workspace of ple_mix: the convolution's input, and sigmoid(c) of each stream. */
struct ple_workspace {
    float *normed; /* [n_tokens, hc_count * hidden_size] */
    float *gate;   /* [n_tokens, hc_count] */
};

__device__ __forceinline__ void prefetch(const float *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* Grid: (tokens, streams), one block a stream. As gv is sigmoid(c) * value, its mean square needs value's alone, so one
 * pass gives every sum. Any size. */
__global__ void __launch_bounds__(MAX_GATE_THREADS, 1)
    ple_gate_kernel(stamp_t stamp, ple_mix_args_t args, ple_workspace workspace) {
    __shared__ float scratch[4][WARP];
    next_start();
    int64_t token = blockIdx.x, stream = blockIdx.y, hidden_size = args.hidden_size;
    int64_t at = token * args.hc_count + stream;
    const __half *key = args.projected + token * (args.hc_count + 1) * hidden_size + stream * hidden_size;
    const __half *value = args.projected + (token * (args.hc_count + 1) + args.hc_count) * hidden_size;
    const float *h = args.h + at * hidden_size, *norm_key = args.norm_key + stream * hidden_size;
    const float *norm_query = args.norm_query + stream * hidden_size,
                *norm_conv = args.norm_conv + stream * hidden_size;
    for (int64_t i = threadIdx.x; i < hidden_size; i += blockDim.x)
        prefetch(norm_key + i), prefetch(norm_query + i), prefetch(norm_conv + i);
    previous_wait(stamp);
    float key_sum = 0.0f, h_sum = 0.0f, dot = 0.0f, value_sum = 0.0f;
    for (int64_t first = threadIdx.x; first < hidden_size; first += BATCH * blockDim.x) {
        float k[BATCH], v[BATCH], x[BATCH], key_weight[BATCH], query_weight[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int64_t i = first + j * blockDim.x;
            bool inside = i < hidden_size;
            k[j] = inside ? __half2float(key[i]) : 0.0f;
            v[j] = inside ? __half2float(value[i]) : 0.0f;
            x[j] = inside ? h[i] : 0.0f;
            key_weight[j] = inside ? norm_key[i] : 0.0f;
            query_weight[j] = inside ? norm_query[i] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            key_sum = fmaf(k[j], k[j], key_sum);
            h_sum = fmaf(x[j], x[j], h_sum);
            dot = fmaf(k[j] * (1.0f + key_weight[j]), x[j] * (1.0f + query_weight[j]), dot);
            value_sum = fmaf(v[j], v[j], value_sum);
        }
    }
    key_sum = block_sum(key_sum, scratch[0]);
    h_sum = block_sum(h_sum, scratch[1]);
    dot = block_sum(dot, scratch[2]);
    value_sum = block_sum(value_sum, scratch[3]);
    float size = (float)hidden_size;
    float c = dot * rsqrtf(key_sum / size + args.rms_norm_eps) * rsqrtf(h_sum / size + args.rms_norm_eps) / sqrtf(size);
    c = c == 0.0f ? 0.0f : copysignf(sqrtf(fmaxf(fabsf(c), 1e-6f)), c);
    float gate = sigmoidf(c), scale = gate * rsqrtf(gate * gate * value_sum / size + args.rms_norm_eps);
    if (threadIdx.x == 0) workspace.gate[at] = gate;
    for (int64_t i = threadIdx.x; i < hidden_size; i += blockDim.x)
        workspace.normed[at * hidden_size + i] = __half2float(value[i]) * scale * (1.0f + norm_conv[i]);
}

__device__ __forceinline__ void shift_conv_state(const ple_mix_args_t &args, const float *normed, int64_t channel) {
    int64_t width = args.hc_count * args.hidden_size, n_state = (args.conv_kernel - 1) * args.dilation;
    float *state = args.conv_state + channel;
#pragma unroll 1
    for (int64_t i = 0; i < n_state; i++) {
        int64_t source = i + args.n_tokens;
        state[i * width] = source < n_state ? state[source * width] : normed[(source - n_state) * width + channel];
    }
}

/* One token of one channel, with all loads in flight together, and those of what earlier steps left before the wait;
 * fewer than FEW_STATES states. */
__device__ __forceinline__ void conv_one_token(const ple_mix_args_t &args, const ple_workspace &workspace,
                                               int64_t channel) {
    int64_t width = args.hc_count * args.hidden_size, stream = channel / args.hidden_size;
    int n_state = (int)((args.conv_kernel - 1) * args.dilation), dilation = (int)args.dilation;
    float *state = args.conv_state + channel;
    const float *conv = args.conv + channel * args.conv_kernel;
    float states[FEW_STATES], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < FEW_STATES; i++)
        states[i] = i < n_state ? state[i * width] : 0.0f;
    prefetch(conv);
    previous_wait();
    float last = workspace.normed[channel];
#pragma unroll
    for (int i = 0; i < FEW_STATES; i++)
        if (i < n_state && i % dilation == 0) sum = fmaf(conv[i / dilation], states[i], sum);
    sum = fmaf(conv[args.conv_kernel - 1], last, sum);
    float value = __half2float(args.projected[args.hc_count * args.hidden_size + channel % args.hidden_size]);
    args.h[channel] += workspace.gate[stream] * value + siluf(sum);
#pragma unroll
    for (int i = 0; i + 1 < FEW_STATES; i++)
        if (i < n_state) state[i * width] = i + 1 < n_state ? states[i + 1] : last;
}

/* Grid: (channels / 128, tokens / 32), one thread a channel. With one block a channel the block moves the state on,
 * else ple_conv_state_kernel does when all have read it. Any size. */
__global__ void __launch_bounds__(CONV_THREADS) ple_conv_f32_kernel(ple_mix_args_t args, ple_workspace workspace) {
    next_start();
    int64_t width = args.hc_count * args.hidden_size, channel = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    if (channel >= width) return;
    if (args.n_tokens == 1 && (args.conv_kernel - 1) * args.dilation < FEW_STATES) {
        conv_one_token(args, workspace, channel);
        return;
    }
    previous_wait();
    int64_t stream = channel / args.hidden_size, i = channel % args.hidden_size;
    int64_t first = (int64_t)blockIdx.y * CONV_TOKENS, n_state = (args.conv_kernel - 1) * args.dilation;
    int64_t last = min(first + CONV_TOKENS, args.n_tokens);
#pragma unroll 1
    for (int64_t t = first; t < last; t++) {
        float sum = 0.0f;
#pragma unroll 1
        for (int64_t tap = 0; tap < args.conv_kernel; tap++) {
            int64_t source = t + tap * args.dilation - n_state;
            const float *x =
                source >= 0 ? workspace.normed + source * width : args.conv_state + (source + n_state) * width;
            sum = fmaf(args.conv[channel * args.conv_kernel + tap], x[channel], sum);
        }
        float value = __half2float(args.projected[(t * (args.hc_count + 1) + args.hc_count) * args.hidden_size + i]);
        args.h[t * width + channel] += workspace.gate[t * args.hc_count + stream] * value + siluf(sum);
    }
    if (gridDim.y == 1) shift_conv_state(args, workspace.normed, channel);
}

__global__ void ple_conv_state_kernel(ple_mix_args_t args, ple_workspace workspace) {
    previous_wait();
    next_start();
    int64_t channel = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    if (channel < args.hc_count * args.hidden_size) shift_conv_state(args, workspace.normed, channel);
}

} // namespace

status_t launch_ple_gather(const ple_gather_args_t *args, const device_queue_t *queue) {
    dim3 grid((unsigned int)args->n_heads, (unsigned int)args->n_tokens);
    launch_kernel(queue, ple_gather_kernel, grid, GATHER_THREADS, 0, *args);
    return queue_check_launch("ple_gather");
}

size_t ple_mix_cuda_workspace_bytes(const ple_mix_args_t *args) {
    return (size_t)(args->n_tokens * args->hc_count * (args->hidden_size + 1)) * sizeof(float);
}

status_t launch_ple_mix(const ple_mix_args_t *args, const device_queue_t *queue) {
    int64_t width = args->hc_count * args->hidden_size;
    float *normed = (float *)args->workspace;
    ple_workspace workspace = {normed, normed + args->n_tokens * width};
    dim3 streams((unsigned int)args->n_tokens, (unsigned int)args->hc_count);
    unsigned int gate_threads = args->n_tokens == 1 ? MAX_GATE_THREADS : 256; /* few blocks: many reads in each */
    launch_kernel(queue, ple_gate_kernel, streams, gate_threads, 0, *args, workspace);
    dim3 grid(blocks_for(width, CONV_THREADS), blocks_for(args->n_tokens, CONV_TOKENS));
    launch_kernel(queue, ple_conv_f32_kernel, grid, CONV_THREADS, 0, *args, workspace);
    if (grid.y > 1) launch_kernel(queue, ple_conv_state_kernel, grid.x, CONV_THREADS, 0, *args, workspace);
    return queue_check_launch("ple_mix");
}
