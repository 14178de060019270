/* gr_mix of one token in two launches. Each block takes its whole share of the weights into registers before it waits
 * for the kernel before, so that behind the wait it reads only what is small.
 *
 * down: sums[s, r] = scale[s] * (sum over i of W[r, s * H + i] * (1 + hc_norm[s, i]) * h[s, i]) for the R rows of down
 *       and the S of block_inject; scale[s] is the norm's, applied to the sum, so that norm and product are one pass.
 *       Every block makes h of the pending injection for itself and stores nothing of it.
 * up:   a, the gates, u, inject, and h.
 *
 * down and up are both FP16, Q8 or QPN8, block_inject is FP16. Bytes: the weights once (6.6 MB a launch in FP16 at H
 * 2560, S 4, R 320; half of it and 3 % of scales in Q8), h, o and the sums from L2 in every block. All operands are
 * aligned to 16 bytes. Sums are in FP32, and z and a are not rounded to FP16 as in the general form. */

#include "gr/gr_m1.h"

#include "device/device.cuh"
#include "device/launch.cuh"
#include "gr/gr_m1_chunk.cuh"
#include "push/push_part.cuh"

namespace {

/* Sums over LANES neighbouring lanes of N values each, N a power of two up to LANES: lane l has value l % N. */
template <int LANES, int N> __device__ __forceinline__ float lanes_sums(float values[N]) {
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
        unsigned int upper = threadIdx.x & half ? ~0u : 0u; /* a mask, as a condition would become a branch */
#pragma unroll
        for (int i = 0; i < half; i++) {
            unsigned int low = __float_as_uint(values[i]), high = __float_as_uint(values[i + half]);
            float given = __uint_as_float((low & upper) | (high & ~upper));
            float kept = __uint_as_float((high & upper) | (low & ~upper));
            values[i] = kept + __shfl_xor_sync(0xffffffffu, given, half);
        }
    }
#pragma unroll
    for (int offset = N; offset < LANES; offset *= 2)
        values[0] += __shfl_xor_sync(0xffffffffu, values[0], offset);
    return values[0];
}

/* Without the slow path of a division: what it is for (a divisor beyond 2^126) gives 0 here too. */
__device__ __forceinline__ float quick_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

template <int N> __device__ __forceinline__ void read_floats(const float *from, float values[N]) {
#pragma unroll
    for (int j = 0; j < N; j += 4)
        *(float4 *)(values + j) = *(const float4 *)(from + j);
}

/* Loads that stay where they stand: all before the first use of one, so that there is one wait for L2. Not for words
 * that lie apart, as they pass L1 by. */
__device__ __forceinline__ float load_here(const float *from) {
    float value;
    asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(value) : "l"(from));
    return value;
}

__device__ __forceinline__ float4 load_here(const float4 *from) {
    float4 value;
    asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from));
    return value;
}

__device__ __forceinline__ float load_here(const __half *from) {
    unsigned short bits;
    asm volatile("ld.volatile.global.u16 %0, [%1];" : "=h"(bits) : "l"(from));
    return __half2float(__ushort_as_half(bits));
}

/* What lies between the two launches. */
template <int S, int R> struct between {
    static_assert(S == 4, "a row's sums are one word");
    float sums[R + S][S];
    float scale[S];

    __device__ __forceinline__ float mean(int row) const {
        float4 sum = load_here((const float4 *)sums[row]);
        return (sum.x + sum.y + sum.z + sum.w) * (1.0f / S);
    }
};

constexpr __host__ __device__ int row_warps(dtype_t dtype, int H) {
    int places = dtype == DTYPE_F16 ? H / 8 : H / 16;
    return (places + WARP - 1) / WARP;
}

constexpr __host__ __device__ int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

/* A block's sums of GROUPS * ROWS rows of `matrix` (of its n_rows, from first_row on) over stream blockIdx.y; they are
 * sums[first_sum + row]. A thread holds ROWS rows' chunks at one place; row_warps warps together hold ROWS rows. */
