#ifndef GALVANI_KERNELS_LINEAR_GEMV_M1_CUH
#define GALVANI_KERNELS_LINEAR_GEMV_M1_CUH

/* Matrix times one vector, FP16, Q8 or QPN8 weights, FP32 sums: the form of decode. All weights of a thread are on
 * their way before it waits for the kernel that makes x. */

#include "device/device.cuh"
#include "device/launch.cuh"
#include "linear/dense8.cuh"

typedef struct gemv_m1 {
    int64_t rows;
    int n_words;    /* 16-byte words of a row: columns / 8 for FP16, / 16 for 8 bits */
    int n_scales;   /* of a row */
    const uint4 *w; /* [rows, n_words] */
    const void *scales;
    const __half *x; /* [columns], aligned to 16 bytes */
} gemv_m1_t;

/* Not to be kept in L1: no weight is read twice. Volatile, so that it stays before previous_wait. */
static __device__ __forceinline__ uint4 load_weights(const uint4 *address) {
    uint4 word;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(address));
    return word;
}

/* FP16 words of each row against the same part of x. */
template <int ROWS>
static __device__ __forceinline__ void multiply_f16(const uint4 words[ROWS], const uint4 part[1], float sums[ROWS]) {
    float x[8];
    unpack8(part[0], x);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float values[8];
        unpack8(words[r], values);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sums[r] = fmaf(values[i], x[i], sums[r]);
    }
}

/* Words of 8-bit codes of each row against the same part of x, without scales.
 *
 * With tensor cores a warp's 32 words of a row are taken as eight rows of 64 columns, and the 512 values of x that lie
 * under them as eight columns: of the eight by eight products those on the diagonal are wanted, and lane l holds the
 * one of row l / 4 if l % 4 is l / 8, in the place (l / 4) % 2. In `products` it is; other lanes hold products that
 * nobody wants. Two rows of the matrix share an mma. Without, each lane has the product of its own word. */
template <dtype_t DTYPE, int ROWS>
static __device__ __forceinline__ void multiply_codes(const uint4 words[ROWS], const uint4 part[2],
                                                      float products[ROWS][2]) {
    const uint32_t x[8] = {part[0].x, part[0].y, part[0].z, part[0].w, part[1].x, part[1].y, part[1].z, part[1].w};
#pragma unroll
    for (int r = 0; r < ROWS; r += 2) {
        const uint32_t codes[2][4] = {{words[r].x, words[r].y, words[r].z, words[r].w},
                                      {words[r + 1].x, words[r + 1].y, words[r + 1].z, words[r + 1].w}};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w[2][2];
            dense8_halves4<DTYPE>(codes[0][i], w[0]);
            dense8_halves4<DTYPE>(codes[1][i], w[1]);
#if __CUDA_ARCH__ >= 800
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+f"(products[r][0]), "+f"(products[r][1]), "+f"(products[r + 1][0]), "+f"(products[r + 1][1])
                : "r"(w[0][0]), "r"(w[1][0]), "r"(w[0][1]), "r"(w[1][1]), "r"(x[2 * i]), "r"(x[2 * i + 1]));
#else
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 value = __half22float2(half2_of_bits(x[2 * i + j]));
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    float2 weight = __half22float2(half2_of_bits(w[s][j]));
                    products[r + s][0] = fmaf(weight.y, value.y, fmaf(weight.x, value.x, products[r + s][0]));
                }
            }
#endif
        }
    }
}

/* What of its products is this lane's. */
static __device__ __forceinline__ float own_product(const float products[2]) {
#if __CUDA_ARCH__ >= 800
    int lane = threadIdx.x % WARP;
    float product = lane / 4 % 2 ? products[1] : products[0];
    return lane % 4 == lane / 8 ? product : 0.0f;
#else
    return products[0];
#endif
}

/* How a matrix is spread: ROWS rows (a power of two) are a group, shared by WARPS warps; GROUPS groups make a block. A
 * lane takes the words lane, lane + 32 WARPS, ... of each row of its group, WORDS at most. EXACT: rows have just
 * MAX_WORDS words, so that nothing is left to ask. */
template <dtype_t TYPE, int WARPS_, int GROUPS_, int ROWS_, int WORDS_, bool EXACT_> struct m1_form {
    static constexpr dtype_t DTYPE = TYPE;
    static constexpr int WARPS = WARPS_, GROUPS = GROUPS_, ROWS = ROWS_, WORDS = WORDS_;
    static constexpr int LANES = WARPS * WARP, THREADS = GROUPS * LANES, BLOCK_ROWS = GROUPS * ROWS;
    static constexpr int MAX_WORDS = LANES * WORDS; /* of a row */
    static constexpr int PER_WORD = TYPE == DTYPE_F16 ? 8 : 16;
    static constexpr bool EXACT = EXACT_;
};

