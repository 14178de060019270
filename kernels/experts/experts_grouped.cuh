#ifndef GALVANI_KERNELS_EXPERTS_GROUPED_CUH
#define GALVANI_KERNELS_EXPERTS_GROUPED_CUH

#include "experts/experts.h"

/* Routed experts for many tokens: the (token, choice) pairs are sorted by expert, and each expert's weights meet all of
 * its pairs in matrix products on the tensor cores. */
size_t experts_grouped_workspace_bytes(const experts_args_t *args);
status_t launch_experts_grouped(const experts_args_t *args, const device_queue_t *queue);

#endif
