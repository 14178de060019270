#ifndef GALVANI_KERNELS_GR_MANY_CUH
#define GALVANI_KERNELS_GR_MANY_CUH

#include "gr/gr.h"

/* Gated residual for many tokens: h is moved once for injection, norm and block_inject; wide loads around the products.
 */
const char *gr_many_refusal(const gr_mix_args_t *args);
size_t gr_many_workspace_bytes(const gr_mix_args_t *args);
status_t launch_gr_many(const gr_mix_args_t *args, const device_queue_t *queue);

#endif
