#include <mma.h>

#include "device/route.h"
#include "experts/experts_grouped.cuh"
#include "experts/nvfp4.cuh"

namespace {

enum {
    THREADS = 256,
    PLAN_THREADS = 1024,
    TILE_PAIRS = EXPERT_TILE_PAIRS,
    TILE_ROWS = 128, /* weight rows of a block: as many outputs of down, half as many of gate and as many of up */
    TILE_K = 64,
    STRIDE = TILE_K + 8,       /* of a row in shared memory, so that rows start in different banks */
    SUM_STRIDE = TILE_ROWS + 4 /* the same for the sums */
};

int64_t max_tiles(const experts_args_t *args) {
    int64_t n_pairs = args->n_tokens * args->top_k;
    return n_pairs / TILE_PAIRS + (n_pairs < args->n_experts ? n_pairs : args->n_experts);
}

size_t align(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t lay_out(const experts_args_t *args, expert_plan *plan) {
    size_t n_pairs = (size_t)(args->n_tokens * args->top_k), used = 256;
    char *base = (char *)args->workspace;
    plan->max_tiles = (unsigned int)max_tiles(args);
    plan->n_tiles = (int32_t *)base;
    plan->pairs = (int32_t *)(base + used);
    used += align(n_pairs * sizeof(int32_t));
    plan->places = (int32_t *)(base + used);
    used += align(n_pairs * sizeof(int32_t));
    plan->tiles = (expert_tile *)(base + used);
    used += align((size_t)max_tiles(args) * sizeof(expert_tile));
    plan->act = (__half *)(base + used);
    used += align(n_pairs * (size_t)args->intermediate * sizeof(__half));
    plan->out = (__half *)(base + used);
    return used + n_pairs * (size_t)args->hidden_size * sizeof(__half);
}

/* Sum of the values of the threads before this one, and of all in `total`. `scratch` holds a value a warp and is free
 * again on return. */
__device__ __forceinline__ int2 scan_before(int2 value, int2 *scratch, int2 *total) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int2 sum = value;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        int x = __shfl_up_sync(0xffffffffu, sum.x, offset), y = __shfl_up_sync(0xffffffffu, sum.y, offset);
        if (lane >= offset) sum.x += x, sum.y += y;
    }
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    int2 before = make_int2(sum.x - value.x, sum.y - value.y);
    *total = make_int2(0, 0);
    for (int i = 0; i < PLAN_THREADS / WARP; i++) {
        if (i == warp) before.x += total->x, before.y += total->y;
        total->x += scratch[i].x, total->y += scratch[i].y;
    }
    __syncthreads();
    return before;
}

/* One block. The order of an expert's pairs is left to chance: a pair's result does not depend on its neighbours. */
__global__ void __launch_bounds__(PLAN_THREADS) experts_plan_kernel(experts_args_t args, expert_plan plan) {
    extern __shared__ int32_t next[]; /* [n_experts]: first counts, then the next free place */
    __shared__ int2 scratch[PLAN_THREADS / WARP];
    int n_experts = (int)args.n_experts, n_pairs = (int)(args.n_tokens * args.top_k);
    for (int expert = threadIdx.x; expert < n_experts; expert += PLAN_THREADS)
        next[expert] = 0;
    __syncthreads();
    for (int pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS)
        atomicAdd(&next[args.experts[pair]], 1);
    __syncthreads();
    int2 done = make_int2(0, 0); /* places and tiles of the experts before */
    for (int first_expert = 0; first_expert < n_experts; first_expert += PLAN_THREADS) {
        int expert = first_expert + threadIdx.x, n = expert < n_experts ? next[expert] : 0;
        int2 total, before = scan_before(make_int2(n, (n + TILE_PAIRS - 1) / TILE_PAIRS), scratch, &total);
        int first = done.x + before.x;
        expert_tile *tile = plan.tiles + done.y + before.y;
        for (int taken = 0; taken < n; taken += TILE_PAIRS)
            *tile++ = expert_tile{expert, first + taken, min(n - taken, (int)TILE_PAIRS)};
        if (expert < n_experts) next[expert] = first;
        done.x += total.x, done.y += total.y;
    }
    if (threadIdx.x == 0) *plan.n_tiles = done.y;
    __syncthreads();
    for (int pair = threadIdx.x; pair < n_pairs; pair += PLAN_THREADS) {
        int place = atomicAdd(&next[args.experts[pair]], 1);
        plan.pairs[place] = pair;
        plan.places[pair] = place;
    }
}

