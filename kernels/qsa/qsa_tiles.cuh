#ifndef GALVANI_KERNELS_QSA_TILES_CUH
#define GALVANI_KERNELS_QSA_TILES_CUH

#include "qsa/qsa.h"

/* qsa_attend for many tokens on the tensor cores. */
const char *qsa_tiles_refusal(const qsa_attend_args_t *args, const device_queue_t *queue);
size_t qsa_tiles_workspace_bytes(const qsa_attend_args_t *args); /* 0 for shapes that it refuses */
status_t launch_qsa_tiles(const qsa_attend_args_t *args, const device_queue_t *queue);

#endif
