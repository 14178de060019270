#ifndef GALVANI_KERNELS_QSA_SCORES_CUH
#define GALVANI_KERNELS_QSA_SCORES_CUH

#include "qsa/qsa.h"

/* The scores of qsa_select for many tokens on the tensor cores. */
const char *qsa_scores_refusal(const qsa_select_args_t *args, const device_queue_t *queue);

/* Of tokens first ... first + n - 1: scores[token - first][block], [n, capacity / ratio]. Only those that decide: for
 * tokens with more complete blocks than they may select, up to their last complete one. */
void launch_qsa_scores(const qsa_select_args_t *args, int64_t first, int64_t n, float *scores,
                       const device_queue_t *queue);

#endif
