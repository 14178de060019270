#ifndef GALVANI_BASE_ARENA_H
#define GALVANI_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block of memory that is handed out piece by piece. With `base` NULL it only counts, so that the code that places
 * the pieces also tells how much memory they need: run it once to count, allocate, run it again. */
typedef struct arena {
    void *base;
    size_t used; /* SIZE_MAX where the sum does not fit in 64 bits */
} arena_t;

/* The next n items, aligned to 256 bytes; NULL while counting. */
void *arena_take(arena_t *arena, int64_t n, size_t item_bytes);
float *arena_floats(arena_t *arena, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
