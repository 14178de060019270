#include "device/launch.cuh"
#include "device/route.h"
#include "gr/gr.h"
#include "gr/gr_m1.h"
#include "gr/gr_many.cuh"
#include "linear/dense8.h"
#include "linear/gemv.cuh"
#include "linear/linear.h"

namespace {

enum { FEW_NORM_THREADS = 1024, MANY_NORM_THREADS = 256, UP_THREADS = 64, UP_LANES = 8 };

/* Grid: (tokens, streams), one block a row of hidden_size. z = n(h, hc_norm), FP16. Moves 4 + 2 bytes a value; any
 * size. */
__global__ void __launch_bounds__(FEW_NORM_THREADS) gr_norm_f32_kernel(gr_mix_args_t args, __half *z) {
    __shared__ float scratch[WARP];
    int64_t row = (int64_t)blockIdx.x * args.hc_count + blockIdx.y;
    const float *h = args.h + row * args.hidden_size, *norm = args.hc_norm + blockIdx.y * args.hidden_size;
    z += row * args.hidden_size;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < args.hidden_size; i += blockDim.x)
        sum = fmaf(h[i], h[i], sum);
    sum = block_sum(sum, scratch);
    float scale = rsqrtf(sum / (float)args.hidden_size + args.rms_norm_eps);
    for (int64_t i = threadIdx.x; i < args.hidden_size; i += blockDim.x)
        z[i] = __float2half_rn(h[i] * scale * (1.0f + norm[i]));
}

/* Rows of down give a = silu(sum / S), the rows of block_inject that may follow them inject = 2 sigmoid(sum / S). */
struct down_epilogue {
    __half *a;
    float *inject;
    int64_t lowrank, hc_count, first_row;
    __device__ void operator()(int64_t token, int64_t row, const float *sum) const {
        float value = sum[0] / (float)hc_count;
        row += first_row;
        if (row < lowrank)
            a[token * lowrank + row] = __float2half_rn(siluf(value));
        else
            inject[token * hc_count + row - lowrank] = 2.0f * sigmoidf(value);
    }
};

/* Grid: (hidden_size / 8, tokens). Eight lanes an output: the dot products of its row of up for each stream with a,
 * their sigmoids, the mean of gate * z. Streams go in groups of four, whose loads are in flight together. Reads up
 * once; 16 bytes a lane with VECTOR (hc_lowrank a multiple of 8). */
template <bool VECTOR>
__global__ void __launch_bounds__(UP_THREADS) gr_up_f16_kernel(gr_mix_args_t args, const __half *z, const __half *a) {
    constexpr int GROUP = 4;
    int64_t i = (int64_t)blockIdx.x * (UP_THREADS / UP_LANES) + threadIdx.x / UP_LANES;
    int64_t token = blockIdx.y, hidden_size = args.hidden_size;
    int lowrank = (int)args.up.columns, n_streams = (int)args.hc_count, lane = threadIdx.x % UP_LANES;
    bool inside = i < hidden_size; /* all lanes take part in the shuffles */
    const __half *up = (const __half *)args.up.data + (inside ? i : 0) * lowrank;
    int64_t stream_step = hidden_size * lowrank;
    a += token * lowrank;
    z += token * n_streams * hidden_size + (inside ? i : 0);
    float u = 0.0f;
    for (int first = 0; first < n_streams; first += GROUP) {
        const __half *rows[GROUP];
        float sums[GROUP], streams[GROUP];
#pragma unroll
        for (int s = 0; s < GROUP; s++) { /* a stream past the end repeats the last one and is not counted */
            int stream = min(first + s, n_streams - 1);
            rows[s] = up + stream * stream_step;
            streams[s] = __half2float(z[stream * hidden_size]);
            sums[s] = 0.0f;
        }
        if (VECTOR) {
#pragma unroll 5
            for (int j = lane * 8; j < lowrank; j += UP_LANES * 8) {
                float value[8];
                unpack8(__ldg((const uint4 *)(a + j)), value);
#pragma unroll
                for (int s = 0; s < GROUP; s++) {
                    float weight[8];
                    unpack8(__ldg((const uint4 *)(rows[s] + j)), weight);
#pragma unroll
                    for (int k = 0; k < 8; k++)
                        sums[s] = fmaf(weight[k], value[k], sums[s]);
                }
            }
        } else {
            for (int j = lane; j < lowrank; j += UP_LANES) {
#pragma unroll
                for (int s = 0; s < GROUP; s++)
                    sums[s] = fmaf(__half2float(rows[s][j]), __half2float(a[j]), sums[s]);
            }
        }
#pragma unroll
        for (int s = 0; s < GROUP; s++) {
            float gate = sigmoidf(lanes_sum<UP_LANES>(sums[s]));
            if (first + s < n_streams) u = fmaf(gate, streams[s], u);
        }
    }
    if (inside && lane == 0) args.u[token * hidden_size + i] = __float2half_rn(u / (float)n_streams);
}

/* Behind the GEMM of down and of block_inject, one thread a value. */
__global__ void gr_down_epilogue_kernel(int64_t n_tokens, const __half *down, down_epilogue epilogue) {
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t width = epilogue.lowrank + (epilogue.inject ? epilogue.hc_count : 0);
    if (index >= n_tokens * width) return;
    int64_t token = index / width, row = index % width;
    float sum = row < epilogue.lowrank ? __half2float(down[token * epilogue.lowrank + row])
                                       : epilogue.inject[token * epilogue.hc_count + row - epilogue.lowrank];
    epilogue(token, row, &sum);
}

