#ifndef GALVANI_KERNELS_MOE_M1_CUH
#define GALVANI_KERNELS_MOE_M1_CUH

/* What moe_m1.cu's kernels share: their sizes and operands, and how the choice of experts reaches them. */

#include "device/device.cuh"
#include "moe/moe.h"
#include "router/top_k.cuh"

namespace {

/* Sizes of one model on one rank. */
template <int N_EXPERTS_, int TOP_K_, int HIDDEN_, int INTERMEDIATE_> struct moe_shape {
    enum {
        N_EXPERTS = N_EXPERTS_,
        TOP_K = TOP_K_,
        HIDDEN = HIDDEN_,
        INTERMEDIATE = INTERMEDIATE_ /* routed and shared */
    };
};

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* What the three kernels take. */
struct moe_call {
    const __half *u, *router, *shared_gate_up, *shared_down;
    expert_weights_t experts;
    float *logits;
    const int32_t *chosen; /* the choice and its weights where another launch made them, else NULL */
    const float *weights;
    float *shared_o;        /* [hidden_size]: the shared expert's part */
    float *shared_gate;     /* to be written, or NULL */
    __half *act;            /* [top_k, intermediate], each eight in the order of permute8 */
    __half *shared_act, *o; /* o: NULL where its values are sent */
    uint64_t *choice;       /* [top_k]: published by moe_gate_up; moe_in sets NOT_CHOSEN */
    bool norm_topk_prob, with_shared;
};

/* A load that stays before the wait: the compiler moves __ldg behind it. */
__device__ __forceinline__ uint4 load_ahead(const uint4 *address) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address)
                 : "memory");
    return value;
}

/* A published choice: bits of the weight above the expert, in one word so that both come at once. */
#define NOT_CHOSEN UINT64_MAX

__device__ __forceinline__ void publish(uint64_t *to, uint64_t choice) { *(volatile uint64_t *)to = choice; }

/* By the next kernel, which may run beside the one that publishes. */
__device__ __forceinline__ uint64_t await_choice(const uint64_t *from) {
    uint64_t choice;
    do
        choice = *(const volatile uint64_t *)from;
    while (choice == NOT_CHOSEN);
    return choice;
}

/* The choice, by all threads of a block. */
template <typename shape, int N_WARPS, bool WEIGHTS, typename load_t>
__device__ __forceinline__ void choose(const moe_call &call, load_t load,
                                       top_k_choice<shape::N_EXPERTS, shape::TOP_K> *choice) {
    if (!call.chosen) {
        choose_top_k<N_WARPS, WEIGHTS>(load, call.norm_topk_prob, choice);
    } else if (threadIdx.x < shape::TOP_K) {
        choice->experts[threadIdx.x] = __ldcg(call.chosen + threadIdx.x);
        choice->weights[threadIdx.x] = __ldcg(call.weights + threadIdx.x);
    }
}

} // namespace

#endif
