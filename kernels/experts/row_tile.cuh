#ifndef GALVANI_KERNELS_EXPERTS_ROW_TILE_CUH
#define GALVANI_KERNELS_EXPERTS_ROW_TILE_CUH

/* One warp, 16 matrix rows, one vector. Lane 4 g + t holds a piece of row g and of row g + 8 and knows the same piece
 * of the vector; the four lanes of a row hold different pieces. The order of the columns is free as long as weights and
 * vector agree on it.
 *
 * From sm_80 on, the sums come from the tensor cores: the weights are the matrix, the vector is its only needed column.
 * Products are exact there and sums FP32, as in the form for older devices, with one conversion and one FMA a weight
 * less. */

#include "experts/nvfp4.cuh"

enum { TILE_ROWS = 16 };

struct row_sums {
    float even[4], odd[4]; /* two chains; of each, [0] belongs to row g and [2] to row g + 8 */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
static __device__ __forceinline__ float add_pair(float sum, uint32_t weights, uint32_t x) {
    float2 pair = __half22float2(*(const __half2 *)&weights), value = __half22float2(*(const __half2 *)&x);
    return fmaf(pair.y, value.y, fmaf(pair.x, value.x, sum));
}
#endif

/* Adds four weights of row g (low0, low1) and four of row g + 8, times four values of the vector, all in FP16 pairs. */
static __device__ __forceinline__ void add_products(float sums[4], uint32_t low0, uint32_t low1, uint32_t high0,
                                                    uint32_t high1, uint32_t x0, uint32_t x1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(low0), "r"(high0), "r"(low1), "r"(high1), "r"(x0), "r"(x1));
#else
    sums[0] = add_pair(add_pair(sums[0], low0, x0), low1, x1);
    sums[2] = add_pair(add_pair(sums[2], high0, x0), high1, x1);
#endif
}

/* The sums of row g and of row g + 8 over what the row's four lanes have added, in each of these lanes. */
static __device__ __forceinline__ float2 finish_rows(const row_sums &sums) {
    float2 rows = make_float2(sums.even[0] + sums.odd[0], sums.even[2] + sums.odd[2]);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
    rows = make_float2(lanes_sum<4>(rows.x), lanes_sum<4>(rows.y));
#endif
    return rows;
}

/* The form for eight lanes a row, so that a warp reads whole lines of 128 bytes: lane 8 r + l holds the pieces of rows
 * r and r + 4 whose numbers are l modulo 8, and knows those of the vector. To the tensor cores these are rows 2 r and
 * 2 r + 1 of the tile, and the vector's pieces columns: even columns hold those of even rows, odd ones of odd rows.
 * Gives the sums of rows r and r + 4 in each of these lanes. */
static __device__ __forceinline__ float2 finish_whole_lines(const row_sums &sums) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    int own = threadIdx.x / 4 % 2; /* of the two columns that this lane has */
    float2 rows = make_float2(own ? sums.even[1] + sums.odd[1] : sums.even[0] + sums.odd[0],
                              own ? sums.even[3] + sums.odd[3] : sums.even[2] + sums.odd[2]);
#else
    float2 rows = finish_rows(sums);
#endif
    rows.x += __shfl_xor_sync(0xFFFFFFFFu, rows.x, 4);
    rows.y += __shfl_xor_sync(0xFFFFFFFFu, rows.y, 4);
    return rows;
}

/* Eight FP16 weights of each row and the vector's values in the same order. */
static __device__ __forceinline__ void add_f16(row_sums &sums, uint4 low, uint4 high, uint4 x) {
    add_products(sums.even, low.x, low.y, high.x, high.y, x.x, x.y);
    add_products(sums.odd, low.z, low.w, high.z, high.w, x.z, x.w);
}

/* What a lane holds of one row in one step: BLOCKS NVFP4 blocks and their scales. */
template <int BLOCKS> struct nvfp4_piece;
template <> struct nvfp4_piece<1> {
    uint2 codes;
    uint8_t scales;
};
template <> struct nvfp4_piece<2> {
    uint4 codes;
    uint16_t scales;
};