/* The sums of `values` over a warp: that of row r in the lanes r * 32 / ROWS and up, ROWS of them in all. Halves of the
 * warp exchange half of the rows, until each lane has one. */
template <int ROWS> static __device__ __forceinline__ float rows_sum(const float values[ROWS]) {
    if constexpr (ROWS == 1) {
        return lanes_sum<WARP>(values[0]);
    } else {
        constexpr int HALF = ROWS / 2;
        float kept[HALF];
        int lane = threadIdx.x % WARP, offset = WARP / 2;
        bool upper = lane & offset;
#pragma unroll
        for (int r = 0; r < HALF; r++) {
            float given = upper ? values[r] : values[r + HALF];
            kept[r] = (upper ? values[r + HALF] : values[r]) + __shfl_xor_sync(0xffffffffu, given, offset);
        }
        if constexpr (HALF == 1) return lanes_sum<WARP / 2>(kept[0]);
        bool upper_quarter = lane & (offset / 2);
        static_assert(HALF <= 2, "ROWS is 1, 2 or 4");
        float given = upper_quarter ? kept[0] : kept[HALF - 1];
        float sum = (upper_quarter ? kept[HALF - 1] : kept[0]) + __shfl_xor_sync(0xffffffffu, given, offset / 2);
        return lanes_sum<WARP / 4>(sum);
    }
}

/* What else is done behind the wait, and whether the next kernel may start before it. */
struct no_work {
    static constexpr bool STARTS_EARLY = true;
    __device__ __forceinline__ void operator()() const {}
};

/* The block's rows from `first_row` on, times x, by all threads of the block; `behind_wait` is called where earlier
 * kernels are complete and nothing of theirs has been read. Where it returns true the thread has the
 * product of `row`; each row is some thread's, a few at the end of the matrix are two threads'. A block that calls it
 * again synchronizes in between. The matrix has ROWS rows or more. */
template <typename form, typename behind_wait_t = no_work>
static __device__ __forceinline__ bool gemv_m1(stamp_t stamp, const gemv_m1_t &args, int first_row, int *row,
                                               float *product, const behind_wait_t &behind_wait = {}) {
    constexpr int ROWS = form::ROWS, WORDS = form::WORDS, LANES = form::LANES;
    constexpr bool IS_F16 = form::DTYPE == DTYPE_F16, IS_Q8 = form::DTYPE == DTYPE_Q8;
    const int lane = form::GROUPS == 1 ? threadIdx.x : threadIdx.x % LANES;
    const int group = form::GROUPS == 1 ? 0 : threadIdx.x / LANES;
    const int n_words = form::EXACT ? form::MAX_WORDS : args.n_words;
    const int n_scales = form::EXACT ? form::MAX_WORDS / 4 : args.n_scales;
    /* Groups at the end go back to where there are ROWS rows. */
    first_row = min(first_row + group * ROWS, (int)args.rows - ROWS);

    uint4 words[WORDS][ROWS];
    __half scales[WORDS][ROWS];
    const uint4 *w = args.w + (uint32_t)first_row * (uint32_t)n_words;
    const __half *s = (const __half *)args.scales + (uint32_t)first_row * (uint32_t)n_scales;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        /* A word past the end is the last one again, against zeros for x. */
        int word = form::EXACT ? lane + i * LANES : min(lane + i * LANES, n_words - 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            words[i][r] = load_weights(w + r * n_words + word);
    }
    if (IS_Q8) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            /* That of the lane's group of four, which may hold words though this lane's is past the end. */
            int scale = form::EXACT ? (lane + i * LANES) / 4 : min((lane + i * LANES) / 4, n_scales - 1);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                scales[i][r] = __ldg(s + r * n_scales + scale);
        }
    }
    if (behind_wait_t::STARTS_EARLY) next_start();
    previous_wait(stamp);
    behind_wait();

    float sums[ROWS] = {}, products[ROWS][2] = {};
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint4 x[form::PER_WORD / 8];
        bool inside = form::EXACT || lane + i * LANES < n_words;
