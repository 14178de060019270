#ifndef GALVANI_KERNELS_LINEAR_M1_H
#define GALVANI_KERNELS_LINEAR_M1_H

/* `linear` of one token: route gemv_m1. */

#include "linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why such a product cannot take the route; NULL where it can. */
const char *linear_m1_refusal(const linear_args_t *args);

status_t launch_linear_m1(const linear_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
