#ifndef GALVANI_KERNELS_QSA_M1_H
#define GALVANI_KERNELS_QSA_M1_H

#include "qsa/qsa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Route `qsa`: one token in four launches. NULL, or why these args are not of its shapes. */
const char *qsa_m1_refusal(const qsa_core_args_t *args);

/* For args that are not refused. `gate`, `index_q` and `n_blocks` are not used. */
status_t launch_qsa_m1(const qsa_core_args_t *args, const device_queue_t *queue);

/* Its parts. scores: FP32 [capacity / ratio], of the complete blocks. Neither scores nor blocks are written while all
 * complete blocks are attended. */
status_t launch_qsa_m1_prepare(const qsa_prepare_args_t *args, float *scores, const device_queue_t *queue);
status_t launch_qsa_m1_select(const qsa_select_args_t *args, const float *scores, const device_queue_t *queue);
status_t launch_qsa_m1_attend(const qsa_attend_args_t *args, const device_queue_t *queue);
status_t launch_qsa_m1_merge(const qsa_attend_args_t *args, const activation_t *projected, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