#pragma unroll
        for (int j = 0; j < form::PER_WORD / 8; j++)
            x[j] = inside ? ((const uint4 *)args.x)[(lane + i * LANES) * (form::PER_WORD / 8) + j]
                          : make_uint4(0, 0, 0, 0);
        if constexpr (IS_F16) {
            multiply_f16<ROWS>(words[i], x, sums);
        } else {
            multiply_codes<form::DTYPE, ROWS>(words[i], x, products);
            if (IS_Q8) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    sums[r] = fmaf(__half2float(scales[i][r]), own_product(products[r]), sums[r]);
                    products[r][0] = products[r][1] = 0.0f;
                }
            }
        }
    }
    if (form::DTYPE == DTYPE_QPN8) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sums[r] = own_product(products[r]);
    }
    float sum = rows_sum<ROWS>(sums);
    bool has_row = lane % (WARP / ROWS) == 0;
    int at = lane / (WARP / ROWS);
    if constexpr (form::WARPS > 1) {
        __shared__ float partial[form::GROUPS][form::WARPS][ROWS];
        if (has_row) partial[group][lane / WARP][at % ROWS] = sum;
        __syncthreads();
        has_row = lane < ROWS;
        at = lane;
        sum = 0.0f;
        if (has_row) {
#pragma unroll
            for (int warp = 0; warp < form::WARPS; warp++)
                sum += partial[group][warp][lane];
        }
    }
    if (!has_row) return false;
    *row = first_row + at;
    *product = form::DTYPE == DTYPE_QPN8 ? sum * __ldg((const float *)args.scales + *row) : sum;
    return true;
}

/* Calls `use` with the form for rows of n_words words, those that were measured to be the fastest at the shapes of
 * decode. It depends on nothing else, so a rank's rows sum in the same order on any tp_size. */
template <dtype_t DTYPE, int WARPS, int GROUPS, int ROWS, int WORDS, typename use_t>
static void gemv_m1_use(int n_words, const use_t &use) {
    if (n_words == m1_form<DTYPE, WARPS, GROUPS, ROWS, WORDS, true>::MAX_WORDS)
        use(m1_form<DTYPE, WARPS, GROUPS, ROWS, WORDS, true>{});
    else
        use(m1_form<DTYPE, WARPS, GROUPS, ROWS, WORDS, false>{});
}

template <dtype_t DTYPE, typename use_t> static void gemv_m1_with_form(int n_words, const use_t &use) {
    if constexpr (DTYPE == DTYPE_F16) {
        if (n_words <= 32) return gemv_m1_use<DTYPE, 1, 4, 2, 1>(n_words, use);
        if (n_words <= 64) return gemv_m1_use<DTYPE, 2, 2, 2, 1>(n_words, use);
        if (n_words <= 192) return gemv_m1_use<DTYPE, 2, 2, 1, 3>(n_words, use);
        if (n_words <= 320) return gemv_m1_use<DTYPE, 2, 2, 1, 5>(n_words, use);
        if (n_words <= 384) return gemv_m1_use<DTYPE, 6, 1, 2, 2>(n_words, use);
        return gemv_m1_use<DTYPE, 12, 1, 2, 2>(n_words, use);
    } else {
        if (n_words <= 32) return gemv_m1_use<DTYPE, 1, 4, 2, 1>(n_words, use);
        if (n_words <= 96) return gemv_m1_use<DTYPE, 3, 1, 4, 1>(n_words, use);
        if (n_words <= 160) return gemv_m1_use<DTYPE, 5, 1, 4, 1>(n_words, use);
        if (n_words <= 192) return gemv_m1_use<DTYPE, 3, 1, 4, 2>(n_words, use);
        if (DTYPE == DTYPE_QPN8) return gemv_m1_use<DTYPE, 4, 1, 4, 3>(n_words, use);
        return gemv_m1_use<DTYPE, 12, 1, 4, 1>(n_words, use);
    }
}
enum { GEMV_M1_MAX_F16_WORDS = 768, GEMV_M1_MAX_CODE_WORDS = 384, GEMV_M1_MIN_ROWS = 4 };

/* Why a matrix and a vector cannot go through gemv_m1; NULL where they can. */
static inline const char *gemv_m1_refusal(const matrix_t *weight, const void *x) {
    bool is_f16 = weight->dtype == DTYPE_F16;
    int64_t per_word = is_f16 ? 8 : 16, most = is_f16 ? GEMV_M1_MAX_F16_WORDS : GEMV_M1_MAX_CODE_WORDS;
    if (!is_f16 && !dense8_is_format(weight->dtype)) return "weights are not FP16, Q8 or QPN8";
    if (weight->columns % per_word || (uintptr_t)weight->data % 16 || (uintptr_t)x % 16)
        return "rows are not whole aligned words of 16 bytes";
    if (weight->columns / per_word > most) return "rows are longer than 6144";
    if (weight->rows < GEMV_M1_MIN_ROWS) return "fewer than 4 rows";
    return weight->rows > INT32_MAX / (weight->columns / per_word) ? "the matrix is too large" : NULL;
}

static inline gemv_m1_t gemv_m1_args(const matrix_t *weight, const void *x) {
    gemv_m1_t args = {};
    args.rows = weight->rows;
    args.n_words = (int)(weight->columns / (weight->dtype == DTYPE_F16 ? 8 : 16));
    args.n_scales = (int)dense8_row_scales(weight->dtype, weight->columns);
    args.w = (const uint4 *)weight->data;
    args.scales = weight->scales;
    args.x = (const __half *)x;
    return args;
}

#endif
