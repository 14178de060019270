#ifndef GALVANI_KERNELS_DEVICE_ROUTE_H
#define GALVANI_KERNELS_DEVICE_ROUTE_H

/* Fast paths of the CUDA kernels. A launcher that has one asks route_take, and takes its general form unless the
 * answer is yes. */

#include <stdbool.h>
#include <stdint.h>

#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kernel_route {
    ROUTE_PDL,             /* programmatic dependent launch (device/launch.cuh) */
    ROUTE_PUSH_ALLREDUCE,  /* sums over ranks of few values without flags (push/push.h) */
    ROUTE_FUSED_ALLREDUCE, /* one token's sums over ranks without a launch of their own (push/push_part.cuh) */
    ROUTE_GDN,             /* one token's convolution, recurrence and gated norm in one launch */
    ROUTE_QSA,             /* one token's attention between its projections in four launches */
    ROUTE_GDN_CHUNK,       /* many tokens' recurrence in chunks on the tensor cores */
    ROUTE_QSA_TILES,       /* many tokens' scores and attention in tiles on the tensor cores */
    ROUTE_GR_MANY,         /* many tokens' gated residual in wide passes around its products */
    ROUTE_EXPERTS_GROUPED, /* many tokens' NVFP4 experts with fragments made in registers */
    ROUTE_GR,              /* gr_mix of one token in two launches (gr/gr_m1.h) */
    ROUTE_CUDA_AWARE_MPI,  /* MPI takes device memory itself: gathered logits, sums with --comm mpi */
    ROUTE_GEMV_M1,         /* a dense projection of one token, weights loaded ahead (linear/gemv_m1.cuh) */
    ROUTE_LM_HEAD,         /* logits and their argmax in one launch */
    ROUTE_NVFP4_M1,        /* the MoE block of one token in three launches (moe/moe.h) */
    ROUTE_ROUTER,          /* in it: each block chooses the experts itself */
    ROUTE_SHARED_GATE,     /* in it: the shared expert goes along */
    N_KERNEL_ROUTES
} kernel_route_t;

typedef struct route_state {
    bool wanted;         /* not switched off */
    const char *refusal; /* why the first call that could not take it did not; NULL: none was refused */
    int64_t n_launches;  /* calls that took it; a recorded step counts when it is recorded, not when it is replayed */
} route_state_t;

/* As --route and a run file's /routes have it. */
const char *kernel_route_name(kernel_route_t route);

/* Whether this call takes the route: it is wanted and `refusal`, a string constant that says why shape, type, alignment
 * or device are not those that it was proven on, is NULL. Counts the call. A form that is for one token is not asked
 * for at more: prefill must not look like a refusal. */
bool route_take(const device_queue_t *queue, kernel_route_t route, const char *refusal);

#ifdef __cplusplus
}
#endif
#endif
