#include "experts/experts.h"
#include "experts/experts_grouped.cuh"
#include "experts/nvfp4.cuh"
#include "linear/linear.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP };

/* 16 activations as FP32. */
__device__ __forceinline__ void load16(const __half *x, float values[16]) {
    unpack8(__ldg((const uint4 *)x), values);
    unpack8(__ldg((const uint4 *)x + 1), values + 8);
}

/* Dot product of block `block` of a weight row with x, without scale_2 (NVFP4) or whole (FP16). */
template <bool NVFP4>
__device__ __forceinline__ float block_dot(const void *row, const uint8_t *scales, int64_t block, const float x[16]) {
    if (NVFP4) {
        uint2 codes = __ldg((const uint2 *)row + block);
        return e4m3_to_scaled_float(__ldg(scales + block)) * nvfp4_block_dot(codes, x);
    }
    float weight[16], sum = 0.0f;
    load16((const __half *)row + block * NVFP4_BLOCK_VALUES, weight);
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum = fmaf(weight[i], x[i], sum);
    return sum;
}

/* Grid: (intermediate / 8, tokens * top_k), one warp a row: act = silu(gate row . u) * (up row . u), FP16
 * [tokens * top_k, intermediate]. Reads the two rows once, 8 bytes of codes a lane (32 of FP16). hidden_size a multiple
 * of 16. */
template <bool NVFP4>
__global__ void __launch_bounds__(THREADS) experts_gate_up_kernel(experts_args_t args, __half *act) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, pair = blockIdx.y;
    if (row >= args.intermediate) return;
    int64_t expert = args.experts[pair], n_blocks = args.hidden_size / NVFP4_BLOCK_VALUES;
    int64_t gate_row = expert * 2 * args.intermediate + row, up_row = gate_row + args.intermediate;
    const __half *u = args.u + pair / args.top_k * args.hidden_size;
    const expert_weights_t &weights = args.expert_weights;
    int64_t row_bytes = NVFP4 ? args.hidden_size / 2 : args.hidden_size * 2;
    const char *data = NVFP4 ? (const char *)weights.gate_up_codes : (const char *)weights.gate_up_f16;
    const char *gate_data = data + gate_row * row_bytes, *up_data = data + up_row * row_bytes;
    const uint8_t *gate_scales = weights.gate_up_scales + gate_row * n_blocks;
    const uint8_t *up_scales = weights.gate_up_scales + up_row * n_blocks;

    float gate = 0.0f, up = 0.0f;
#pragma unroll 5
    for (int64_t block = threadIdx.x % WARP; block < n_blocks; block += WARP) {
        float x[16];
        load16(u + block * NVFP4_BLOCK_VALUES, x);
        gate += block_dot<NVFP4>(gate_data, gate_scales, block, x);
        up += block_dot<NVFP4>(up_data, up_scales, block, x);
    }
    gate = lanes_sum<WARP>(gate);
    up = lanes_sum<WARP>(up);
    if (threadIdx.x % WARP != 0) return;
    if (NVFP4) {
        gate *= weights.gate_up_scale_2[2 * expert] * NVFP4_FACTOR;
        up *= weights.gate_up_scale_2[2 * expert + 1] * NVFP4_FACTOR;
    }
    act[pair * args.intermediate + row] = __float2half_rn(siluf(gate) * up);
}

/* Grid: (hidden_size / 8, tokens), one warp an output: the sum over the token's experts, each lane taking every 32nd
 * block of their rows laid end to end. Reads the rows once. intermediate a multiple of 16. */
template <bool NVFP4>
__global__ void __launch_bounds__(THREADS) experts_down_kernel(experts_args_t args, const __half *act) {
    extern __shared__ float factors[]; /* [top_k], behind them the experts' first rows as int32 [top_k] */
    int32_t *first_rows = (int32_t *)(factors + args.top_k);
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, token = blockIdx.y;
    const expert_weights_t &weights = args.expert_weights;
    for (int k = threadIdx.x; k < args.top_k; k += THREADS) {
        int32_t expert = args.experts[token * args.top_k + k];
        float scale_2 = NVFP4 ? weights.down_scale_2[expert] * NVFP4_FACTOR : 1.0f;
        factors[k] = args.weights[token * args.top_k + k] * scale_2;
        first_rows[k] = (int32_t)(expert * args.hidden_size);
    }
    __syncthreads();
    if (row >= args.hidden_size) return;
    int n_blocks = (int)(args.intermediate / NVFP4_BLOCK_VALUES), n_all = n_blocks * (int)args.top_k;
    int64_t row_bytes = NVFP4 ? args.intermediate / 2 : args.intermediate * 2;
    const char *data = NVFP4 ? (const char *)weights.down_codes : (const char *)weights.down_f16;
    act += token * args.top_k * args.intermediate;

    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x % WARP; i < n_all; i += WARP) {
        int k = i / n_blocks, block = i - k * n_blocks;
        int64_t weight_row = first_rows[k] + row;
        float x[16];
        load16(act + (int64_t)i * NVFP4_BLOCK_VALUES, x);
        float dot =
            block_dot<NVFP4>(data + weight_row * row_bytes, weights.down_scales + weight_row * n_blocks, block, x);
        sum = fmaf(factors[k], dot, sum);
    }
    sum = lanes_sum<WARP>(sum);
    if (threadIdx.x % WARP == 0) args.o[token * args.hidden_size + row] = __float2half_rn(sum);
}

template <bool NVFP4> void launch_pairs(const experts_args_t *args, __half *act, cudaStream_t stream) {
    dim3 up(blocks_for(args->intermediate, WARPS), (unsigned int)(args->n_tokens * args->top_k));
    experts_gate_up_kernel<NVFP4><<<up, THREADS, 0, stream>>>(*args, act);
    dim3 down(blocks_for(args->hidden_size, WARPS), (unsigned int)args->n_tokens);
    experts_down_kernel<NVFP4><<<down, THREADS, (size_t)args->top_k * 8, stream>>>(*args, act);
}

} // namespace

size_t experts_cuda_workspace_bytes(const experts_args_t *args) {
    int64_t n_few = args->n_tokens < LINEAR_MAX_GEMV_TOKENS ? args->n_tokens : (int64_t)LINEAR_MAX_GEMV_TOKENS;
    size_t few = (size_t)(n_few * args->top_k * args->intermediate) * sizeof(__half);
    size_t many = args->n_tokens > LINEAR_MAX_GEMV_TOKENS ? experts_grouped_workspace_bytes(args) : 0;
    return few > many ? few : many;
}

status_t launch_experts(const experts_args_t *args, const device_queue_t *queue) {
    if (args->hidden_size % NVFP4_BLOCK_VALUES || args->intermediate % NVFP4_BLOCK_VALUES)
        return status_fail(STATUS_USAGE, "experts of %lld by %lld values: the CUDA backend computes multiples of 16",
                           (long long)args->intermediate, (long long)args->hidden_size);
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS) return launch_experts_grouped(args, queue);
    __half *act = (__half *)args->workspace;
    queue_stamp(queue);
    if (args->expert_weights.gate_up_codes)
        launch_pairs<true>(args, act, queue->stream);
    else
        launch_pairs<false>(args, act, queue->stream);
    return queue_check_launch("experts");
}
