#include "device/device.cuh"
#include "gr/gr_many.cuh"

namespace {

enum { STREAMS = 4, NORM_THREADS = STREAMS * WARP, THREADS = 256, MAX_HIDDEN_SIZE = 2560 };

__device__ __forceinline__ void unpack4(uint2 word, float values[4]) {
    float2 low = __half22float2(*(__half2 *)&word.x), high = __half22float2(*(__half2 *)&word.y);
    values[0] = low.x, values[1] = low.y, values[2] = high.x, values[3] = high.y;
}

__device__ __forceinline__ uint32_t pack2(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

__device__ __forceinline__ float quick_sigmoidf(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/* Grid: tokens; a warp a stream, its row in registers: h += inject_before * o where that is pending, z = n(h, hc_norm),
 * FP16, and the stream's part of inject = 2 sigmoid(block_inject z / 4). Moves h and z once; the 80 KB of block_inject
 * come out of the L1. hidden_size a multiple of 4 up to 128 * VECTORS. */
template <int VECTORS>
__global__ void __launch_bounds__(NORM_THREADS) gr_norm_many_kernel(gr_mix_args_t args, __half *z) {
    __shared__ float sums[STREAMS][STREAMS]; /* [stream, row of block_inject] */
    int stream = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_vectors = (int)args.hidden_size / 4;
    int64_t row = (int64_t)blockIdx.x * STREAMS + stream;
    float4 *h = (float4 *)(args.h + row * args.hidden_size), values[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = i * WARP + lane;
        values[i] = at < n_vectors ? h[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (args.inject_before) {
        const uint2 *o = (const uint2 *)(args.o + (int64_t)blockIdx.x * args.hidden_size);
        float factor = args.inject_before[row];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int at = i * WARP + lane;
            if (at >= n_vectors) continue;
            float added[4];
            unpack4(__ldg(o + at), added);
            values[i].x = fmaf(factor, added[0], values[i].x);
            values[i].y = fmaf(factor, added[1], values[i].y);
            values[i].z = fmaf(factor, added[2], values[i].z);
            values[i].w = fmaf(factor, added[3], values[i].w);
            h[at] = values[i];
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        sum = fmaf(values[i].x, values[i].x, sum);
        sum = fmaf(values[i].y, values[i].y, sum);
        sum = fmaf(values[i].z, values[i].z, sum);
        sum = fmaf(values[i].w, values[i].w, sum);
    }
    float scale = rsqrtf(lanes_sum<WARP>(sum) / (float)args.hidden_size + args.rms_norm_eps);
    const float4 *norm = (const float4 *)(args.hc_norm + stream * args.hidden_size);
    uint2 *out = (uint2 *)(z + row * args.hidden_size);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        int at = i * WARP + lane;
        if (at >= n_vectors) continue;
        float4 g = __ldg(norm + at);
        values[i].x *= scale * (1.0f + g.x), values[i].y *= scale * (1.0f + g.y);
        values[i].z *= scale * (1.0f + g.z), values[i].w *= scale * (1.0f + g.w);
        out[at] = make_uint2(pack2(values[i].x, values[i].y), pack2(values[i].z, values[i].w));
    }
    if (!args.inject) return;
    const __half *weights = (const __half *)args.block_inject.data + stream * args.hidden_size;
#pragma unroll 1
    for (int r = 0; r < STREAMS; r++) {
        const uint2 *weight = (const uint2 *)(weights + r * STREAMS * args.hidden_size);
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int at = i * WARP + lane;
            if (at >= n_vectors) continue;
            float w[4];
            unpack4(__ldg(weight + at), w);
            dot = fmaf(w[0], values[i].x, dot);
            dot = fmaf(w[1], values[i].y, dot);
            dot = fmaf(w[2], values[i].z, dot);
            dot = fmaf(w[3], values[i].w, dot);
        }
        dot = lanes_sum<WARP>(dot);
        if (lane == 0) sums[stream][r] = dot;
    }
    __syncthreads();
    if (threadIdx.x >= STREAMS) return;
    float all = 0.0f;
#pragma unroll
    for (int s = 0; s < STREAMS; s++)
        all += sums[s][threadIdx.x];
    args.inject[(int64_t)blockIdx.x * STREAMS + threadIdx.x] = 2.0f * sigmoidf(all / (float)STREAMS);
}

/* Behind the product with down, four values a thread: a = silu(down / 4), FP16. */
__global__ void __launch_bounds__(THREADS) gr_silu_many_kernel(int64_t n, const float4 *down, uint2 *a) {
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= n) return;
    float4 x = down[index];
    a[index] = make_uint2(pack2(siluf(x.x / STREAMS), siluf(x.y / STREAMS)),
                          pack2(siluf(x.z / STREAMS), siluf(x.w / STREAMS)));
}

/* Behind the product with up, eight outputs a thread: u = mean of sigmoid(gate) * z. */
__global__ void __launch_bounds__(THREADS)
    gr_mean_many_kernel(gr_mix_args_t args, const __half *z, const __half *gate) {
    int per_token = (int)args.hidden_size / 8;
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = index / per_token;
    if (token >= args.n_tokens) return;
    int64_t at = token * STREAMS * args.hidden_size + index % per_token * 8;
    float u[8] = {};
#pragma unroll
    for (int stream = 0; stream < STREAMS; stream++, at += args.hidden_size) {
        float gates[8], values[8];
        unpack8(__ldcs((const uint4 *)(gate + at)), gates);
        unpack8(__ldcs((const uint4 *)(z + at)), values);
#pragma unroll
        for (int i = 0; i < 8; i++)
            u[i] = fmaf(quick_sigmoidf(gates[i]), values[i], u[i]);
    }
    uint4 word = make_uint4(pack2(u[0] / STREAMS, u[1] / STREAMS), pack2(u[2] / STREAMS, u[3] / STREAMS),
                            pack2(u[4] / STREAMS, u[5] / STREAMS), pack2(u[6] / STREAMS, u[7] / STREAMS));
    *(uint4 *)(args.u + index * 8) = word;
}

bool is_aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

} // namespace

const char *gr_many_refusal(const gr_mix_args_t *args) {
    if (args->hc_count != STREAMS) return "hc_count is not 4";
    if (args->hidden_size % 8 || args->hidden_size > MAX_HIDDEN_SIZE)
        return "hidden_size is not a multiple of 8 up to 2560";
    if (args->down.rows % 4) return "hc_lowrank is not a multiple of 4";
    bool aligned = is_aligned(args->h) && is_aligned(args->hc_norm) && is_aligned(args->u) &&
                   is_aligned(args->workspace) && (!args->inject_before || is_aligned(args->o)) &&
                   (!args->inject || is_aligned(args->block_inject.data));
    return aligned ? NULL : "h, hc_norm, block_inject, u or o is not aligned to 16 bytes";
}

size_t gr_many_workspace_bytes(const gr_mix_args_t *args) {
    int64_t per_token =
        (2 * args->up.rows + args->down.rows) * (int64_t)sizeof(__half) + args->down.rows * (int64_t)sizeof(float);
    return (size_t)(args->n_tokens * per_token);
}

status_t launch_gr_many(const gr_mix_args_t *args, const device_queue_t *queue) {
    int64_t n_tokens = args->n_tokens, n_low = n_tokens * args->down.rows;
    __half *z = (__half *)args->workspace, *gate = z + n_tokens * args->up.rows;
    float *down = (float *)(gate + n_tokens * args->up.rows);
    __half *a = (__half *)(down + n_low);
    queue_stamp(queue);
    if (args->hidden_size <= 256)
        gr_norm_many_kernel<2><<<(unsigned int)n_tokens, NORM_THREADS, 0, queue->stream>>>(*args, z);
    else
        gr_norm_many_kernel<MAX_HIDDEN_SIZE / 128>
            <<<(unsigned int)n_tokens, NORM_THREADS, 0, queue->stream>>>(*args, z);
    TRY(queue_check_launch("gr_mix"));
    gemm_args_t gemm = {};
    gemm.n_tokens = n_tokens;
    gemm.weight = args->down;
    gemm.x = z;
    gemm.y = down;
    gemm.y_is_f32 = true;
    TRY(queue->gemm(queue, &gemm));
    gr_silu_many_kernel<<<blocks_for(n_low / 4, THREADS), THREADS, 0, queue->stream>>>(n_low / 4, (const float4 *)down,
                                                                                       (uint2 *)a);
    gemm = {};
    gemm.n_tokens = n_tokens;
    gemm.weight = args->up;
    gemm.x = a;
    gemm.y = gate;
    TRY(queue->gemm(queue, &gemm));
    unsigned int n_blocks = blocks_for(n_tokens * (args->hidden_size / 8), THREADS);
    gr_mean_many_kernel<<<n_blocks, THREADS, 0, queue->stream>>>(*args, z, gate);
    return queue_check_launch("gr_mix");
}
