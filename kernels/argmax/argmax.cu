#include "argmax/argmax.h"
#include "device/device.cuh"
#include "device/launch.cuh"

enum { THREADS = 1024 };

/* Larger values first, lower ids among equals; a NaN or Inf, whose token is negative, before everything, the first
 * first. */
struct candidate {
    float value;
    int32_t token;
};

static __device__ __forceinline__ bool beats(candidate a, candidate b) {
    if (a.token < 0 || b.token < 0) return a.token < b.token;
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

static __device__ __forceinline__ candidate better(candidate a, candidate b) { return beats(b, a) ? b : a; }

static __device__ __forceinline__ candidate warp_best(candidate best) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        candidate other = {__shfl_xor_sync(0xffffffffu, best.value, offset),
                           __shfl_xor_sync(0xffffffffu, best.token, offset)};
        best = better(best, other);
    }
    return best;
}

/* One block; reads n_logits floats once. Any size. */
static __global__ void __launch_bounds__(THREADS) argmax_f32_kernel(stamp_t stamp, argmax_args_t args) {
    __shared__ candidate warps[WARP];
    previous_wait(stamp);
    next_start();
    candidate best = {-INFINITY, INT32_MAX};
    int64_t n = args.n_valid - args.first_token < args.n_logits ? args.n_valid - args.first_token : args.n_logits;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float value = args.logits[i];
        best = better(best, candidate{value, (int32_t)(isfinite(value) ? args.first_token + i : INT32_MIN + i)});
    }
    best = warp_best(best);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    best = warp_best(warps[threadIdx.x]);
    if (threadIdx.x == 0) *args.pair = token_pair_t{best.value, max(best.token, -1)};
}

status_t launch_argmax(const argmax_args_t *args, const device_queue_t *queue) {
    launch_kernel(queue, argmax_f32_kernel, 1, THREADS, 0, *args);
    return queue_check_launch("argmax");
}
