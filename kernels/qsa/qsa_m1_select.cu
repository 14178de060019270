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
    PER_WORD = 4,           /* keys that a lane reads at once */
    CHUNK = WARP * PER_WORD /* and a warp */
};

/* Bits of a key from here on make a digit. A score's sign bit is 0, so 31 bits are enough. */
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

__device__ __forceinline__ uint32_t lanes_total(uint32_t value) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Counting from the last lane down, the lane in which the count reaches `wanted`. `wanted` becomes what is left to find
 * in it. */
__device__ __forceinline__ int lane_that_reaches(uint32_t value, uint32_t &wanted) {
    uint32_t prefix = lanes_prefix(value), above = __shfl_sync(0xffffffffu, prefix, WARP - 1) - prefix;
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
    digit_t digit;
};

/* The bin, from the highest down, in which the count reaches `wanted`; by all threads. */
__device__ __forceinline__ digit_t find_digit(shared_t &shared, int digit, uint32_t wanted) {
    constexpr int WORDS = BINS / 4 / WARPS; /* of four bins, one a lane */
    static_assert(WORDS == WARP, "");
    int lane = threadIdx.x % WARP;
    uint4 word = shared.histogram[digit][threadIdx.x];
    uint32_t sum = lanes_total(word.x + word.y + word.z + word.w);
    if (lane == 0) shared.warp_sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x < WARP) { /* one warp: shuffles of all at once would wait for each other */
        int warp = lane_that_reaches(lane < WARPS ? shared.warp_sums[lane] : 0, wanted);
        word = shared.histogram[digit][warp * WORDS + lane];
        int at = lane_that_reaches(word.x + word.y + word.z + word.w, wanted);
        if (lane == at) {
            uint32_t bin = 3, count = word.w;
            auto descend = [&](uint32_t next_bin, uint32_t next_count) {
                if (bin != next_bin + 1 || count >= wanted) return;
                wanted -= count, bin = next_bin, count = next_count;
            };
            descend(2, word.z), descend(1, word.y), descend(0, word.x);
            shared.digit = {(uint32_t)(warp * WORDS + lane) * 4 + bin, wanted, count == wanted};
        }
    }
    __syncthreads();
    return shared.digit;
}

/* The scores of PER_WORD neighbouring blocks. */
__device__ __forceinline__ uint4 load_keys(const float *scores, int first, int n_blocks) {
    float4 word = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first < n_blocks) word = *(const float4 *)(scores + first);
    return {key_of(word.x), key_of(word.y), key_of(word.z), key_of(word.w)};
}

/* A warp has CHUNKS chunks of keys in registers: all of its run, or as many at a time. */
template <int CHUNKS>
__device__ __forceinline__ void select_blocks(const float *scores, int n_blocks, int n_select, int32_t *blocks,
                                              shared_t &shared) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int run = (n_blocks + WARPS * CHUNK - 1) / (WARPS * CHUNK) * CHUNK, start = warp * run;
    int end = min(start + run, n_blocks);
    uint4 keys[CHUNKS];
    auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            keys[i] = load_keys(scores, first + i * CHUNK + lane * PER_WORD, end);
    };
    bool is_kept = run <= CHUNKS * CHUNK;
    if (is_kept) load(start);
    /* visit(first block, its four keys), for the lane's words in rising order; all lanes together */
    auto for_each_word = [&](auto visit) {
        for (int first = start; first < end; first += CHUNKS * CHUNK) {
            if (!is_kept) load(first);
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                uint32_t word[PER_WORD] = {keys[i].x, keys[i].y, keys[i].z, keys[i].w};
                if (first + i * CHUNK < end) visit(first + i * CHUNK + lane * PER_WORD, word);
            }
        }
    };

    uint32_t threshold = 0, mask = 0, wanted = (uint32_t)n_select; /* of the keys that share the bits found so far */
#pragma unroll
    for (int digit = 0; digit < N_DIGITS; digit++) {
        int shift = shift_of(digit);
        uint32_t *histogram = (uint32_t *)shared.histogram[digit];
        for_each_word([&](int first, const uint32_t word[PER_WORD]) {
#pragma unroll
            for (int i = 0; i < PER_WORD; i++) {
                if ((word[i] & mask) == threshold && first + i < end)
                    atomicAdd(&histogram[word[i] >> shift & (BINS - 1) & ~(mask >> shift)], 1u);
            }
        });
        __syncthreads();
        digit_t found = find_digit(shared, digit, wanted);
        threshold |= found.bin << shift;
        mask |= (uint32_t)(BINS - 1) << shift & 0x7fffffffu;
        wanted = found.wanted;
        if (found.takes_all) break; /* whatever their other bits */
    }

    /* Counts of two kinds in one word: equal to the threshold above, greater below. The upper one may overflow behind
     * the last block, where nothing reads it. */
    auto counts_of = [&](int first, const uint32_t word[PER_WORD]) {
        uint32_t counts = 0;
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            uint32_t key = word[i] & mask;
            if (first + i < end) counts += (uint32_t)(key == threshold) << 16 | (uint32_t)(key > threshold);
        }
        return counts;
    };
    uint32_t own = 0;
    for_each_word([&](int first, const uint32_t word[PER_WORD]) { own += counts_of(first, word); });
    own = lanes_total(own);
    if (lane == 0) shared.warp_sums[warp] = own;
    __syncthreads();
    uint32_t before = lanes_total(lane < warp ? shared.warp_sums[lane] : 0);
    for_each_word([&](int first, const uint32_t word[PER_WORD]) {
        uint32_t counts = counts_of(first, word), prefix = lanes_prefix(counts);
        uint32_t equal = (before + prefix - counts) >> 16, above = (before + prefix - counts) & 0xffffu;
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            uint32_t key = word[i] & mask;
            bool is_above = key > threshold && first + i < end, is_equal = key == threshold && first + i < end;
            if (is_above || (is_equal && equal < wanted)) blocks[above + min(equal, wanted)] = first + i;
            above += is_above;
            equal += is_equal;
        }
        before += __shfl_sync(0xffffffffu, prefix, WARP - 1);
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
    if (n_blocks <= 2 * CHUNK * WARPS)
        select_blocks<2>(scores, n_blocks, n_select, blocks, shared);
    else
        select_blocks<8>(scores, n_blocks, n_select, blocks, shared);
}

} // namespace

status_t launch_qsa_m1_select(const qsa_select_args_t *args, const float *scores, const device_queue_t *queue) {
    launch_kernel(queue, qsa_m1_select_f32_kernel, 1, THREADS, 0, args->start_pos, (int)args->shape.n_select, scores,
                  args->blocks);
    return queue_check_launch("qsa_select");
}
