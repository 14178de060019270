#include "device/mma.cuh"
#include "experts/experts_grouped.cuh"

namespace {

enum {
    THREADS = 128,
    TILE_PAIRS = EXPERT_TILE_PAIRS,
    TILE_ROWS = 128, /* weight rows of a block: as many outputs of down, half as many of gate and as many of up */
    TILE_K = 64,
    STAGES = 4,
    STRIDE = TILE_K + 8 /* of an input in shared memory, so that rows start in different banks */
};

struct stage {
    __half inputs[TILE_PAIRS * STRIDE];
    uint2 codes[TILE_ROWS][4]; /* NVFP4 blocks of 16 */
};

__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

/* Eight E2M1 codes as FP16 pairs, in order. An FP16 of these magnitudes is its upper byte alone; the selector looks it
 * up by the code's lower three bits, and a selector with its fourth bit set spreads the sign. */
__device__ __forceinline__ void decode_e2m1(uint32_t codes, uint32_t pairs[4]) {
    uint32_t magnitudes = codes & 0x77777777u, shifted = codes << 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t bytes = select_bytes(0x3E3C3800u, 0x46444240u, half ? magnitudes >> 16 : magnitudes);
        bytes |= select_bytes(codes, shifted, half ? 0xBFAEu : 0x9D8Cu) & 0x80808080u;
        pairs[2 * half] = select_bytes(bytes, 0, 0x1404);
        pairs[2 * half + 1] = select_bytes(bytes, 0, 0x3424);
    }
}

/* An E4M3 scale twice, exactly. */
__device__ __forceinline__ __half2 decode_scale(uint8_t code) {
    __half scale = __ushort_as_half((unsigned short)((code & 0x80u) << 8 | (code & 0x7Fu) << 7));
    return __hmul2(__half2half2(scale), __float2half2_rn(256.0f));
}

/* Grid: (outputs / (64 or 128), tiles), four warps. A block multiplies up to 64 inputs of one expert with 128 of its
 * weight rows: GATE_UP: rows of gate and the same of up, inputs u, act = silu(gate) * up; else rows of down, inputs
 * act, out. Each warp has all inputs and 32 of the rows, whose codes it turns into fragments in registers, once. Lane 4
 * g + t takes block t of the 64 columns in each step and of row g all of its 16 codes, so that it needs one scale;
 * columns come in that order on both sides. The rows' order in shared memory gives a lane neighbouring outputs.
 * Products of FP16 with FP32 sums; 16 inputs that a tile lacks cost nothing. Moves each expert's weights once for 64 of
 * its pairs, out of the L2 from the second time on. Inputs a multiple of 32, outputs of 16. */
template <bool GATE_UP>
__global__ void __launch_bounds__(THREADS) experts_tile_nvfp4_kernel(experts_args_t args, expert_plan plan) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    stage *stages = (stage *)memory;
    if ((int)blockIdx.y >= *plan.n_tiles) return;
    expert_tile tile = plan.tiles[blockIdx.y];
    constexpr int OUTPUTS = GATE_UP ? TILE_ROWS / 2 : TILE_ROWS;
    int depth = (int)(GATE_UP ? args.hidden_size : args.intermediate), n_steps = (depth + TILE_K - 1) / TILE_K;
    int n_outputs = (int)(GATE_UP ? args.intermediate : args.hidden_size), first_output = blockIdx.x * OUTPUTS;
    const expert_weights_t &w = args.expert_weights;
    int64_t expert_row = (int64_t)tile.expert * n_outputs * (GATE_UP ? 2 : 1);
    const uint8_t *codes = GATE_UP ? w.gate_up_codes : w.down_codes;
    const uint8_t *scales = GATE_UP ? w.gate_up_scales : w.down_scales;

    /* the output that a place of shared memory belongs to, and its weight row; the last one instead of none */
    auto output_at = [&](int place) {
        int n = place % 8, j = place / 8 % 4;
        return first_output + (GATE_UP ? place / 32 * 16 + n / 2 * 4 + j % 2 * 2 + n % 2
                                       : place / 32 * 32 + n / 2 * 8 + j * 2 + n % 2);
    };
    auto row_at = [&](int place) {
        return expert_row + min(output_at(place), n_outputs - 1) + (GATE_UP && place / 8 % 4 >= 2 ? n_outputs : 0);
    };

    int piece = threadIdx.x % 8 * 8, input_row = threadIdx.x / 8; /* with input_row + 16, ... */
    const __half *inputs[TILE_PAIRS / 16];