/* Sixteen NVFP4 values as FP16, exactly: a code has two significant bits, a scale four. */
__device__ __forceinline__ void decode_block(uint2 codes, uint8_t scale_code, uint4 *values) {
    __half2 factor = __float2half2_rn(16384.0f);
    __half2 scale = __float2half2_rn(e4m3_to_scaled_float(scale_code) * 256.0f);
#pragma unroll
    for (int word = 0; word < 2; word++) {
        __half2 pairs[4];
        e2m1_to_scaled_pairs(word ? codes.y : codes.x, pairs);
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2 value = __hmul2(__hmul2(pairs[i], factor), scale);
            bits[i] = *(uint32_t *)&value;
        }
        values[word] = make_uint4(__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410),
                                  __byte_perm(bits[0], bits[1], 0x7632), __byte_perm(bits[2], bits[3], 0x7632));
    }
}

/* What a thread holds of the next tiles while the block computes with the present ones. */
template <bool NVFP4> struct fetched {
    uint4 inputs[2];
    uint4 weights[NVFP4 ? 1 : 4]; /* NVFP4: the codes of two blocks of 16 */
    uint8_t scales[2];
};

/* Grid: (outputs / (64 or 128), tiles). A block multiplies up to 64 inputs of one expert with 128 of its weight rows:
 * GATE_UP: rows of gate and the same of up, inputs u, act = silu(gate) * up; else rows of down, inputs act, out. Eight
 * warps, 32 x 32 sums each, 16 x 16 x 16 products of FP16 with FP32 sums. Sizes: multiples of 16; what a tile lacks
 * counts as zero. */
template <bool NVFP4, bool GATE_UP>
__global__ void __launch_bounds__(THREADS) experts_tile_f16_kernel(experts_args_t args, expert_plan plan) {
    using namespace nvcuda;
    __shared__ __align__(32) union {
        struct {
            __half inputs[TILE_PAIRS][STRIDE], weights[TILE_ROWS][STRIDE];
        } k;
        float sums[TILE_PAIRS][SUM_STRIDE];
    } shared;
    if ((int)blockIdx.y >= *plan.n_tiles) return;
    expert_tile tile = plan.tiles[blockIdx.y];
    constexpr int OUTPUTS = GATE_UP ? TILE_ROWS / 2 : TILE_ROWS;
    int depth = (int)(GATE_UP ? args.hidden_size : args.intermediate);
    int n_outputs = (int)(GATE_UP ? args.intermediate : args.hidden_size), first_output = blockIdx.x * OUTPUTS;
    const expert_weights_t &w = args.expert_weights;
    int64_t expert_row = (int64_t)tile.expert * n_outputs * (GATE_UP ? 2 : 1);

    int column = threadIdx.x % 8 * 8, row = threadIdx.x / 8; /* of inputs and of FP16 weights, with row + 32, ... */
    const __half *inputs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int place = tile.first + min(row + 32 * i, tile.n - 1);
        inputs[i] = GATE_UP ? args.u + plan.pairs[place] / args.top_k * args.hidden_size
                            : plan.act + (int64_t)place * args.intermediate;
    }
    auto weight_row = [&](int r) { /* -1: past the end */
                                   int output = first_output + r % OUTPUTS;
                                   return output < n_outputs ? expert_row + output + (r >= OUTPUTS ? n_outputs : 0)
                                                             : (int64_t)-1;
    };
    int64_t code_row = weight_row(threadIdx.x / 2);
    const uint8_t *codes = GATE_UP ? w.gate_up_codes : w.down_codes,
                  *scales = GATE_UP ? w.gate_up_scales : w.down_scales;
    const __half *halves = (const __half *)(GATE_UP ? w.gate_up_f16 : w.down_f16);

    auto fetch = [&](int k, fetched<NVFP4> &next) {
        uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 2; i++)
            next.inputs[i] = k + column < depth ? __ldg((const uint4 *)(inputs[i] + k + column)) : zero;
        if (NVFP4) {
            next.weights[0] = zero;
            next.scales[0] = next.scales[1] = 0;
            int at = k + threadIdx.x % 2 * 32;
            uint2 *blocks = (uint2 *)next.weights;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int block = at / 16 + i;
                if (code_row < 0 || block * 16 >= depth) continue;
                blocks[i] = __ldg((const uint2 *)(codes + code_row * (depth / 2)) + block);
                next.scales[i] = __ldg(scales + code_row * (depth / 16) + block);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t from = weight_row(row + 32 * i);
                next.weights[NVFP4 ? 0 : i] =
                    from >= 0 && k + column < depth ? __ldg((const uint4 *)(halves + from * depth + k + column)) : zero;
            }
        }
    };
    auto place = [&](const fetched<NVFP4> &next) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint4 *)&shared.k.inputs[row + 32 * i][column] = next.inputs[i];
        if (NVFP4) {
            const uint2 *blocks = (const uint2 *)next.weights;
            __half *to = &shared.k.weights[threadIdx.x / 2][threadIdx.x % 2 * 32];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint4 values[2];
                decode_block(blocks[i], next.scales[i], values);
                *(uint4 *)(to + 16 * i) = values[0];
                *(uint4 *)(to + 16 * i + 8) = values[1];
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint4 *)&shared.k.weights[row + 32 * i][column] = next.weights[NVFP4 ? 0 : i];
        }
    };

    int warp = threadIdx.x / WARP, warp_pair = warp / 4 * 32, warp_row = warp % 4 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            wmma::fill_fragment(sums[i][j], 0.0f);
    }
    fetched<NVFP4> next;
    fetch(0, next);
    for (int k = 0; k < depth; k += TILE_K) {
        __syncthreads(); /* the last tiles have been read */
        place(next);
        __syncthreads();
        if (k + TILE_K < depth) fetch(k + TILE_K, next);
#pragma unroll
        for (int kk = 0; kk < TILE_K; kk += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(a[i], &shared.k.inputs[warp_pair + 16 * i][kk], STRIDE);
                wmma::load_matrix_sync(b[i], &shared.k.weights[warp_row + 16 * i][kk], STRIDE);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
            }
        }
    }

    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(&shared.sums[warp_pair + 16 * i][warp_row + 16 * j], sums[i][j], SUM_STRIDE,
                                    wmma::mem_row_major);
    }
    __syncthreads();
    float gate_scale = 1.0f, up_scale = 1.0f, down_scale = 1.0f;
    if (NVFP4 && GATE_UP) {
        gate_scale = w.gate_up_scale_2[2 * tile.expert];
        up_scale = w.gate_up_scale_2[2 * tile.expert + 1];
    } else if (NVFP4) {
        down_scale = w.down_scale_2[tile.expert];
    }
    for (int i = threadIdx.x; i < tile.n * OUTPUTS; i += THREADS) {
        int pair = i / OUTPUTS, output = i % OUTPUTS;
        if (first_output + output >= n_outputs) continue;
        int64_t at = (int64_t)(tile.first + pair) * n_outputs + first_output + output;
        float sum = shared.sums[pair][output];
        if (GATE_UP)
            plan.act[at] = __float2half_rn(siluf(sum * gate_scale) * (shared.sums[pair][output + OUTPUTS] * up_scale));
        else
            plan.out[at] = __float2half_rn(sum * down_scale);
    }
}