template <dtype_t DTYPE, int H, int S, int R, int ROWS, int GROUPS, int RANKS>
__device__ __forceinline__ void sum_rows(stamp_t stamp, const gr_mix_args_t &args, const push_args_t &push,
                                         const matrix_t &matrix, int n_rows, int first_row, int first_sum) {
    typedef gr_chunk<DTYPE, S * H> chunk_t;
    constexpr int VALUES = chunk_t::VALUES, PLACES = H / VALUES, WARPS = row_warps(DTYPE, H);
    constexpr int N_SUMS = power_of_two_from(ROWS + 1); /* of each row, and of squares */
    static_assert(H % VALUES == 0 && N_SUMS <= WARP, "whole chunks");
    int group = threadIdx.x / (WARPS * WARP), place = threadIdx.x % (WARPS * WARP), stream = blockIdx.y;
    bool is_inside = PLACES % WARP == 0 || place < PLACES;
    int i = is_inside ? place * VALUES : 0;

    chunk_t w[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) /* a row past the end repeats the last one and is not stored */
        w[r].load(matrix, min(first_row + group * ROWS + r, n_rows - 1), stream * H + i);
    float x[VALUES], gain[VALUES];
    read_floats<VALUES>(args.hc_norm + stream * H + i, gain);
    next_start();
    static_assert(H <= PUSH_PART_ITEMS && H % 4 == 0, "a sum fits its mailbox");
    __shared__ uint2 received[RANKS > 1 ? H / 4 : 1];
    const float *h = args.h + stream * H + i;
    float inject = 0.0f;
    uint4 o[VALUES / 8];
    if constexpr (RANKS > 1) {
        /* What the sender waited for can be read, past L1. When all parts have come the sender is at its end, but for
         * what becomes visible elsewhere: the wait for that stands in front of what this kernel writes, where it
         * costs nothing, or here where a stamp is due. */
        if (stamp.n > 0) previous_wait(stamp);
        inject = __ldcg(args.inject_before + stream);
#pragma unroll
        for (int j = 0; j < VALUES; j += 4)
            *(float4 *)(x + j) = __ldcg((const float4 *)(h + j));
        push_part_receive<RANKS>(push, push_part_round(push), H, received);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < VALUES / 8; j++)
            o[j] = ((const uint4 *)received)[i / 8 + j];
        if (first_sum + first_row + stream + group == 0 && is_inside) {
#pragma unroll
            for (int j = 0; j < VALUES / 8; j++)
                ((uint4 *)(args.o + i))[j] = o[j];
        }
    } else {
        previous_wait(stamp);
        if (args.inject_before) inject = args.inject_before[stream];
        read_floats<VALUES>(h, x);
#pragma unroll
        for (int j = 0; j < VALUES / 8; j++)
            o[j] = args.inject_before ? ((const uint4 *)(args.o + i))[j] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < VALUES; j += 8) {
        float added[8];
        unpack8(o[j / 8], added);
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j + k] = fmaf(inject, added[k], x[j + k]);
    }
    float sums[N_SUMS] = {};
#pragma unroll
    for (int j = 0; j < VALUES; j++) {
        if (!is_inside) x[j] = 0.0f;
        sums[ROWS] = fmaf(x[j], x[j], sums[ROWS]);
        x[j] *= 1.0f + gain[j];
    }
    typename chunk_t::operand operand;
    operand.set(x);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sums[r] = w[r].dot(operand);

    __shared__ float partial[GROUPS * WARPS][N_SUMS];
    float sum = lanes_sums<WARP, N_SUMS>(sums);
    if (threadIdx.x % WARP < N_SUMS) partial[threadIdx.x / WARP][threadIdx.x % WARP] = sum;
    __syncthreads();
    int row = first_row + threadIdx.x, r = threadIdx.x % ROWS;
    if constexpr (RANKS > 1) previous_wait();
    if (threadIdx.x >= GROUPS * ROWS || row >= n_rows) return;
    group = threadIdx.x / ROWS;
    float squares = 0.0f;
    sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        sum += partial[group * WARPS + warp][r];
        squares += partial[group * WARPS + warp][ROWS];
    }
    float scale = rsqrtf(squares * (1.0f / H) + args.rms_norm_eps);
    between<S, R> *work = (between<S, R> *)args.workspace;
    work->sums[first_sum + row][stream] = scale * sum;
    if (first_sum + row == 0) work->scale[stream] = scale;
}

template <int R, int ROWS, int GROUPS> struct down_grid {
    enum { BLOCKS = (R + ROWS * GROUPS - 1) / (ROWS * GROUPS) };
};

