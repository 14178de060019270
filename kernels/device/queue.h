#ifndef GALVANI_KERNELS_DEVICE_QUEUE_H
#define GALVANI_KERNELS_DEVICE_QUEUE_H

/* What every CUDA launcher needs of the device that it launches on. Readable without the CUDA headers. */

#include <stdbool.h>

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct device_queue device_queue_t;
struct route_state; /* device/route.h */
struct push_args;   /* push/push.h */

/* y[t] (+)= weight x[t] for many tokens, FP16 with FP32 sums; the backend gives it (cuBLAS). Q8 and QPN8 weights are
 * first turned into FP16. */
typedef struct gemm_args {
    int64_t n_tokens;
    matrix_t weight;       /* FP16, Q8 or QPN8 [n_outputs, n_inputs] */
    const activation_t *x; /* [n_tokens, n_inputs] */
    void *y;               /* [n_tokens, n_outputs], FP16, or FP32 with y_is_f32 */
    bool y_is_f32;
    bool accumulate; /* adds to y */
} gemm_args_t;

struct device_queue {
    struct CUstream_st *stream; /* a cudaStream_t: launches are in its order */
    int n_sms;                  /* multiprocessors of the device */
    status_t (*gemm)(const device_queue_t *queue, const gemm_args_t *args);
    void *gemm_context;           /* the backend's */
    activation_t *gemm_scratch;   /* room for the largest 8-bit matrix as FP16; NULL: there is none */
    struct route_state *routes;   /* [N_KERNEL_ROUTES]: its fast paths; counted through a const queue too */
    const struct push_args *push; /* the ranks' mailboxes; NULL where push is not what sums over ranks */
    const char *pdl_refusal;      /* why programmatic dependent launch cannot be had; NULL where it can */
    const char *mma_refusal;      /* the same of what device/mma.cuh has */
    struct stamp *due;            /* time stamps to be made in front of what is queued next; who makes them clears it */
};

/* Time stamps that the device makes at one moment: slots[0 .. n-1], in device memory, become its clock in ns. */
typedef struct stamp {
    unsigned long long *slots;
    int n; /* 0: none */
} stamp_t;

/* Makes a stamp that is due by a launch of its own: for work that does not begin with launch_kernel (launch.cuh). */
void queue_stamp(const device_queue_t *queue);

/* After a launch: STATUS_DEVICE with the op's name and CUDA's reason if it was refused. */
status_t queue_check_launch(const char *op);

/* STATUS_DEVICE if this build has no code for the device in use. Else `code_arch` is the architecture that the code in
 * use was compiled for (90: sm_90), which may be older than the device. */
status_t queue_check_device(const char *device_name, int *code_arch);

#ifdef __cplusplus
}
#endif
#endif
