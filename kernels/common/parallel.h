#ifndef GALVANI_KERNELS_COMMON_PARALLEL_H
#define GALVANI_KERNELS_COMMON_PARALLEL_H

/* An op is split over threads only when it has at least this many multiply-adds: waking the threads takes some
 * microseconds, which is what one core needs for about as many. No result depends on the split. */
#define PARALLEL_MIN_WORK 65536

/* Rows of a weight matrix that one thread takes at once: enough tiles to be worth a turn, few enough to spread a small
 * matrix over many cores. */
#define PARALLEL_ROWS 32

/* Tokens worked on together: their activations stay in the cache of one core, and workspace is bounded by it. */
#define PARALLEL_TOKENS 64

#endif
