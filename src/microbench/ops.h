#ifndef GALVANI_MICROBENCH_OPS_H
#define GALVANI_MICROBENCH_OPS_H

/* The benchmarks, by file, and what they share. */

#include "microbench/microbench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ops_linear.c */
extern const microbench_op_t microbench_ple_kv_proj, microbench_gdn_in_proj, microbench_gdn_out_proj,
    microbench_qsa_in_proj, microbench_qsa_o_proj, microbench_router_proj, microbench_lm_head;
/* ops_streams.c */
extern const microbench_op_t microbench_embed, microbench_gr_mix, microbench_gr_inject;
/* ops_ple.c */
extern const microbench_op_t microbench_ngram_rows, microbench_ple_gather, microbench_ple_mix;
/* ops_gdn.c */
extern const microbench_op_t microbench_gdn_core;
/* ops_qsa.c */
extern const microbench_op_t microbench_qsa_prepare, microbench_qsa_select, microbench_qsa_attend, microbench_qsa_core;
/* ops_moe.c */
extern const microbench_op_t microbench_router, microbench_experts, microbench_shared_expert, microbench_moe;
/* ops_ends.c */
extern const microbench_op_t microbench_argmax, microbench_all_reduce;

bool ops_has_gdn(const microbench_t *bench);
bool ops_has_qsa(const microbench_t *bench);
bool ops_has_ple(const microbench_t *bench);

/* As the backend holds it. */
double ops_matrix_bytes(const matrix_t *matrix);

/* Tokens whose results are compared: every one that this gives from 0 on, until -1. At most `most` of n_tokens, the
 * first and the last among them. */
int64_t ops_next_token(int64_t token, int64_t n_tokens, int64_t most);

double ops_sigmoid(double x);
double ops_silu(double x);
double ops_dot(const double *a, const double *b, int64_t n);

/* x / sqrt(mean(x^2) + eps) * (1 + weight), n values; y may be x. */
void ops_norm(const double *x, const double *weight, int64_t n, double eps, double *y);

/* The downloads of a reference and the values of its operands, freed together; a failure is kept in `status`, and what
 * could not be had is NULL. */
enum { OPS_MAX_ARRAYS = 24 };
typedef struct ops_arrays {
    const operands_t *operands;
    double *list[OPS_MAX_ARRAYS];
    int n;
    status_t status;
} ops_arrays_t;
double *ops_read(ops_arrays_t *arrays, const void *data, int64_t n);
double *ops_download(ops_arrays_t *arrays, const void *data, dtype_t dtype, int64_t n);
double *ops_download_activations(ops_arrays_t *arrays, const void *data, int64_t n);
double *ops_zeros(ops_arrays_t *arrays, int64_t n);
status_t ops_free(ops_arrays_t *arrays); /* the status */

#ifdef __cplusplus
}
#endif
#endif
