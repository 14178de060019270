#include "device/device.cuh"
#include "router/router.h"

namespace {

struct choice {
    float logit;
    int32_t expert; /* INT32_MAX: none */
};

/* The larger logit first, the lower id among equals. */
__device__ __forceinline__ choice better(choice a, choice b) {
    return b.logit > a.logit || (b.logit == a.logit && b.expert < a.expert) ? b : a;
}

/* The best of the experts that this lane looks after: lane, lane + 32, ... One that is taken reads as NaN. */
__device__ choice lane_best(const float *logits, int n_experts) {
    choice best = {-INFINITY, INT32_MAX};
    for (int expert = threadIdx.x; expert < n_experts; expert += WARP)
        best = better(best, choice{logits[expert], expert});
    return best;
}

/* One warp a token, its logits in shared memory: top_k times the best of the lanes' best, whose lane then looks for its
 * next. Any n_experts that fits there. Logits that make no distribution (a NaN, +Inf, nothing but -Inf) choose the
 * first experts with weights NaN, so that the fault reaches the output. */
__global__ void __launch_bounds__(WARP) router_f32_kernel(router_args_t args) {
    extern __shared__ float logits[]; /* [n_experts] */
    int64_t token = blockIdx.x;
    int n_experts = (int)args.n_experts, top_k = (int)args.top_k;
    const float *row = args.logits + token * args.logits_stride;
    int32_t *experts = args.experts + token * top_k;
    float *weights = args.weights + token * top_k;

    float largest = -INFINITY;
    bool sound = true;
    for (int expert = threadIdx.x; expert < n_experts; expert += WARP) {
        float logit = row[expert];
        logits[expert] = logit;
        largest = fmaxf(largest, logit);
        sound = sound && logit < INFINITY;
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (threadIdx.x == 0) args.shared_gate[token] = sigmoidf(row[n_experts]);
    if (!__all_sync(0xffffffffu, sound) || largest == -INFINITY) {
        for (int k = threadIdx.x; k < top_k; k += WARP) {
            experts[k] = k;
            weights[k] = NAN;
        }
        return;
    }
    float sum = 0.0f;
    if (!args.norm_topk_prob) {
        for (int expert = threadIdx.x; expert < n_experts; expert += WARP)
            sum += expf(logits[expert] - largest);
        sum = lanes_sum<WARP>(sum);
    }

    __syncwarp();
    choice own = lane_best(logits, n_experts);
    float chosen_sum = 0.0f;
    for (int k = 0; k < top_k; k++) {
        choice best = own;
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            best = better(best, choice{__shfl_xor_sync(0xffffffffu, best.logit, offset),
                                       __shfl_xor_sync(0xffffffffu, best.expert, offset)});
        float weight = expf(best.logit - largest);
        chosen_sum += weight;
        if (threadIdx.x == best.expert % WARP) {
            logits[best.expert] = NAN;
            own = lane_best(logits, n_experts);
        }
        if (threadIdx.x == k % WARP) {
            experts[k] = best.expert;
            weights[k] = weight;
        }
    }
    __syncwarp();
    for (int k = threadIdx.x; k < top_k; k += WARP)
        weights[k] /= args.norm_topk_prob ? chosen_sum : sum;
}

} // namespace

status_t launch_router(const router_args_t *args, const device_queue_t *queue) {
    size_t shared_bytes = (size_t)args->n_experts * sizeof(float);
    queue_stamp(queue);
    router_f32_kernel<<<(unsigned int)args->n_tokens, WARP, shared_bytes, queue->stream>>>(*args);
    return queue_check_launch("router");
}
