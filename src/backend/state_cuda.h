#ifndef GALVANI_BACKEND_STATE_CUDA_H
#define GALVANI_BACKEND_STATE_CUDA_H

/* What the files of the CUDA backend share. */

#include "backend/all_reduce_cuda.h"
#include "backend/backend.h"
#include "device/convert.h"
#include "device/route.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Small uploads are copied into a pinned slot and go on by themselves. */
enum { CUDA_N_SLOTS = 64, CUDA_SLOT_BYTES = 16384 };

/* One allocation; the list is walked only when freeing, which is rare. */
typedef struct block {
    struct block *next;
    void *pointer;
    size_t bytes;
    memory_label_t label;
} block_t;

typedef struct cuda_state {
    device_queue_t queue;
    route_state_t routes[N_KERNEL_ROUTES];
    int device;
    size_t n_sharing; /* ranks of this host on this rank's device, itself included */
    char device_name[256];
    char *devices; /* on rank 0: what facts.devices points to */
    char driver[32], cuda[32];
    block_t *blocks;
    unsigned char *slots; /* [CUDA_N_SLOTS, CUDA_SLOT_BYTES], pinned */
    int next_slot;
    unsigned char *stages; /* [BACKEND_N_STAGES, BACKEND_STAGE_BYTES], pinned; NULL but while loading */
    struct CUevent_st *staged[BACKEND_N_STAGES]; /* cudaEvent_t: behind the last copy from each */
    f16_losses_t *losses;                        /* of the matrices so far, on the device */
    all_reduce_t *all_reduce;                    /* NULL with one rank */
    unsigned long long *stamps;                  /* [BACKEND_MAX_MARKS] of the device's clock, in its memory */
    stamp_t due;
} cuda_state_t;

static inline cuda_state_t *state_of(const backend_t *backend) { return (cuda_state_t *)backend->state; }

#ifdef __cplusplus
}
#endif
#endif
