#ifndef GALVANI_KERNELS_PUSH_PART_CUH
#define GALVANI_KERNELS_PUSH_PART_CUH

/* Route fused_allreduce: a sum over ranks without a launch of its own, for one token. The kernel that makes a rank's
 * part of the sum (linear, moe_down) sends each value to every rank's mailbox as it is ready, and the kernel that needs
 * the sum (gr_mix) waits there for all parts and adds them up in rank order in FP32, rounded once: the bits of
 * push_allreduce.
 *
 * A value and the lower half of the round's number are one word of 32 bits, written and read as one, so whoever sees
 * the number sees the value. gr_mix's second kernel, behind whose previous_wait all receivers are complete, moves the
 * count of rounds on.
 *
 * Early start: a sender allows the next kernel (next_start) behind its own previous_wait. So when a receiver runs, what
 * came before the sender is complete, the count of rounds with it, and every block of the sender has its place. The
 * receiver need not wait for the sender's end: it has each word of its own rank too, and a block sends its last word
 * when it has read all that it reads. It calls previous_wait before it ends, so that whoever waits for it waits for all
 * kernels before.
 *
 * Reuse: what round n wrote is overwritten in round n + 2. A rank sends that only when its receiver of round n + 1 is
 * complete, which has seen parts of n + 1 from every peer; a peer's sender of n + 1 began to write behind its
 * previous_wait, so after its receiver of round n was complete. So a place holds the word of n - 2 or that of n while a
 * receiver waits for n, and their numbers differ in 16 bits as well. */

#include "device/device.cuh"
#include "push/push.cuh"

/* The number of the round that is going on: for a sender behind its wait, for a receiver at any time. */
static __device__ __forceinline__ uint32_t push_part_round(const push_args_t &args) {
    return __ldcg(&args.mailboxes[args.tp_rank]->counts.parts) + 1;
}

static __device__ __forceinline__ void push_part_send(const push_args_t &args, uint32_t round, int64_t item,
                                                      __half value) {
    uint32_t word = round << 16 | __half_as_ushort(value);
    for (int rank = 0; rank < args.tp_size; rank++)
        asm volatile(
            "st.relaxed.sys.global.u32 [%0], %1;" ::"l"(&args.mailboxes[rank]->parts[round & 1][args.tp_rank][item]),
            "r"(word)
            : "memory");
}

/* The sums of all n_items, a multiple of four, over RANKS ranks or fewer, by all threads of a block into its shared
 * memory; the block is to synchronize before it reads them. */
template <int RANKS>
static __device__ __forceinline__ void push_part_receive(const push_args_t &args, uint32_t round, int n_items,
                                                         uint2 *sums) {
    const push_mailbox_t *own = args.mailboxes[args.tp_rank];
    push_wait wait;
    for (int at = threadIdx.x; at < n_items / 4; at += blockDim.x) {
        uint64_t words[RANKS][2];
        for (int missing = 0; missing >= 0;) {
            missing = -1;
#pragma unroll
            for (int rank = 0; rank < RANKS; rank++) {
                if (rank < args.tp_size)
                    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                                 : "=l"(words[rank][0]), "=l"(words[rank][1])
                                 : "l"(&own->parts[round & 1][rank][4 * at])
                                 : "memory");
            }
#pragma unroll
            for (int rank = 0; rank < RANKS; rank++) {
                if (rank >= args.tp_size) continue;
                uint64_t number = (uint64_t)(round << 16) << 32 | round << 16; /* of both words */
                if (((words[rank][0] ^ number) | (words[rank][1] ^ number)) & 0xFFFF0000FFFF0000u) missing = rank;
            }
            if (missing >= 0 && wait.is_over(args, missing)) break;
        }
        union {
            uint2 word;
            __half values[4];
        } sum;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float total = 0.0f;
#pragma unroll
            for (int rank = 0; rank < RANKS; rank++) {
                if (rank >= args.tp_size) continue;
                float part = __half2float(__ushort_as_half((unsigned short)(words[rank][i / 2] >> i % 2 * 32)));
                total = rank == 0 ? part : total + part;
            }
            sum.values[i] = __float2half_rn(total);
        }
        sums[at] = sum.word;
    }
}

/* Ends the round: by one thread of a kernel behind whose previous_wait all receivers are complete. */
static __device__ __forceinline__ void push_part_end(const push_args_t &args) {
    args.mailboxes[args.tp_rank]->counts.parts += 1;
}

#endif
