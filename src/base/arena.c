#include "base/arena.h"

enum { ALIGNMENT = 256 };

void *arena_take(arena_t *arena, int64_t n, size_t item_bytes) {
    size_t bytes, end, offset = arena->used;
    if (__builtin_mul_overflow((size_t)n, item_bytes, &bytes) || __builtin_add_overflow(offset, bytes, &end) ||
        __builtin_add_overflow(end, ALIGNMENT - 1, &end)) {
        arena->used = SIZE_MAX;
        return NULL;
    }
    arena->used = end / ALIGNMENT * ALIGNMENT;
    return arena->base ? (char *)arena->base + offset : NULL;
}

float *arena_floats(arena_t *arena, int64_t n) { return arena_take(arena, n, sizeof(float)); }