/* Behind the GEMM of up, one thread an output. */
__global__ void gr_mean_f16_kernel(gr_mix_args_t args, const __half *z, const __half *gate) {
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.n_tokens * args.hidden_size) return;
    int64_t token = index / args.hidden_size, i = index % args.hidden_size;
    float u = 0.0f;
    for (int64_t stream = 0; stream < args.hc_count; stream++) {
        int64_t at = (token * args.hc_count + stream) * args.hidden_size + i;
        u = fmaf(sigmoidf(__half2float(gate[at])), __half2float(z[at]), u);
    }
    args.u[index] = __float2half_rn(u / (float)args.hc_count);
}

/* One thread an o; h is read and written once for each stream. Any size. */
__global__ void gr_inject_f32_kernel(stamp_t stamp, gr_inject_args_t args) {
    next_start();
    previous_wait(stamp);
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.n_tokens * args.hidden_size) return;
    int64_t token = index / args.hidden_size, i = index % args.hidden_size;
    float o = __half2float(args.o[index]);
    float *h = args.h + token * args.hc_count * args.hidden_size + i;
    for (int64_t stream = 0; stream < args.hc_count; stream++)
        h[stream * args.hidden_size] =
            fmaf(args.inject[token * args.hc_count + stream], o, h[stream * args.hidden_size]);
}

status_t mix_many(const gr_mix_args_t *args, const device_queue_t *queue, __half *z, __half *a,
                  down_epilogue epilogue) {
    int64_t n_tokens = args->n_tokens;
    __half *down = a + n_tokens * args->down.rows, *gate = down + n_tokens * args->down.rows;
    gemm_args_t gemm = {};
    gemm.n_tokens = n_tokens;
    gemm.weight = args->down;
    gemm.x = z;
    gemm.y = down;
    TRY(queue->gemm(queue, &gemm));
    if (args->inject) {
        gemm.weight = args->block_inject;
        gemm.y = args->inject;
        gemm.y_is_f32 = true;
        TRY(queue->gemm(queue, &gemm));
    }
    int64_t width = args->down.rows + args->hc_count;
    gr_down_epilogue_kernel<<<blocks_for(n_tokens * width, 256), 256, 0, queue->stream>>>(n_tokens, down, epilogue);
    TRY(queue_check_launch("gr_mix"));
    gemm = {};
    gemm.n_tokens = n_tokens;
    gemm.weight = args->up;
    gemm.x = a;
    gemm.y = gate;
    TRY(queue->gemm(queue, &gemm));
    gr_mean_f16_kernel<<<blocks_for(n_tokens * args->hidden_size, 256), 256, 0, queue->stream>>>(*args, z, gate);
    return queue_check_launch("gr_mix");
}

} // namespace

status_t launch_gr_inject(const gr_inject_args_t *args, const device_queue_t *queue) {
    launch_kernel(queue, gr_inject_f32_kernel, blocks_for(args->n_tokens * args->hidden_size, 256), 256, 0, *args);
    return queue_check_launch("gr_inject");
}

size_t gr_mix_cuda_workspace_bytes(const gr_mix_args_t *args) {
    /* z and a; behind a GEMM down and gate as well */
    size_t general = (size_t)(args->n_tokens * 2 * (args->up.rows + args->down.rows)) * sizeof(__half);
    size_t many = gr_many_workspace_bytes(args);
    return general > many ? general : many;
}

status_t launch_gr_mix(const gr_mix_args_t *args, const device_queue_t *queue) {
    int64_t n_tokens = args->n_tokens, width = args->up.rows, lowrank = args->down.rows;
    if (n_tokens == 1 && route_take(queue, ROUTE_GR, gr_m1_refusal(args))) return launch_gr_mix_m1(args, queue);
    if (n_tokens > LINEAR_MAX_GEMV_TOKENS && route_take(queue, ROUTE_GR_MANY, gr_many_refusal(args)))
        return launch_gr_many(args, queue);
    __half *z = (__half *)args->workspace, *a = z + n_tokens * width;
    down_epilogue epilogue = {a, args->inject, lowrank, args->hc_count, 0};
    if (args->inject_before) {
        gr_inject_args_t inject = {n_tokens, args->hc_count, args->hidden_size, args->inject_before, args->o, args->h};
        TRY(launch_gr_inject(&inject, queue));
    }
    queue_stamp(queue);
    unsigned int threads = n_tokens > LINEAR_MAX_GEMV_TOKENS ? MANY_NORM_THREADS : FEW_NORM_THREADS;
    gr_norm_f32_kernel<<<dim3((unsigned int)n_tokens, (unsigned int)args->hc_count), threads, 0, queue->stream>>>(*args,
                                                                                                                  z);
    TRY(queue_check_launch("gr_mix"));
    if (n_tokens > LINEAR_MAX_GEMV_TOKENS || dense8_is_format(args->down.dtype))
        return mix_many(args, queue, z, a, epilogue);

    gemv_t gemv = {n_tokens, lowrank, width, 0, (const __half *)args->down.data, z};
    launch_gemv<1>(gemv, epilogue, queue->stream);
    if (args->inject) {
        gemv.rows = args->hc_count;
        gemv.w = (const __half *)args->block_inject.data;
        epilogue.first_row = lowrank;
        launch_gemv<1>(gemv, epilogue, queue->stream);
    }
    dim3 grid(blocks_for(args->hidden_size, UP_THREADS / UP_LANES), (unsigned int)n_tokens);
    if (lowrank % 8 == 0 && (uintptr_t)args->up.data % 16 == 0 && (uintptr_t)a % 16 == 0)
        gr_up_f16_kernel<true><<<grid, UP_THREADS, 0, queue->stream>>>(*args, z, a);
    else
        gr_up_f16_kernel<false><<<grid, UP_THREADS, 0, queue->stream>>>(*args, z, a);
    return queue_check_launch("gr_mix");
}