/* Grid: (down_grid::BLOCKS, and one more for block_inject where there is one, S). */
template <dtype_t DTYPE, int H, int S, int R, int ROWS, int GROUPS, int RANKS>
__global__ void __launch_bounds__(GROUPS *row_warps(DTYPE, H) * WARP)
    gr_m1_down_kernel(stamp_t stamp, gr_mix_args_t args, const __grid_constant__ push_args_t push) {
    constexpr int F16_GROUPS = GROUPS * row_warps(DTYPE, H) / row_warps(DTYPE_F16, H);
    static_assert(F16_GROUPS * row_warps(DTYPE_F16, H) == GROUPS * row_warps(DTYPE, H), "block_inject by whole groups");
    if (blockIdx.x < down_grid<R, ROWS, GROUPS>::BLOCKS)
        sum_rows<DTYPE, H, S, R, ROWS, GROUPS, RANKS>(stamp, args, push, args.down, R, blockIdx.x * ROWS * GROUPS, 0);
    else
        sum_rows<DTYPE_F16, H, S, R, (S + F16_GROUPS - 1) / F16_GROUPS, F16_GROUPS, RANKS>(stamp, args, push,
                                                                                           args.block_inject, S, 0, R);
}

/* Grid: H / (WARPS * OUTPUTS), and one block more for inject. A warp has OUTPUTS outputs i, WARP / S lanes for each of
 * their S rows of up. Only this kernel writes h, each value by one block. */
template <dtype_t DTYPE, int H, int S, int R, int OUTPUTS, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP)
    gr_m1_up_kernel(gr_mix_args_t args, const __grid_constant__ push_args_t push) {
    typedef gr_chunk<DTYPE, R> chunk_t;
    constexpr int LANES = WARP / S, VALUES = chunk_t::VALUES, PLACES = R / VALUES;
    constexpr int CHUNKS = (PLACES + LANES - 1) / LANES, PASSES = (R + WARPS * WARP - 1) / (WARPS * WARP);
    constexpr int N_SUMS = power_of_two_from(OUTPUTS);
    static_assert(H % (WARPS * OUTPUTS) == 0 && LANES * S == WARP && N_SUMS <= LANES, "whole warps");
    static_assert(R % VALUES == 0, "whole chunks");
    const between<S, R> *work = (const between<S, R> *)args.workspace;
    if (blockIdx.x == H / (WARPS * OUTPUTS)) {
        next_start();
        previous_wait();
        int row = R + threadIdx.x;
        if (args.inject && row < R + S) args.inject[threadIdx.x] = 2.0f * quick_sigmoid(work->mean(row));
        if (args.receives && threadIdx.x == 0) push_part_end(push);
        return;
    }
    int lane = threadIdx.x % LANES, stream = threadIdx.x % WARP / LANES;
    int first = (blockIdx.x * WARPS + threadIdx.x / WARP) * OUTPUTS;

    chunk_t w[OUTPUTS][CHUNKS];
#pragma unroll
    for (int output = 0; output < OUTPUTS; output++) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int place = min(lane + c * LANES, PLACES - 1);
            w[output][c].load(args.up, stream * H + first + output, place * VALUES);
        }
    }
    int own = lane % N_SUMS, i = first + min(own, OUTPUTS - 1); /* the output that this lane ends */
    float gain = args.hc_norm[stream * H + i];
    next_start();
    previous_wait();

    float h = load_here(&args.h[stream * H + i]), scale = load_here(&work->scale[stream]);
    float inject = args.inject_before ? load_here(&args.inject_before[stream]) : 0.0f;
    float o = args.inject_before ? load_here(&args.o[i]) : 0.0f;
    float mean[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
        mean[pass] = work->mean(min(pass * WARPS * WARP + threadIdx.x, R - 1));

    __shared__ typename chunk_t::template operands<PLACES> a;
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
        a.put(pass * WARPS * WARP + threadIdx.x, mean[pass] * quick_sigmoid(mean[pass]));
    __syncthreads();

    float sums[N_SUMS] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int place = lane + c * LANES;
        if (PLACES % LANES && place >= PLACES) break;
        typename chunk_t::operand x;
        a.get(place, &x);
#pragma unroll
        for (int output = 0; output < OUTPUTS; output++)
            sums[output] += w[output][c].dot(x);
    }
    h = fmaf(inject, o, h);
    float u = quick_sigmoid(lanes_sums<LANES, N_SUMS>(sums)) * h * scale * (1.0f + gain);
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2)
        u += __shfl_xor_sync(0xffffffffu, u, offset);
    if (lane >= OUTPUTS) return;
    if (args.inject_before) args.h[stream * H + i] = h;
    if (stream == 0) args.u[i] = __float2half_rn(u * (1.0f / S));
}

