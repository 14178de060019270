#ifndef GALVANI_KERNELS_DEVICE_MMA_CUH
#define GALVANI_KERNELS_DEVICE_MMA_CUH

/* Tensor-core products of FP16 with FP32 sums, fragment by fragment, and what feeds them from shared memory. For sm_80
 * and newer: elsewhere GALVANI_HAS_MMA is 0, the functions do nothing, and a kernel that is made of them is left empty
 * (queue->mma_refusal keeps launchers from it).
 *
 * A fragment lies in a warp as the PTX manual has it for mma.m16n8k16, lane = 4 g + t:
 *   a (16 x 16): (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the column behind it
 *   b (16 x 8):  rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
 *   c (16 x 8):  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) */

#include "device/device.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define GALVANI_HAS_MMA 1
#else
#define GALVANI_HAS_MMA 0
#endif

struct fragment_a {
    uint32_t x[4];
};

/* c += a b */
__device__ __forceinline__ void mma_16816(float c[4], const fragment_a &a, uint32_t b0, uint32_t b1) {
#if GALVANI_HAS_MMA
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
#endif
}

/* Four 8 x 8 matrices of FP16 in shared memory; lane i gives the address of row i % 8 of matrix i / 8, 16-byte aligned.
 * x[i] holds (g, 2t), (g, 2t + 1) of matrix i, of its transpose with TRANSPOSED. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(uint32_t x[4], const void *row) {
#if GALVANI_HAS_MMA
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at));
#endif
}

/* The 16 x 16 tile at (row, column) of a matrix that lies by rows of `stride` values, as a. */
__device__ __forceinline__ fragment_a load_a(const __half *matrix, int stride, int row, int column) {
    fragment_a a = {};
    int lane = threadIdx.x % WARP;
    load_matrices<false>(a.x, matrix + (row + lane % 16) * stride + column + lane / 16 * 8);
    return a;
}

/* The same of the transpose: the tile at (row, column) of M, where M^T lies by rows. */
__device__ __forceinline__ fragment_a load_a_transposed(const __half *matrix, int stride, int row, int column) {
    fragment_a a = {};
    int lane = threadIdx.x % WARP;
    load_matrices<true>(a.x, matrix + (column + lane % 8 + lane / 16 * 8) * stride + row + lane / 8 % 2 * 8);
    return a;
}

/* b of a 16 x 16 tile: x[0], x[1] of the first eight columns, x[2], x[3] of the others. The tile begins at (k, n) of a
 * matrix [k, n] by rows. */
__device__ __forceinline__ void load_b(uint32_t x[4], const __half *matrix, int stride, int k, int n) {
    int lane = threadIdx.x % WARP;
    load_matrices<true>(x, matrix + (k + lane % 16) * stride + n + lane / 16 * 8);
}

/* The same of a matrix [n, k] by rows. */
__device__ __forceinline__ void load_b_transposed(uint32_t x[4], const __half *matrix, int stride, int k, int n) {
    int lane = threadIdx.x % WARP;
    load_matrices<false>(x, matrix + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
}

__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Two neighbouring c tiles (16 x 16 together) rounded to an a. */
__device__ __forceinline__ fragment_a pack_a(const float left[4], const float right[4]) {
    return fragment_a{{pack_halves(left[0], left[1]), pack_halves(left[2], left[3]), pack_halves(right[0], right[1]),
                       pack_halves(right[2], right[3])}};
}

/* Sixteen bytes from global to shared memory, on their own until copies_wait; zeros where not `there` (the address must
 * be a good one all the same). */
__device__ __forceinline__ void copy_16(void *shared, const void *global, bool there) {
#if GALVANI_HAS_MMA
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(global), "r"(there ? 16 : 0)
        : "memory");
#endif
}

/* Ends a group of this thread's copies. */
__device__ __forceinline__ void copies_commit() {
#if GALVANI_HAS_MMA
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until all but the last N of this thread's groups are done. */
template <int N> __device__ __forceinline__ void copies_wait() {
#if GALVANI_HAS_MMA
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
