#ifndef GALVANI_KERNELS_ROUTER_TOP_K_CUH
#define GALVANI_KERNELS_ROUTER_TOP_K_CUH

/* The choice of experts for one token by one block, so that each block that needs it makes its own instead of waiting
 * for another launch. What it gives is router/router.h's. */

#include "device/device.cuh"

/* Orders as the logits do; -0 is 0. */
static __device__ __forceinline__ uint32_t logit_key(float logit) {
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

static __device__ __forceinline__ float key_logit(uint32_t key) {
    return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xFFFFFFFFu));
}

static __device__ __forceinline__ uint32_t warp_min(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xFFFFFFFFu, value);
#else
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value = min(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    return value;
#endif
}

template <int N_EXPERTS, int TOP_K> struct top_k_choice {
    enum { MAX_WARPS = 4 };
    int32_t experts[TOP_K];
    float weights[TOP_K];

    /* Scratch. A candidate is a logit's key above its id's complement: it orders as the experts are to be chosen. */
    ulonglong2 candidates[N_EXPERTS / 2];
    uint4 groups[MAX_WARPS][WARP / 8]; /* [.., WARP] of __half */
    float largest[MAX_WARPS * WARP], logits[TOP_K];
    int n_candidates;
};

/* Called by every thread of a block of N_WARPS warps; up to four of them do the work. `choice`, in shared memory, is
 * complete for the first warp on return and for the others after a __syncthreads.
 *
 * The TOP_K-th largest of the maxima of 32 groups is not above the TOP_K-th largest logit. Rounded to FP16, so that a
 * pair is compared at once, it is a bound that few logits reach, and each of these counts those that go before it. */
template <int N_WARPS, bool WEIGHTS, int N_EXPERTS, int TOP_K, typename load_t>
static __device__ __forceinline__ void choose_top_k(load_t load, bool norm_topk_prob,
                                                    top_k_choice<N_EXPERTS, TOP_K> *choice) {
    constexpr int TOP_K_WARPS = N_WARPS < 4 ? N_WARPS : 4, TOP_K_THREADS = TOP_K_WARPS * WARP;
    constexpr int N = (N_EXPERTS + TOP_K_THREADS - 1) / TOP_K_THREADS;
    static_assert(N_EXPERTS % WARP == 0 && TOP_K <= WARP, "each of 32 groups has a logit");
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float own[N];
    bool sound = true;
    if (warp < TOP_K_WARPS) {
        float largest = -INFINITY;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int expert = i * TOP_K_THREADS + threadIdx.x;
            own[i] = expert < N_EXPERTS ? load(expert) : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            sound = sound && own[i] < INFINITY;
            largest = fmaxf(largest, own[i]);
        }
        choice->largest[threadIdx.x] = largest;
        if (warp == 0) ((uint64_t *)choice->candidates)[lane] = 0;
        if (threadIdx.x == 0) choice->n_candidates = 0;
    }
    sound = __syncthreads_and(sound);

    if (warp < TOP_K_WARPS) {
        float group = choice->largest[lane];
#pragma unroll
        for (int i = 1; i < TOP_K_WARPS; i++)
            group = fmaxf(group, choice->largest[i * WARP + lane]);
        __half rounded = __float2half_rn(group);
        ((__half *)choice->groups[warp])[lane] = rounded;
        __syncwarp();
        __half2 above = __float2half2_rn(0.0f);
#pragma unroll
        for (int i = 0; i < WARP / 8; i++) {
            uint4 word = choice->groups[warp][i];
            const __half2 *pairs = (const __half2 *)&word;
#pragma unroll
            for (int j = 0; j < 4; j++)
                above = __hadd2(above, __hgt2(pairs[j], __half2half2(rounded)));
        }
        float n_above = __low2float(above) + __high2float(above);
        uint32_t bits = __half_as_ushort(rounded), key = bits ^ (bits >> 15 ? 0xFFFFu : 0x8000u);
        constexpr uint32_t SMALLEST = 0x03FFu;                              /* the key of -Inf */
        key = max(warp_min(n_above < TOP_K ? key : 0xFFFFu) - 1, SMALLEST); /* below what may round to the bound */
        float bound = __half2float(__ushort_as_half((unsigned short)(key ^ (key >> 15 ? 0x8000u : 0xFFFFu))));

        uint32_t reached[N], lanes_before = (1u << lane) - 1;
        int first = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool inside = N_EXPERTS % TOP_K_THREADS == 0 || i * TOP_K_THREADS + (int)threadIdx.x < N_EXPERTS;
            reached[i] = __ballot_sync(0xFFFFFFFFu, inside && own[i] >= bound);
            first += __popc(reached[i]);
        }
        if (lane == 0) first = atomicAdd(&choice->n_candidates, first);
        first = __shfl_sync(0xFFFFFFFFu, first, 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t id = i * TOP_K_THREADS + threadIdx.x;
            if (reached[i] >> lane & 1)
                ((uint64_t *)choice->candidates)[first + __popc(reached[i] & lanes_before)] =
                    (uint64_t)logit_key(own[i]) << 32 | ~id;
            first += __popc(reached[i]);
        }
    }
    __syncthreads();
    if (warp != 0) return;

    int n = choice->n_candidates;
    for (int i = lane; i < n; i += WARP) {
        uint64_t candidate = ((const uint64_t *)choice->candidates)[i];
        int n_before = 0;
#pragma unroll 8
        for (int j = 0; j < n; j += 2) {
            ulonglong2 others = choice->candidates[j / 2];
            n_before += others.x > candidate;
            n_before += j + 1 < n && others.y > candidate;
        }
        if (n_before < TOP_K) {
            choice->experts[n_before] = (int32_t) ~(uint32_t)candidate;
            choice->logits[n_before] = key_logit((uint32_t)(candidate >> 32));
        }
    }
    __syncwarp();
    float largest = choice->logits[0];
    bool none = !sound || largest == -INFINITY;
    if (none && lane < TOP_K) choice->experts[lane] = lane;
    if (!WEIGHTS) return;
    float weight = lane < TOP_K ? expf(choice->logits[lane] - largest) : 0.0f, sum = weight;
    if (!norm_topk_prob) {
        sum = 0.0f;
        for (int expert = lane; expert < N_EXPERTS; expert += WARP)
            sum += expf(load(expert) - largest);
    }
    sum = lanes_sum<WARP>(sum);
    if (lane < TOP_K) choice->weights[lane] = none ? NAN : weight / sum;
}

#endif