template <int BLOCKS>
static __device__ __forceinline__ void load_codes(const uint8_t *codes, int piece, nvfp4_piece<BLOCKS> *loaded) {
    loaded->codes = __ldg((const decltype(loaded->codes) *)codes + piece);
}

/* From shared memory: scales are few bytes of many lines, so a block copies those of all its rows at once. */
template <int BLOCKS>
static __device__ __forceinline__ void read_scales(const uint8_t *scales, int piece, nvfp4_piece<BLOCKS> *loaded) {
    loaded->scales = ((const decltype(loaded->scales) *)scales)[piece];
}

/* An E4M3 scale times 2^7, twice. */
static __device__ __forceinline__ __half2 scale_pair(uint32_t code) {
    uint32_t high = code * 0x01000100u;
    uint32_t bits = (high & 0x80008000u) | (high >> 1 & 0x3F803F80u);
    return __hmul2(*(const __half2 *)&bits, __float2half2_rn(32768.0f));
}

#define NVFP4_TILE_FACTOR 128.0f /* what sums of add_nvfp4 are still to be multiplied with, besides scale_2 */

/* A piece of each row; code times scale is exact in FP16. `x`: the vector's piece in the order of permute8. */
template <int BLOCKS>
static __device__ __forceinline__ void add_nvfp4(row_sums &sums, const nvfp4_piece<BLOCKS> &low,
                                                 const nvfp4_piece<BLOCKS> &high, const uint4 *x) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        __half2 low_scale = scale_pair(low.scales >> 8 * block & 0xFF),
                high_scale = scale_pair(high.scales >> 8 * block & 0xFF);
#pragma unroll
        for (int word = 2 * block; word < 2 * block + 2; word++) {
            __half2 low_pairs[4], high_pairs[4];
            e2m1_to_scaled_pairs(((const uint32_t *)&low.codes)[word], low_pairs);
            e2m1_to_scaled_pairs(((const uint32_t *)&high.codes)[word], high_pairs);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                low_pairs[i] = __hmul2(low_pairs[i], low_scale);
                high_pairs[i] = __hmul2(high_pairs[i], high_scale);
            }
            const uint32_t *a = (const uint32_t *)low_pairs, *b = (const uint32_t *)high_pairs;
            uint4 values = x[word];
            add_products(sums.even, a[0], a[1], b[0], b[1], values.x, values.y);
            add_products(sums.odd, a[2], a[3], b[2], b[3], values.z, values.w);
        }
    }
}

/* Eight values in the order in which e2m1_to_scaled_pairs gives the codes of a word. */
static __device__ __forceinline__ uint4 permute8(uint4 values) {
    return make_uint4(__byte_perm(values.x, values.z, 0x5410), __byte_perm(values.x, values.z, 0x7632),
                      __byte_perm(values.y, values.w, 0x5410), __byte_perm(values.y, values.w, 0x7632));
}

/* The place of value i of eight in that order. */
static __device__ __forceinline__ int permuted_place(int i) { return i < 4 ? 2 * i : 2 * i - 7; }

/* Shared memory for a vector in pieces of BLOCKS blocks: four neighbouring pieces lie in different banks. */
template <int COLUMNS, int BLOCKS> struct permuted_vector {
    enum { PIECE_WORDS = 2 * BLOCKS, STRIDE = PIECE_WORDS + 1 };
    uint4 words[COLUMNS / (16 * BLOCKS) * STRIDE];
    __device__ __forceinline__ uint4 *word(int index) {
        return words + index / PIECE_WORDS * STRIDE + index % PIECE_WORDS;
    }
    __device__ __forceinline__ const uint4 *piece(int index) const { return words + index * STRIDE; }
};

/* Copies 16 bytes to shared memory, without a register where the device can; there when copies_wait has returned. */
static __device__ __forceinline__ void copy16(uint4 *shared, const void *global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    *shared = __ldcg((const uint4 *)global);
#endif
}

static __device__ __forceinline__ void copies_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#endif