/* Eight neighbouring outputs a thread: the weighted sum of their token's experts', in their order. */
__global__ void __launch_bounds__(THREADS) experts_sum_f32_kernel(experts_args_t args, expert_plan plan) {
    int64_t per_token = args.hidden_size / 8, index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t token = index / per_token, column = index % per_token * 8;
    if (token >= args.n_tokens) return;
    float sum[8] = {};
#pragma unroll 5
    for (int64_t pair = token * args.top_k; pair < (token + 1) * args.top_k; pair++) {
        float weight = args.weights[pair], values[8];
        unpack8(__ldg((const uint4 *)(plan.out + plan.places[pair] * args.hidden_size + column)), values);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = fmaf(weight, values[i], sum[i]);
    }
    __half2 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = __floats2half2_rn(sum[2 * i], sum[2 * i + 1]);
    *(uint4 *)(args.o + token * args.hidden_size + column) = *(uint4 *)pairs;
}

template <bool NVFP4> void launch_tiles(const experts_args_t *args, const expert_plan &plan, cudaStream_t stream) {
    dim3 up(blocks_for(args->intermediate, TILE_ROWS / 2), plan.max_tiles),
        down(blocks_for(args->hidden_size, TILE_ROWS), plan.max_tiles);
    experts_tile_f16_kernel<NVFP4, true><<<up, THREADS, 0, stream>>>(*args, plan);
    experts_tile_f16_kernel<NVFP4, false><<<down, THREADS, 0, stream>>>(*args, plan);
}

} // namespace

size_t experts_grouped_workspace_bytes(const experts_args_t *args) {
    experts_args_t counted = *args;
    counted.workspace = NULL;
    expert_plan plan;
    return lay_out(&counted, &plan);
}

status_t launch_experts_grouped(const experts_args_t *args, const device_queue_t *queue) {
    expert_plan plan;
    lay_out(args, &plan);
    size_t shared_bytes = (size_t)args->n_experts * sizeof(int32_t);
    queue_stamp(queue);
    experts_plan_kernel<<<1, PLAN_THREADS, shared_bytes, queue->stream>>>(*args, plan);
    if (route_take(queue, ROUTE_EXPERTS_GROUPED, experts_tiles_refusal(args, queue)))
        launch_experts_tiles(args, plan, queue);
    else if (args->expert_weights.gate_up_codes)
        launch_tiles<true>(args, plan, queue->stream);
    else
        launch_tiles<false>(args, plan, queue->stream);
    unsigned int n_blocks = blocks_for(args->n_tokens * (args->hidden_size / 8), THREADS);
    experts_sum_f32_kernel<<<n_blocks, THREADS, 0, queue->stream>>>(*args, plan);
    return queue_check_launch("experts");
}
