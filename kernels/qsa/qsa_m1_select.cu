/* QSA of one token, second launch: the n_select blocks of the highest scores, in rising order.
 *
 * One block; a warp looks after one run of blocks. Radix selection by digits of 11, 10 and 10 bits: a digit's histogram
 * tells which digit the n_select-th largest key has; it ends early where all keys of that digit are taken. Then each
 * warp counts what it takes and, once it knows what the warps before it take, lists it: the blocks above the threshold
 * and, of those equal to it, the lowest. Up to 16384 blocks the keys stay in registers; beyond they are read again for
 * each pass, 4 bytes a block. Does nothing while all blocks are attended. */

#include "qsa/qsa_m1.cuh"
#include "qsa/qsa_m1.h"

namespace {

enum {
    THREADS = 512,
    WARPS = THREADS / WARP,
    N_DIGITS = 3,
    BINS = 2048,
    KEYS = 8, /* in a lane's registers, 32 blocks apart, where the first form of select_blocks serves */
};

/* Bits of a key from here on make a digit. A score's sign bit is 0, so 31 bits are enough. */
__device__ constexpr int shift_of(int digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }

/* Scores are sums of values that are not negative, so their bits order as integers do. */
__device__ __forceinline__ uint32_t key_of(float score) { return __float_as_uint(score) & 0x7fffffffu; }

__device__ __forceinline__ uint32_t lanes_total(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, value);
#else
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
#endif
}

/* Of `above`, how many are counted in higher lanes, the one lane in which the count reaches `wanted`. `wanted` becomes
 * what is left to find in it. */
__device__ __forceinline__ int lane_that_reaches(uint32_t above, uint32_t value, uint32_t &wanted) {
    int lane = __ffs(__ballot_sync(0xffffffffu, above < wanted && above + value >= wanted)) - 1;
    wanted -= __shfl_sync(0xffffffffu, above, lane);
    return lane;
}

struct digit_t {
    uint32_t bin, wanted; /* the digit found, and how many keys of it are taken */
    bool takes_all;
};

struct shared_t {
    uint4 histogram[N_DIGITS][BINS / 4];
    uint32_t warp_sums[WARPS];
    uint2 warp_counts[WARPS];
    digit_t digit;
};

/* The bin, from the highest down, in which the count reaches `wanted`; by all threads. */
__device__ __forceinline__ digit_t find_digit(shared_t &shared, int digit, uint32_t wanted) {
    static_assert(BINS / 4 == THREADS, "a thread sums four bins");
    int lane = threadIdx.x % WARP;
    uint4 word = shared.histogram[digit][threadIdx.x];
    uint32_t sum = lanes_total(word.x + word.y + word.z + word.w);
    if (lane == 0) shared.warp_sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x < WARP) { /* one warp: shuffles of all at once would wait for each other */
        uint32_t above = 0, value = lane < WARPS ? shared.warp_sums[lane] : 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            above += i > lane ? shared.warp_sums[i] : 0;
        int warp = lane_that_reaches(above, value, wanted);
        word = shared.histogram[digit][warp * WARP + lane];
        value = above = word.x + word.y + word.z + word.w;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            uint32_t next = __shfl_down_sync(0xffffffffu, above, offset);
            if (lane + offset < WARP) above += next;
        }
        if (lane == lane_that_reaches(above - value, value, wanted)) {
            uint32_t bin = 3, count = word.w;
            auto descend = [&](uint32_t next_bin, uint32_t next_count) {
                if (bin != next_bin + 1 || count >= wanted) return;
                wanted -= count, bin = next_bin, count = next_count;
            };
            descend(2, word.z), descend(1, word.y), descend(0, word.x);
            shared.digit = {(uint32_t)(warp * WARP + lane) * 4 + bin, wanted, count == wanted};
        }
    }
    __syncthreads();
    return shared.digit;
}

