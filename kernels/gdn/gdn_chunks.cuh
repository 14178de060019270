#ifndef GALVANI_KERNELS_GDN_CHUNKS_CUH
#define GALVANI_KERNELS_GDN_CHUNKS_CUH

#include "gdn/gdn.h"

/* The gated delta rule over chunks of 64 tokens on the tensor cores, for many tokens. */
const char *gdn_chunk_refusal(const gdn_core_args_t *args, const device_queue_t *queue);
size_t gdn_chunk_workspace_bytes(const gdn_core_args_t *args); /* 0 for shapes that it refuses */
status_t launch_gdn_chunk(const gdn_core_args_t *args, const device_queue_t *queue);

#endif
