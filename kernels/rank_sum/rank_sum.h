#ifndef GALVANI_KERNELS_RANK_SUM_H
#define GALVANI_KERNELS_RANK_SUM_H

#include "base/activation.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* data[i] = sum over ranks of parts[rank][i], added in rank order in FP32 and rounded once: what a rank makes of the
 * parts that MPI has gathered in its memory. */
typedef struct rank_sum_args {
    int64_t n_ranks, n_items;
    const activation_t *parts; /* [n_ranks, n_items] */
    activation_t *data;        /* [n_items] */
} rank_sum_args_t;

status_t launch_rank_sum(const rank_sum_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