#pragma unroll
    for (int i = 0; i < TILE_PAIRS / 16; i++) {
        int place = tile.first + min(input_row + 16 * i, tile.n - 1);
        inputs[i] = (GATE_UP ? args.u + (int64_t)(plan.pairs[place] / (int)args.top_k) * depth
                             : plan.act + (int64_t)place * depth) +
                    piece;
    }
    const uint8_t *own_codes = codes + row_at(threadIdx.x) * (depth / 2);
    auto copy = [&](int step) {
        if (step < n_steps) {
            stage &to = stages[step % STAGES];
            int k = step * TILE_K;
#pragma unroll
            for (int i = 0; i < TILE_PAIRS / 16; i++) {
                bool there = k + piece < depth && input_row + 16 * i < tile.n;
                copy_16(to.inputs + (input_row + 16 * i) * STRIDE + piece, there ? inputs[i] + k : inputs[i] - piece,
                        there);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                bool there = k + 32 * i < depth;
                copy_16(&to.codes[threadIdx.x][2 * i], there ? own_codes + k / 2 + 16 * i : own_codes, there);
            }
        }
        copies_commit();
    };

    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, n_blocks = depth / 16;
    const uint8_t *own_scales[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        own_scales[j] = scales + row_at(warp * 32 + j * 8 + g) * n_blocks;
    auto fetch_scales = [&](int step, uint8_t fetched[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            fetched[j] = __ldg(own_scales[j] + min(step * 4 + t, n_blocks - 1));
    };

#pragma unroll
    for (int step = 0; step < STAGES - 1; step++)
        copy(step);
    uint8_t next_scales[4];
    fetch_scales(0, next_scales);
    float sums[TILE_PAIRS / 16][4][4] = {};
    for (int step = 0; step < n_steps; step++) {
        __half2 scale[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            scale[j] = decode_scale(next_scales[j]);
        fetch_scales(step + 1, next_scales);
        copies_wait<STAGES - 2>();
        __syncthreads(); /* this step's tiles are there, the last step's have been read */
        copy(step + STAGES - 1);
        const stage &from = stages[step % STAGES];
#pragma unroll
        for (int half = 0; half < 2; half++) { /* eight columns of each block */
            uint32_t b[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                decode_e2m1(((const uint32_t *)&from.codes[warp * 32 + j * 8 + g][t])[half], b[j]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    __half2 value = __hmul2(*(__half2 *)&b[j][i], scale[j]);
                    b[j][i] = *(uint32_t *)&value;
                }
            }
#pragma unroll
            for (int m = 0; m < TILE_PAIRS / 16; m++) {
                if (m * 16 >= tile.n) continue;
                const __half *at = from.inputs + (m * 16 + g) * STRIDE + t * 16 + half * 8;
                uint4 low = *(const uint4 *)at, high = *(const uint4 *)(at + 8 * STRIDE);
                fragment_a first = {{low.x, high.x, low.y, high.y}}, second = {{low.z, high.z, low.w, high.w}};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_16816(sums[m][j], first, b[j][0], b[j][1]);
                    mma_16816(sums[m][j], second, b[j][2], b[j][3]);
                }
            }
        }
    }

    float gate_scale = 1.0f, up_scale = 1.0f, down_scale = 1.0f;
    if (GATE_UP) {
        gate_scale = w.gate_up_scale_2[2 * tile.expert];
        up_scale = w.gate_up_scale_2[2 * tile.expert + 1];
    } else {
        down_scale = w.down_scale_2[tile.expert];
    }
    int output = first_output + (GATE_UP ? warp * 16 + t * 4 : warp * 32 + t * 8);
    if (output >= n_outputs) return;
#pragma unroll
    for (int m = 0; m < TILE_PAIRS / 16; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int pair = m * 16 + half * 8 + g;
            if (pair >= tile.n) continue;
            uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *sum = sums[m][j] + half * 2;
                if (!GATE_UP) {
                    words[j] = pack_halves(sum[0] * down_scale, sum[1] * down_scale);
                } else if (j < 2) {
                    const float *up = sums[m][j + 2] + half * 2;
                    words[j] = pack_halves(siluf(sum[0] * gate_scale) * (up[0] * up_scale),
                                           siluf(sum[1] * gate_scale) * (up[1] * up_scale));
                }
            }
            int64_t at = (int64_t)(tile.first + pair) * n_outputs + output;
            if (GATE_UP)
                *(uint2 *)(plan.act + at) = make_uint2(words[0], words[1]);
            else
                *(uint4 *)(plan.out + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

template <bool GATE_UP>
void launch_tiles(const experts_args_t *args, const expert_plan &plan, int64_t outputs, cudaStream_t stream) {
    size_t shared_bytes = STAGES * sizeof(stage);
    cudaFuncSetAttribute(experts_tile_nvfp4_kernel<GATE_UP>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared_bytes);
    dim3 grid(blocks_for(outputs, GATE_UP ? TILE_ROWS / 2 : TILE_ROWS), plan.max_tiles);
    experts_tile_nvfp4_kernel<GATE_UP><<<grid, THREADS, shared_bytes, stream>>>(*args, plan);
}

} // namespace

const char *experts_tiles_refusal(const experts_args_t *args, const device_queue_t *queue) {
    const expert_weights_t *weights = &args->expert_weights;
    if (queue->mma_refusal) return queue->mma_refusal;
    if (!weights->gate_up_codes) return "the experts are not NVFP4";
    if (args->hidden_size % 32 || args->intermediate % 32)
        return "hidden_size or a rank's moe_intermediate_size is not a multiple of 32";
    bool aligned = (uintptr_t)args->u % 16 == 0 && (uintptr_t)args->workspace % 16 == 0 &&
                   (uintptr_t)weights->gate_up_codes % 16 == 0 && (uintptr_t)weights->down_codes % 16 == 0;
    return aligned ? NULL : "u or the codes are not aligned to 16 bytes";
}

void launch_experts_tiles(const experts_args_t *args, const expert_plan &plan, const device_queue_t *queue) {
    launch_tiles<true>(args, plan, args->intermediate, queue->stream);
    launch_tiles<false>(args, plan, args->hidden_size, queue->stream);
}
