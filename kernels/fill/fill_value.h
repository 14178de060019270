#ifndef GALVANI_KERNELS_FILL_VALUE_H
#define GALVANI_KERNELS_FILL_VALUE_H

/* The arithmetic of fill, shared by all backends: integers, and one multiplication in FP32, so that no compiler can
 * round it in two ways. */

#include <stdint.h>

#include "fill/fill.h"

#ifdef __CUDACC__
#define FILL_FUNCTION static __host__ __device__ inline
#else
#define FILL_FUNCTION static inline
#endif

/* The random word of a block of the stream `key`: output number `block` of SplitMix64 (Steele, Lea, Flood 2014). */
FILL_FUNCTION uint64_t fill_block(uint64_t key, uint64_t block) {
    uint64_t z = key + (block + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

enum { FILL_BLOCK_BYTES = 8, FILL_BLOCK_NUMBERS = 4 };

/* A block gives 8 items of one byte, or 4 of another type; item `place` of the block takes these bits. */
FILL_FUNCTION uint32_t fill_lane8(uint64_t word, int place) { return (uint32_t)(word >> 8 * place) & 0xFF; }
FILL_FUNCTION uint32_t fill_lane16(uint64_t word, int place) { return (uint32_t)(word >> 16 * place) & 0xFFFF; }

/* The item of one byte, and the number before it is rounded to its type. */
FILL_FUNCTION uint8_t fill_byte(const fill_rule_t *rule, uint64_t word, int place) {
    return (uint8_t)((fill_lane8(word, place) & rule->mask) + (uint32_t)rule->offset);
}
FILL_FUNCTION float fill_number(const fill_rule_t *rule, uint64_t word, int place) {
    return (float)((int32_t)(fill_lane16(word, place) & rule->mask) + rule->offset) * rule->unit;
}

#endif
