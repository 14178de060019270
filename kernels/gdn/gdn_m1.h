#ifndef GALVANI_KERNELS_GDN_M1_H
#define GALVANI_KERNELS_GDN_M1_H

#include "gdn/gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Route `gdn`: one token in one launch. NULL, or why these args are not of its shapes. */
const char *gdn_m1_refusal(const gdn_core_args_t *args);

/* For args that are not refused. The workspace is not used. */
status_t launch_gdn_m1(const gdn_core_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
