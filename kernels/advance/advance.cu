#include "advance/advance.h"
#include "device/device.cuh"
#include "device/launch.cuh"
#include "push/push.cuh"

namespace {

__device__ __forceinline__ int64_t clock_ns() {
    int64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* What advance_args_t points to of other ranks', by value. */
struct ranks {
    int n;
    push_args_t push;
};

/* One warp; some hundred bytes. Lane r has rank r's pair; all lanes find the same best one, by the rule of
 * sampler_best_pair. */
__global__ void __launch_bounds__(WARP)
    advance_kernel(stamp_t stamp, const __grid_constant__ advance_args_t args, const __grid_constant__ ranks all) {
    const int lane = (int)threadIdx.x;
    previous_wait(stamp);
    token_pair_t own = *args.pair;
    uint2 pair = make_uint2(__float_as_uint(own.value), (uint32_t)own.token);
    if (all.n > 1) pair = push_exchange(all.push, lane, pair);

    float value = __uint_as_float(__shfl_sync(0xffffffffu, pair.x, 0));
    int32_t token = (int32_t)__shfl_sync(0xffffffffu, pair.y, 0);
    for (int rank = 1; rank < all.n; rank++) {
        float other = __uint_as_float(__shfl_sync(0xffffffffu, pair.x, rank));
        int32_t other_token = (int32_t)__shfl_sync(0xffffffffu, pair.y, rank);
        bool is_better = other > value || (other == value && other_token < token);
        if (token >= 0 && (other_token < 0 || is_better)) {
            value = other;
            token = other_token;
        }
    }

    int64_t source = lane + args.n_tokens; /* in the old context followed by the tokens, see sequence_advance */
    int32_t before = 0;
    if (lane < args.n_context)
        before = source < args.n_context ? args.context[source] : args.tokens[source - args.n_context];
    uint64_t number = *args.n_records;
    advance_record_t *record = &args.records[number % ADVANCE_N_RECORDS];
    __syncwarp();
    if (lane < args.n_context) args.context[lane] = before;
    if (lane < all.n) record->pairs[lane] = token_pair_t{__uint_as_float(pair.x), (int32_t)pair.y};
    if (lane == 0) {
        args.tokens[0] = max(token, 0);
        *args.start_pos += args.n_tokens;
        *args.n_records = number + 1;
        record->token = token;
        record->begin_ns = *args.begin_ns;
        record->end_ns = clock_ns();
    }
    __threadfence_system();
    __syncwarp();
    if (lane == 0) *(volatile uint64_t *)&record->number = number + 1;
}

} // namespace

status_t launch_advance(const advance_args_t *args, const device_queue_t *queue) {
    ranks all = {};
    all.n = 1;
    if (args->push) {
        all.n = args->push->tp_size;
        all.push = *args->push;
    }
    if (args->n_context > ADVANCE_MAX_CONTEXT || all.n > ADVANCE_MAX_RANKS)
        return status_fail(STATUS_DEVICE, "CUDA: advance takes up to %d ranks and %d tokens of context",
                           (int)ADVANCE_MAX_RANKS, (int)ADVANCE_MAX_CONTEXT);
    launch_kernel(queue, advance_kernel, 1, WARP, 0, *args, all);
    return queue_check_launch("advance");
}
