#include "device/device.cuh"
#include "device/route.h"
#include "gdn/gdn_chunks.cuh"
#include "gdn/gdn_m1.h"
#include "linear/linear.h"

namespace {

enum { CONV_THREADS = 128, CONV_TOKENS = 32, STEP_THREADS = 128, NORM_THREADS = 128 };

__host__ __device__ __forceinline__ int64_t n_channels(const gdn_core_args_t &args) {
    return 2 * args.n_key_heads * args.key_dim + args.n_value_heads * args.value_dim;
}

/* The last conv_kernel - 1 inputs of one channel, from the old state followed by the tokens. */
__device__ __forceinline__ void shift_conv_state(const gdn_core_args_t &args, int64_t channel) {
    int64_t width = n_channels(args), n_state = args.conv_kernel - 1;
    __half *state = args.conv_state + channel;
#pragma unroll 1
    for (int64_t i = 0; i < n_state; i++) {
        int64_t source = i + args.n_tokens;
        state[i * width] = source < n_state ? state[source * width]
                                            : args.projected[(source - n_state) * args.projected_stride + channel];
    }
}

/* Grid: (channels / 128, tokens / 32), one thread a channel. convolved = silu(conv(projected)), FP16. With one block a
 * channel the block moves the state on, else gdn_conv_state_kernel does when all have read it. Any size. */
__global__ void __launch_bounds__(CONV_THREADS) gdn_conv_f16_kernel(gdn_core_args_t args, __half *convolved) {
    int64_t channel = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x, width = n_channels(args);
    if (channel >= width) return;
    int64_t first = (int64_t)blockIdx.y * CONV_TOKENS;
    int n = (int)min((int64_t)CONV_TOKENS, args.n_tokens - first), n_taps = (int)args.conv_kernel;
    const float *taps = args.conv + channel * n_taps;
    const __half *state = args.conv_state + channel, *x = args.projected + channel;
    convolved += channel;
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        int64_t source = first + t - (n_taps - 1);
        float sum = 0.0f;
        for (int tap = 0; tap < n_taps; tap++, source++) {
            const __half *at = source >= 0 ? x + source * args.projected_stride : state + (source + n_taps - 1) * width;
            sum = fmaf(taps[tap], __half2float(*at), sum);
        }
        convolved[(first + t) * width] = __float2half_rn(siluf(sum));
    }
    if (gridDim.y == 1) shift_conv_state(args, channel);
}

__global__ void gdn_conv_state_kernel(gdn_core_args_t args) {
    int64_t channel = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    if (channel < n_channels(args)) shift_conv_state(args, channel);
}

