#ifndef GALVANI_KERNELS_GR_M1_H
#define GALVANI_KERNELS_GR_M1_H

/* Route `gr`: gr_mix of one token in two launches, for the shapes that it was built for. */

#include "gr/gr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why the route cannot take this call of one token; NULL: it can. */
const char *gr_m1_refusal(const gr_mix_args_t *args);

/* Why gr_mix cannot receive o as a deferred sum (push/push_part.cuh), in a call like this; NULL: it can. */
const char *gr_m1_receive_refusal(const gr_mix_args_t *args, const device_queue_t *queue);

/* Asks for less workspace than the general form. */
status_t launch_gr_mix_m1(const gr_mix_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
