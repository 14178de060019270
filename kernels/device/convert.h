#ifndef GALVANI_KERNELS_DEVICE_CONVERT_H
#define GALVANI_KERNELS_DEVICE_CONVERT_H

/* Conversions of stored formats on the device, used while loading. */

#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* BF16 values that FP16 cannot hold. */
typedef struct f16_losses {
    unsigned long long n_rounded;   /* below 2^-14 in magnitude: FP16 has fewer bits there */
    unsigned long long n_saturated; /* above 65504 in magnitude: set to +-65504 */
} f16_losses_t;

/* Turns n BF16 values into FP16, in place, and adds to `losses` (in backend memory). */
status_t launch_bf16_to_f16(void *data, int64_t n, f16_losses_t *losses, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
