#ifndef GALVANI_KERNELS_PUSH_SMALL_CUH
#define GALVANI_KERNELS_PUSH_SMALL_CUH

#include "push/push.h"

/* The form for at most PUSH_SMALL_ITEMS values. */
void launch_push_small(const push_args_t *args, const device_queue_t *queue);

#endif
