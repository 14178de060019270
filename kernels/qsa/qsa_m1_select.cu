/* QSA of one token, second launch: the n_select blocks of the highest scores, in rising order.
 *
 * One block. Radix selection by digits of 11, 10 and 10 bits: a digit's histogram tells which digit the n_select-th
 * largest key has; it ends early where all keys of that digit are taken. Then prefix sums place the blocks above the
 * threshold and, of those equal to it, the lowest. Up to 16384 blocks the keys stay in registers; beyond they are read
 * again for each digit, 4 bytes a block. Does nothing while all blocks are attended. */

#include "qsa/qsa_m1.cuh"
#include "qsa/qsa_m1.h"

namespace {

enum { THREADS = 1024, N_DIGITS = 3, BINS = 2048, PER_WORD = 4, TILE = THREADS * PER_WORD };

/* Bits of a key from `shift` on. A score's sign bit is 0, so 31 bits are enough. */
__device__ constexpr int shift_of(int digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }

/* Scores are sums of values that are not negative, so their bits order as integers do. */
__device__ __forceinline__ uint32_t key_of(float score) { return __float_as_uint(score) & 0x7fffffffu; }

/* Inclusive prefix sum over the lanes of a warp. */
__device__ __forceinline__ uint32_t lanes_prefix(uint32_t value) {
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        uint32_t below = __shfl_up_sync(0xffffffffu, value, offset);
        if ((int)threadIdx.x % WARP >= offset) value += below;
    }
    return value;
}

/* Where counting from the last lane down reaches `wanted`: that lane, in every lane. `wanted` becomes what is left to
 * find in it, and `value` what it holds. */
__device__ __forceinline__ int lane_that_reaches(uint32_t &value, uint32_t &wanted) {
    uint32_t prefix = lanes_prefix(value), all = __shfl_sync(0xffffffffu, prefix, WARP - 1);
    uint32_t above = all - prefix; /* in higher lanes */
    int lane = __ffs(__ballot_sync(0xffffffffu, above < wanted && above + value >= wanted)) - 1;
    wanted -= __shfl_sync(0xffffffffu, above, lane);
    value = __shfl_sync(0xffffffffu, value, lane);
    return lane;
}

struct shared_t {
    uint32_t histogram[N_DIGITS][BINS];
    uint32_t warp_sums[2][WARP];
};

/* The scores of PER_WORD neighbouring blocks; behind the last block 0, as if it scored nothing. */
__device__ __forceinline__ void load_keys(const float *scores, int first, int n_blocks, uint32_t keys[PER_WORD]) {
    float4 word = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first < n_blocks) word = *(const float4 *)(scores + first);
    keys[0] = key_of(word.x), keys[1] = key_of(word.y), keys[2] = key_of(word.z), keys[3] = key_of(word.w);
#pragma unroll
    for (int i = 1; i < PER_WORD; i++)
        if (first + i >= n_blocks) keys[i] = 0;
}

/* TILES tiles of keys are in registers: all of them, or as many at a time. */
template <int TILES>
__device__ __forceinline__ void select_blocks(const float *scores, int n_blocks, int n_select, int32_t *blocks,
                                              shared_t &shared) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, own = threadIdx.x * PER_WORD;
    uint32_t keys[TILES][PER_WORD];
    auto load = [&](int first) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            load_keys(scores, first + tile * TILE + own, n_blocks, keys[tile]);
    };
    bool is_kept = n_blocks <= TILES * TILE;
    if (is_kept) load(0);
    /* visit(first block, its keys), for the thread's words in rising order */
    auto for_each_word = [&](auto visit) {
        for (int first = 0; first < n_blocks; first += TILES * TILE) {
            if (!is_kept) load(first);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                if (first + tile * TILE < n_blocks) visit(first + tile * TILE + own, keys[tile]);
        }
    };

    uint32_t threshold = 0, mask = 0, wanted = (uint32_t)n_select; /* of the keys that share the bits found so far */
