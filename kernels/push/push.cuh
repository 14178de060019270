#ifndef GALVANI_KERNELS_PUSH_CUH
#define GALVANI_KERNELS_PUSH_CUH

/* What the kernels that write into other ranks' mailboxes share (push.h says why it holds). */

#include "push/push.h"

static __device__ __forceinline__ void push_store(push_word_t *at, uint2 data, uint32_t round) {
    uint64_t number = (uint64_t)round << 32;
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(number | data.x), "l"(number | data.y)
                 : "memory");
}

/* Whether the word has come; its data. */
static __device__ __forceinline__ bool push_load(const push_word_t *at, uint32_t round, uint2 *data) {
    uint64_t first, second;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(at) : "memory");
    *data = make_uint2((uint32_t)first, (uint32_t)second);
    return (uint32_t)(first >> 32) == round && (uint32_t)(second >> 32) == round;
}

/* One thread's wait for one rank at a time. */
struct push_wait {
    int64_t begin_ns = 0;
    unsigned int n_looks = 0;

    /* Asked after each look that found nothing. Clock and host memory are slow to read, so not for each. */
    __device__ __forceinline__ bool is_over(const push_args_t &args, int rank) {
        if (++n_looks % 512 != 0) return false;
        int64_t now_ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
        if (begin_ns == 0) begin_ns = now_ns;
        if (*(volatile int32_t *)args.fault != 0) return true;
        if (now_ns - begin_ns <= args.limit_ns) return false;
        *(volatile int32_t *)args.fault = 1 + rank;
        return true;
    }
};

/* Every rank's pair of words, that of rank `lane` in each lane below tp_size. A round of its own: for one warp of one
 * block, behind previous_wait. */
static __device__ __forceinline__ uint2 push_exchange(const push_args_t &args, int lane, uint2 own_pair) {
    push_mailbox_t *own = args.mailboxes[args.tp_rank];
    uint32_t round = __ldcg(&own->counts.pairs) + 1;
    uint2 pair = own_pair;
    if (lane < args.tp_size && lane != args.tp_rank) {
        push_store(&args.mailboxes[lane]->pairs[round & 1][args.tp_rank], own_pair, round);
        push_wait wait;
        while (!push_load(&own->pairs[round & 1][lane], round, &pair)) {
            if (wait.is_over(args, lane)) break;
        }
    }
    __syncwarp();
    if (lane == 0) own->counts.pairs = round;
    return pair;
}

#endif