/* N_KEYS keys of a lane are in registers: all of its run, or as many at a time. */
template <int N_KEYS>
__device__ __forceinline__ void select_blocks(const float *scores, int n_blocks, int n_select, int32_t *blocks,
                                              shared_t &shared) {
    constexpr int BATCH = N_KEYS * WARP;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int run = (n_blocks + WARPS * WARP - 1) / (WARPS * WARP) * WARP;
    int start = min(warp * run, n_blocks), end = min(start + run, n_blocks);
    uint32_t keys[N_KEYS];
    auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < N_KEYS; i++)
            keys[i] = first + i * WARP + lane < end ? key_of(scores[first + i * WARP + lane]) : 0;
    };
    bool is_kept = run <= BATCH;
    if (is_kept) load(start);
    /* visit(block, its key, whether there is one), a lane a block, by the whole warp */
    auto for_each_block = [&](auto visit) {
        for (int first = start; first < end; first += BATCH) {
            if (!is_kept) load(first);
#pragma unroll
            for (int i = 0; i < N_KEYS; i++) {
                int block = first + i * WARP + lane;
                if (first + i * WARP < end) visit(block, keys[i], block < end);
            }
        }
    };

    uint32_t threshold = 0, mask = 0, wanted = (uint32_t)n_select; /* of the keys that share the bits found so far */
#pragma unroll
    for (int digit = 0; digit < N_DIGITS; digit++) {
        int shift = shift_of(digit);
        uint32_t *histogram = (uint32_t *)shared.histogram[digit];
        for_each_block([&](int, uint32_t key, bool is_there) {
            if (is_there && (key & mask) == threshold)
                atomicAdd(&histogram[key >> shift & (BINS - 1) & ~(mask >> shift)], 1u);
        });
        __syncthreads();
        digit_t found = find_digit(shared, digit, wanted);
        threshold |= found.bin << shift;
        mask |= (uint32_t)(BINS - 1) << shift & 0x7fffffffu;
        wanted = found.wanted;
        if (found.takes_all) break; /* whatever their other bits */
    }

    uint32_t n_above = 0, n_equal = 0;
    for_each_block([&](int, uint32_t key, bool is_there) {
        n_above += __popc(__ballot_sync(0xffffffffu, is_there && (key & mask) > threshold));
        n_equal += __popc(__ballot_sync(0xffffffffu, is_there && (key & mask) == threshold));
    });
    if (lane == 0) shared.warp_counts[warp] = {n_above, n_equal};
    __syncthreads();
    n_above = n_equal = 0; /* among the blocks before */
#pragma unroll
    for (int i = 0; i < WARPS - 1; i++) {
        uint2 counts = shared.warp_counts[i];
        if (i < warp) n_above += counts.x, n_equal += counts.y;
    }
    uint32_t lower = (1u << lane) - 1;
    for_each_block([&](int block, uint32_t key, bool is_there) {
        bool is_above = is_there && (key & mask) > threshold, is_equal = is_there && (key & mask) == threshold;
        uint32_t aboves = __ballot_sync(0xffffffffu, is_above), equals = __ballot_sync(0xffffffffu, is_equal);
        uint32_t above = n_above + __popc(aboves & lower), equal = n_equal + __popc(equals & lower);
        if (is_above || (is_equal && equal < wanted)) blocks[above + min(equal, wanted)] = block;
        n_above += __popc(aboves);
        n_equal += __popc(equals);
    });
}

__global__ void __launch_bounds__(THREADS, 1)
    qsa_m1_select_f32_kernel(stamp_t stamp, const int64_t *start_pos, int n_select, const float *scores,
                             int32_t *blocks) {
    __shared__ shared_t shared;
    int n_blocks = (int)((*start_pos + 1) / QSA_RATIO);
    bool selects = n_blocks > n_select;
    if (selects) {
        for (int i = threadIdx.x; i < N_DIGITS * BINS / 4; i += THREADS)
            ((uint4 *)shared.histogram)[i] = {0, 0, 0, 0};
        __syncthreads();
    }
    previous_wait(stamp);
    next_start(); /* not before: the blocks of attend would crowd onto the few multiprocessors that prepare leaves */
    if (!selects) return;
    if (n_blocks <= KEYS * THREADS)
        select_blocks<KEYS>(scores, n_blocks, n_select, blocks, shared);
    else
        select_blocks<4 * KEYS>(scores, n_blocks, n_select, blocks, shared);
}

} // namespace

status_t launch_qsa_m1_select(const qsa_select_args_t *args, const float *scores, const device_queue_t *queue) {
    launch_kernel(queue, qsa_m1_select_f32_kernel, 1, THREADS, 0, args->start_pos, (int)args->shape.n_select, scores,
                  args->blocks);
    return queue_check_launch("qsa_select");
}