#pragma unroll
    for (int digit = 0; digit < N_DIGITS; digit++) {
        constexpr int PER_WARP = BINS / (THREADS / WARP), PER_LANE = PER_WARP / WARP;
        uint32_t *histogram = shared.histogram[digit];
        int shift = shift_of(digit);
        for_each_word([&](int first, const uint32_t word[PER_WORD]) {
#pragma unroll
            for (int i = 0; i < PER_WORD; i++) {
                if ((word[i] & mask) == threshold && first + i < n_blocks)
                    atomicAdd(&histogram[word[i] >> shift & (BINS - 1) & ~(mask >> shift)], 1u);
            }
        });
        __syncthreads();
        uint32_t sum = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            sum += histogram[warp * PER_WARP + i * WARP + lane];
        sum = lanes_prefix(sum);
        if (lane == WARP - 1) shared.warp_sums[digit & 1][warp] = sum;
        __syncthreads();
        /* Every warp finds the same digit. */
        uint32_t value = shared.warp_sums[digit & 1][lane];
        int bin = lane_that_reaches(value, wanted) * PER_WARP;
        uint32_t pair[PER_LANE], two = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            two += pair[i] = histogram[bin + lane * PER_LANE + i];
        int at = lane_that_reaches(two, wanted);
        bin += at * PER_LANE;
        uint32_t upper = __shfl_sync(0xffffffffu, pair[1], at), lower = __shfl_sync(0xffffffffu, pair[0], at);
        bool in_upper = upper >= wanted;
        if (!in_upper) wanted -= upper;
        uint32_t count = in_upper ? upper : lower;
        threshold |= (uint32_t)(bin + in_upper) << shift;
        mask |= (uint32_t)(BINS - 1) << shift & 0x7fffffffu;
        if (count == wanted) break; /* all of them are taken, whatever their other bits */
    }

    uint32_t n_above = 0, n_equal = 0; /* among the blocks before this round's */
    int parity = 0;
    __syncthreads(); /* warp_sums is written again */
    for_each_word([&](int first, const uint32_t word[PER_WORD]) {
        uint32_t counts = 0; /* above and equal, one in each half of the word */
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            uint32_t key = word[i] & mask;
            if (first + i < n_blocks) counts += (uint32_t)(key > threshold) << 16 | (uint32_t)(key == threshold);
        }
        uint32_t prefix = lanes_prefix(counts);
        uint32_t *warp_sums = shared.warp_sums[parity];
        parity ^= 1;
        if (lane == WARP - 1) warp_sums[warp] = prefix;
        __syncthreads();
        uint32_t sums = lanes_prefix(warp_sums[lane]), total = __shfl_sync(0xffffffffu, sums, WARP - 1);
        uint32_t before = __shfl_sync(0xffffffffu, sums, warp ? warp - 1 : 0);
        prefix += (warp ? before : 0) - counts;
        uint32_t above = n_above + (prefix >> 16), equal = n_equal + (prefix & 0xffffu);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            uint32_t key = word[i] & mask;
            bool is_above = key > threshold && first + i < n_blocks;
            bool is_equal = key == threshold && first + i < n_blocks;
            if (is_above || (is_equal && equal < wanted)) blocks[above + min(equal, wanted)] = first + i;
            above += is_above;
            equal += is_equal;
        }
        n_above += total >> 16;
        n_equal += total & 0xffffu;
    });
}

__global__ void __launch_bounds__(THREADS, 1)
    qsa_m1_select_f32_kernel(stamp_t stamp, const int64_t *start_pos, int n_select, const float *scores,
                             int32_t *blocks) {
    __shared__ shared_t shared;
    int n_blocks = (int)((*start_pos + 1) / QSA_RATIO);
    bool selects = n_blocks > n_select;
    if (selects) {
        for (int i = threadIdx.x; i < N_DIGITS * BINS; i += THREADS)
            ((uint32_t *)shared.histogram)[i] = 0;
        __syncthreads();
    }
    previous_wait(stamp);
    next_start(); /* not before: the blocks of attend would crowd onto the few multiprocessors that prepare leaves */
    if (!selects) return;
    if (n_blocks <= TILE)
        select_blocks<1>(scores, n_blocks, n_select, blocks, shared);
    else
        select_blocks<4>(scores, n_blocks, n_select, blocks, shared);
}

} // namespace

status_t launch_qsa_m1_select(const qsa_select_args_t *args, const float *scores, const device_queue_t *queue) {
    launch_kernel(queue, qsa_m1_select_f32_kernel, 1, THREADS, 0, args->start_pos, (int)args->shape.n_select, scores,
                  args->blocks);
    return queue_check_launch("qsa_select");
}
