#ifndef GALVANI_KERNELS_PLE_H
#define GALVANI_KERNELS_PLE_H

#include "base/activation.h"
#include "base/matrix.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the rows of the n-gram table that this rank holds, as FP32 = code * scale; rows held elsewhere give zeros, so
 * the sum over ranks is the embedding. */
typedef struct ple_gather_args {
    int64_t n_tokens, n_heads;
    const int64_t *rows; /* [n_tokens, n_heads], global row ids */
    matrix_t table;      /* [n_rows_local, row_width], F8_E4M3 or BF16 */
    float table_scale;
    int64_t first_row; /* global id of the table's first row */
    activation_t *e;   /* [n_tokens, n_heads * row_width] */
} ple_gather_args_t;

status_t ple_gather_cpu(const ple_gather_args_t *args);
status_t launch_ple_gather(const ple_gather_args_t *args, const device_queue_t *queue);

/* The PLE block behind its projections (transformers qwen4_exp, Qwen4ExpTextPLELayer):
 *   c[s] = n(key[s], norm_key[s]) . n(h[s], norm_query[s]) / sqrt(H);  c = sign(c) sqrt(max(|c|, 1e-6))
 *   gv[s] = sigmoid(c[s]) value;  h[s] += gv[s] + silu(conv(n(gv[s], norm_conv[s])))
 * conv is depthwise and causal with dilation `dilation`; its state holds the normed gv of the last tokens. */
typedef struct ple_mix_args {
    int64_t n_tokens, hc_count, hidden_size, conv_kernel, dilation;
    float rms_norm_eps;
    const activation_t *projected;                  /* [n_tokens, (hc_count + 1) * hidden_size]: key, then value */
    const float *norm_key, *norm_query, *norm_conv; /* [hc_count * hidden_size], one-plus */
    const float *conv; /* [hc_count * hidden_size, conv_kernel]; the last tap is the current token's */
    float *conv_state; /* [(conv_kernel - 1) * dilation, hc_count * hidden_size], oldest first */
    float *h;          /* [n_tokens, hc_count, hidden_size] */
    void *workspace;   /* ple_mix_workspace_bytes */
} ple_mix_args_t;

size_t ple_mix_workspace_bytes(const ple_mix_args_t *args);
status_t ple_mix_cpu(const ple_mix_args_t *args);

size_t ple_mix_cuda_workspace_bytes(const ple_mix_args_t *args);
status_t launch_ple_mix(const ple_mix_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