/* log(1 + exp(x)) without overflow */
__device__ __forceinline__ float softplusf(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/* Grid: (value heads, value columns / COLUMNS). LANES neighbouring threads own one column of the state, ROWS rows each,
 * in registers over all tokens; columns never meet, so blocks need not. Tokens come in tiles whose normalised q and k
 * stand in shared memory. key_dim <= ROWS * LANES. Moves the state once in and once out. y is FP32, before its norm. */
template <int ROWS, int LANES>
__global__ void __launch_bounds__(STEP_THREADS)
    gdn_step_f32_kernel(gdn_core_args_t args, const __half *convolved, float *y) {
    constexpr int COLUMNS = STEP_THREADS / LANES, KEYS = ROWS * LANES, TILE = KEYS <= 512 ? 8 : 4;
    __shared__ float4 q_tile[TILE][KEYS / 4], k_tile[TILE][KEYS / 4];
    __shared__ float decay_tile[TILE], beta_tile[TILE];

    int64_t head = blockIdx.x, key_head = head / (args.n_value_heads / args.n_key_heads), width = n_channels(args);
    int64_t column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    bool inside = column < args.value_dim; /* all threads load tiles and take part in the shuffles */
    float *state = args.state + head * args.key_dim * args.value_dim + (inside ? column : 0);
    const __half *q = convolved + key_head * args.key_dim, *k = q + args.n_key_heads * args.key_dim;
    const __half *v = convolved + 2 * args.n_key_heads * args.key_dim + head * args.value_dim + (inside ? column : 0);
    const __half *b = args.projected + width + args.n_value_heads * args.value_dim + head, *a = b + args.n_value_heads;
    float rate = -expf(args.A_log[head]), bias = args.dt_bias[head], q_scale = rsqrtf((float)args.key_dim);
    y += head * args.value_dim + column;

    float s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int64_t row = (i / 4 * LANES + lane) * 4 + i % 4;
        s[i] = row < args.key_dim ? state[row * args.value_dim] : 0.0f;
    }

    for (int64_t first = 0; first < args.n_tokens; first += TILE) {
        int n = (int)min((int64_t)TILE, args.n_tokens - first);
        __syncthreads(); /* the last tile has been read */
        for (int t = threadIdx.x / WARP; t < n; t += STEP_THREADS / WARP) {
            float *q_row = (float *)q_tile[t], *k_row = (float *)k_tile[t], q_sum = 0.0f, k_sum = 0.0f;
            float q_values[KEYS < WARP ? 1 : KEYS / WARP], k_values[KEYS < WARP ? 1 : KEYS / WARP];
#pragma unroll
            for (int i = 0; i < (KEYS < WARP ? 1 : KEYS / WARP); i++) {
                int64_t row = i * WARP + threadIdx.x % WARP;
                bool there = row < args.key_dim;
                q_values[i] = there ? __half2float(q[(first + t) * width + row]) : 0.0f;
                k_values[i] = there ? __half2float(k[(first + t) * width + row]) : 0.0f;
                q_sum = fmaf(q_values[i], q_values[i], q_sum);
                k_sum = fmaf(k_values[i], k_values[i], k_sum);
            }
            float q_norm = rsqrtf(lanes_sum<WARP>(q_sum) + 1e-6f) * q_scale,
                  k_norm = rsqrtf(lanes_sum<WARP>(k_sum) + 1e-6f);
#pragma unroll
            for (int i = 0; i < (KEYS < WARP ? 1 : KEYS / WARP); i++) {
                int row = i * WARP + threadIdx.x % WARP;
                if (row < KEYS) {
                    q_row[row] = q_values[i] * q_norm;
                    k_row[row] = k_values[i] * k_norm;
                }
            }
            if (threadIdx.x % WARP == 0) {
                int64_t at = (first + t) * args.projected_stride;
                decay_tile[t] = expf(rate * softplusf(__half2float(a[at]) + bias));
                beta_tile[t] = sigmoidf(__half2float(b[at]));
            }
        }
        __syncthreads();
        for (int t = 0; t < n; t++) {
            float decay = decay_tile[t], kv = 0.0f, out = 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                float4 key = k_tile[t][i / 4 * LANES + lane];
                s[i] *= decay, s[i + 1] *= decay, s[i + 2] *= decay, s[i + 3] *= decay;
                kv = fmaf(s[i], key.x, fmaf(s[i + 1], key.y, fmaf(s[i + 2], key.z, fmaf(s[i + 3], key.w, kv))));
            }
            float delta = (__half2float(v[(first + t) * width]) - lanes_sum<LANES>(kv)) * beta_tile[t];
#pragma unroll
            for (int i = 0; i < ROWS; i += 4) {
                float4 key = k_tile[t][i / 4 * LANES + lane], query = q_tile[t][i / 4 * LANES + lane];
                s[i] = fmaf(key.x, delta, s[i]), s[i + 1] = fmaf(key.y, delta, s[i + 1]);
                s[i + 2] = fmaf(key.z, delta, s[i + 2]), s[i + 3] = fmaf(key.w, delta, s[i + 3]);
                out =
                    fmaf(s[i], query.x, fmaf(s[i + 1], query.y, fmaf(s[i + 2], query.z, fmaf(s[i + 3], query.w, out))));
            }
            out = lanes_sum<LANES>(out);
            if (inside && lane == 0) y[(first + t) * args.n_value_heads * args.value_dim] = out;
        }
    }

#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int64_t row = (i / 4 * LANES + lane) * 4 + i % 4;
        if (inside && row < args.key_dim) state[row * args.value_dim] = s[i];
    }
}

