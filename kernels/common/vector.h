#ifndef GALVANI_KERNELS_COMMON_VECTOR_H
#define GALVANI_KERNELS_COMMON_VECTOR_H

/* FP32 vectors of the machine's own width, for the CPU reference. A product is rounded before it is added (no FMA), and
 * every sum has LANES partial sums whatever the width, so the bits are the same on every machine. */

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__AVX512F__)
#define VECTOR_WIDTH 16
#elif defined(__AVX2__)
#define VECTOR_WIDTH 8
#else
#define VECTOR_WIDTH 4
#endif

/* A sum over i keeps partial sum i % LANES; lanes_sum adds them up as a tree. */
#define LANES 16
#define VECTORS_PER_LANES (LANES / VECTOR_WIDTH)

typedef float vector_t __attribute__((vector_size(VECTOR_WIDTH * 4)));
typedef int32_t vector_i32_t __attribute__((vector_size(VECTOR_WIDTH * 4)));
typedef uint32_t vector_u32_t __attribute__((vector_size(VECTOR_WIDTH * 4)));
typedef uint16_t vector_u16_t __attribute__((vector_size(VECTOR_WIDTH * 2)));

#define VECTOR_INLINE static inline __attribute__((always_inline))

VECTOR_INLINE vector_t vector_load(const float *x) {
    vector_t v;
    memcpy(&v, x, sizeof v);
    return v;
}

VECTOR_INLINE void vector_store(float *x, vector_t v) { memcpy(x, &v, sizeof v); }

/* The first n <= VECTOR_WIDTH values; the others read as zero and are not written. */
VECTOR_INLINE vector_t vector_load_first(const float *x, int64_t n) {
    if (n >= VECTOR_WIDTH) return vector_load(x);
    vector_t v = {0};
    memcpy(&v, x, (size_t)n * sizeof *x);
    return v;
}

VECTOR_INLINE void vector_store_first(float *x, vector_t v, int64_t n) {
    if (n >= VECTOR_WIDTH)
        vector_store(x, v);
    else
        memcpy(x, &v, (size_t)n * sizeof *x);
}

VECTOR_INLINE vector_t vector_set(float x) { return (vector_t){0} + x; }

VECTOR_INLINE vector_t vector_from_bits(vector_u32_t bits) { return (vector_t)bits; }

/* mask ? a : b; masks are what comparisons give, all ones or zero in each place. */
VECTOR_INLINE vector_t vector_select(vector_i32_t mask, vector_t a, vector_t b) {
    return (vector_t)((mask & (vector_i32_t)a) | (~mask & (vector_i32_t)b));
}

VECTOR_INLINE float lanes_sum(const vector_t sums[VECTORS_PER_LANES]) {
    typedef float eight_t __attribute__((vector_size(32)));
    typedef float four_t __attribute__((vector_size(16)));
    eight_t eight[2];
    memcpy(eight, sums, sizeof eight);
    eight[0] += eight[1];
    four_t four[2];
    memcpy(four, eight, sizeof four);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

#ifdef __cplusplus
}
#endif
#endif