/* nano has other routes on up to 4 ranks only. */
constexpr int most_ranks(int64_t hidden_size) { return hidden_size == 160 ? 4 : PUSH_MAX_RANKS; }

/* ROWS, GROUPS, OUTPUTS and WARPS as measured. */
template <dtype_t DTYPE, int H, int S, int R, int ROWS, int GROUPS, int OUTPUTS, int WARPS>
status_t launch(const gr_mix_args_t *args, const device_queue_t *queue) {
    static_assert(sizeof(between<S, R>) <= 4 * (S * H + R), "the workspace of the general form is enough");
    unsigned int n_blocks = down_grid<R, ROWS, GROUPS>::BLOCKS + (args->inject ? 1 : 0);
    const push_args_t push = args->receives ? *queue->push : push_args_t{};
    auto down = push.tp_size == 0   ? gr_m1_down_kernel<DTYPE, H, S, R, ROWS, GROUPS, 1>
                : push.tp_size == 2 ? gr_m1_down_kernel<DTYPE, H, S, R, ROWS, GROUPS, 2>
                : push.tp_size <= 4 ? gr_m1_down_kernel<DTYPE, H, S, R, ROWS, GROUPS, 4>
                                    : gr_m1_down_kernel<DTYPE, H, S, R, ROWS, GROUPS, most_ranks(H)>;
    launch_kernel(queue, down, dim3(n_blocks, S), GROUPS * row_warps(DTYPE, H) * WARP, 0, *args, push);
    launch_kernel(queue, gr_m1_up_kernel<DTYPE, H, S, R, OUTPUTS, WARPS>, H / (WARPS * OUTPUTS) + 1, WARPS * WARP, 0,
                  *args, push);
    return queue_check_launch("gr_mix");
}

bool is_shape(const gr_mix_args_t *args, int64_t hidden_size, int64_t hc_count, int64_t lowrank) {
    return args->hidden_size == hidden_size && args->hc_count == hc_count && args->down.rows == lowrank;
}

bool is_aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

} // namespace

const char *gr_m1_refusal(const gr_mix_args_t *args) {
    dtype_t dtype = args->down.dtype;
    if (!is_shape(args, 2560, 4, 320) && !is_shape(args, 160, 4, 32)) return "not a shape it was built for";
    if (dtype != DTYPE_F16 && !dense8_is_format(dtype)) return "weights are neither FP16 nor of 8 bits";
    if (args->up.dtype != dtype) return "down and up are of different types";
    if (args->inject && args->block_inject.dtype != DTYPE_F16) return "block_inject is not FP16";
    const void *const operands[] = {args->h,       args->o,         args->hc_norm,          args->down.data,
                                    args->up.data, args->workspace, args->block_inject.data};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
        if (!is_aligned(operands[i])) return "an operand is not aligned to 16 bytes";
    }
    return NULL;
}

const char *gr_m1_receive_refusal(const gr_mix_args_t *args, const device_queue_t *queue) {
    const push_args_t *push = queue->push;
    if (!push) return "needs push between the ranks";
    const char *refusal = gr_m1_refusal(args);
    if (refusal) return refusal;
    if (push->tp_size > most_ranks(args->hidden_size)) return "more ranks than it was built for";
    /* Blocks that wait, and those of the kernels behind that have started early, hold room that another rank's senders
     * may need. */
    if (!push->has_own_device) return "ranks share a device";
    return NULL;
}

status_t launch_gr_mix_m1(const gr_mix_args_t *args, const device_queue_t *queue) {
    bool full = is_shape(args, 2560, 4, 320);
    if (args->down.dtype == DTYPE_F16)
        return full ? launch<DTYPE_F16, 2560, 4, 320, 6, 1, 2, 10>(args, queue)
                    : launch<DTYPE_F16, 160, 4, 32, 10, 1, 1, 10>(args, queue);
    if (args->down.dtype == DTYPE_Q8)
        return full ? launch<DTYPE_Q8, 2560, 4, 320, 5, 2, 2, 10>(args, queue)
                    : launch<DTYPE_Q8, 160, 4, 32, 5, 2, 1, 10>(args, queue);
    return full ? launch<DTYPE_QPN8, 2560, 4, 320, 5, 2, 2, 10>(args, queue)
                : launch<DTYPE_QPN8, 160, 4, 32, 5, 2, 1, 10>(args, queue);
}
