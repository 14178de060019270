#ifndef GALVANI_KERNELS_DEVICE_LAUNCHES_H
#define GALVANI_KERNELS_DEVICE_LAUNCHES_H

/* How many kernels each op of a decode step launches on CUDA, one behind the other: whoever changes that in a launcher
 * changes it here. A recorded step counts its launches (backend_ops_t.record_n_launches), and tests/gpu/test_launches.c
 * holds this table against it. */

#include "device/route.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches of one call for one token. `op` is its name in a trace. `is_on` [N_KERNEL_ROUTES]: the routes that are
 * taken; 0 for an op that launches nothing or is not known. */
int op_n_launches(const char *op, const bool *is_on);

#ifdef __cplusplus
}
#endif
#endif
