#include "linear/gemv_m1.cuh"
#include "linear/linear.h"
#include "lm_head/lm_head.h"

/* Logits and their argmax in one launch. Blocks stride over the rows; each puts the best of its logits into state[0],
 * as a number that is the larger the better, by an integer maximum, which any order of blocks leaves the same. The last
 * block, told by a count in state[1], turns it into the pair. */

namespace {

enum { SM_THREADS = 1024 }; /* as many blocks as give every multiprocessor so many threads */

/* Falls from what beats everything: a logit that is NaN or Inf, the first of them; then by value, the lowest id among
 * equals, -0 as +0. Never 0. */
__device__ __forceinline__ unsigned long long rank_of(float logit, uint32_t index) {
    uint32_t bits = __float_as_uint(logit + 0.0f);
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    if (!isfinite(logit)) bits = 0xFFFFFFFFu;
    return (unsigned long long)bits << 32 | ~index;
}

/* Reads the matrix once, 2 bytes a weight; 16-byte rows of at most form::MAX_WORDS words. */
template <typename form>
__global__ void __launch_bounds__(form::THREADS, 1)
    lm_head_f16_kernel(stamp_t stamp, gemv_m1_t gemv, lm_head_args_t args) {
    __shared__ unsigned long long ranks[form::THREADS / WARP];
    unsigned long long best = 0;
    for (int64_t first = (int64_t)blockIdx.x * form::BLOCK_ROWS; first < gemv.rows;
         first += (int64_t)gridDim.x * form::BLOCK_ROWS) {
        int row;
        float logit;
        if (gemv_m1<form>(stamp, gemv, (int)first, &row, &logit)) {
            args.logits[row] = logit;
            if (args.first_token + row < args.n_valid) best = max(best, rank_of(logit, (uint32_t)row));
        }
        stamp.n = 0; /* made once */
        __syncthreads();
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
    if (threadIdx.x % WARP == 0) ranks[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < form::THREADS / WARP; i++)
        best = max(best, ranks[i]);
    unsigned long long *state = (unsigned long long *)args.state;
    atomicMax(&state[0], best);
    __threadfence();
    if (atomicAdd(&state[1], 1ull) != gridDim.x - 1) return;
    __threadfence();
    best = atomicExch(&state[0], 0ull);
    state[1] = 0;
    if (best == 0) {
        *args.pair = token_pair_t{-INFINITY, INT32_MAX};
        return;
    }
    uint32_t row = ~(uint32_t)best;
    bool is_finite = best >> 32 != 0xFFFFFFFFu;
    *args.pair = token_pair_t{__ldcg(args.logits + row), is_finite ? (int32_t)(args.first_token + row) : -1};
}

const char *lm_head_refusal(const lm_head_args_t *args) {
    if (args->weight.dtype != DTYPE_F16) return "weights are not FP16";
    return gemv_m1_refusal(&args->weight, args->u);
}

} // namespace

status_t launch_lm_head(const lm_head_args_t *args, const device_queue_t *queue) {
    if (route_take(queue, ROUTE_LM_HEAD, lm_head_refusal(args))) {
        gemv_m1_t gemv = gemv_m1_args(&args->weight, args->u);
        stamp_t stamp = *queue->due;
        queue->due->n = 0;
        gemv_m1_with_form<DTYPE_F16>(gemv.n_words, [&](auto form) {
            typedef decltype(form) form_t;
            unsigned int n_blocks = min(blocks_for(gemv.rows, form_t::BLOCK_ROWS),
                                        (unsigned int)(queue->n_sms * (SM_THREADS / form_t::THREADS)));
            /* Not by dependent launch: blocks that come while others still run lie unevenly on the multiprocessors, and
             * each has its share of the rows (326 against 290 us). */
            lm_head_f16_kernel<form_t><<<n_blocks, form_t::THREADS, 0, queue->stream>>>(stamp, gemv, *args);
        });
        return queue_check_launch("lm_head");
    }
    linear_args_t linear = {};
    linear.n_tokens = 1;
    linear.weight = args->weight;
    linear.x = args->u;
    linear.y_f32 = args->logits;
    TRY(launch_linear(&linear, queue));
    argmax_args_t argmax = {args->weight.rows, args->first_token, args->n_valid, args->logits, args->pair};
    return launch_argmax(&argmax, queue);
}