/* One warp a (token, value head): out = rmsnorm(y) * norm * gate(z), FP16. Any size. */
__global__ void __launch_bounds__(NORM_THREADS) gdn_norm_f16_kernel(gdn_core_args_t args, const float *y) {
    int64_t index = ((int64_t)blockIdx.x * NORM_THREADS + threadIdx.x) / WARP;
    if (index >= args.n_tokens * args.n_value_heads) return;
    int64_t token = index / args.n_value_heads, head = index % args.n_value_heads;
    y += index * args.value_dim;
    const __half *z = args.projected + token * args.projected_stride + n_channels(args) + head * args.value_dim;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % WARP; i < args.value_dim; i += WARP)
        sum = fmaf(y[i], y[i], sum);
    float scale = rsqrtf(lanes_sum<WARP>(sum) / (float)args.value_dim + args.rms_norm_eps);
    for (int64_t i = threadIdx.x % WARP; i < args.value_dim; i += WARP) {
        float gate = __half2float(z[i]);
        gate = args.silu_gate ? siluf(gate) : sigmoidf(gate);
        args.y[index * args.value_dim + i] = __float2half_rn(y[i] * scale * args.norm[i] * gate);
    }
}

template <int ROWS, int LANES>
void launch_step(const gdn_core_args_t *args, const __half *convolved, float *y, cudaStream_t stream) {
    dim3 grid((unsigned int)args->n_value_heads, blocks_for(args->value_dim, STEP_THREADS / LANES));
    gdn_step_f32_kernel<ROWS, LANES><<<grid, STEP_THREADS, 0, stream>>>(*args, convolved, y);
}

} // namespace

size_t gdn_core_cuda_workspace_bytes(const gdn_core_args_t *args) {
    int64_t y_values = args->n_tokens * args->n_value_heads * args->value_dim;
    size_t general = (size_t)y_values * sizeof(float) + (size_t)(args->n_tokens * n_channels(*args)) * sizeof(__half);
    size_t chunks = gdn_chunk_workspace_bytes(args);
    return general > chunks ? general : chunks;
}

status_t launch_gdn_core(const gdn_core_args_t *args, const device_queue_t *queue) {
    if (args->n_tokens == 1 && route_take(queue, ROUTE_GDN, gdn_m1_refusal(args))) return launch_gdn_m1(args, queue);
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS && route_take(queue, ROUTE_GDN_CHUNK, gdn_chunk_refusal(args, queue)))
        return launch_gdn_chunk(args, queue);
    int64_t width = n_channels(*args), n_tokens = args->n_tokens, key_dim = args->key_dim;
    float *y = (float *)args->workspace;
    __half *convolved = (__half *)(y + n_tokens * args->n_value_heads * args->value_dim);

    dim3 grid(blocks_for(width, CONV_THREADS), blocks_for(n_tokens, CONV_TOKENS));
    queue_stamp(queue);
    gdn_conv_f16_kernel<<<grid, CONV_THREADS, 0, queue->stream>>>(*args, convolved);
    if (grid.y > 1) gdn_conv_state_kernel<<<grid.x, CONV_THREADS, 0, queue->stream>>>(*args);

    if (key_dim <= 32)
        launch_step<8, 4>(args, convolved, y, queue->stream);
    else if (key_dim <= 64)
        launch_step<16, 4>(args, convolved, y, queue->stream);
    else if (key_dim <= 128)
        launch_step<32, 4>(args, convolved, y, queue->stream);
    else if (key_dim <= 256)
        launch_step<32, 8>(args, convolved, y, queue->stream);
    else if (key_dim <= 1024)
        launch_step<32, 32>(args, convolved, y, queue->stream);
    else
        return status_fail(STATUS_USAGE, "linear_key_head_dim %lld: the CUDA backend computes up to 1024",
                           (long long)key_dim);
    unsigned int n_blocks = blocks_for(n_tokens * args->n_value_heads, NORM_THREADS / WARP);
    gdn_norm_f16_kernel<<<n_blocks, NORM_THREADS, 0, queue->stream>>>(*args, y);
    return queue_check_launch("gdn_core");
}
