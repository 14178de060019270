#ifndef GALVANI_KERNELS_QSA_H
#define GALVANI_KERNELS_QSA_H

#include "base/activation.h"
#include "base/status.h"
#include "device/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* QSA attention between its projections, in three ops: prepare (norms, rope, caches), select (which key blocks each
 * query sees), attend. transformers qwen4_exp, Qwen4ExpTextAttention and Qwen4ExpTextQSAIndexer. Attention heads are
 * this rank's; the indexer is replicated, so every rank selects the same blocks. */

/* One layer's caches of one sequence. Only complete blocks have an index key; raw keys of the tokens after the last
 * complete block wait in raw_keys. */
typedef struct qsa_cache {
    int64_t capacity;         /* tokens, a multiple of ratio */
    activation_t *k;          /* [n_kv_heads, capacity, head_dim], normed and rotated */
    activation_t *v;          /* [n_kv_heads, capacity, head_dim] */
    activation_t *index_keys; /* [capacity / ratio, index_dim], normed and rotated at the block's first position */
    activation_t *raw_keys;   /* [ratio, index_dim], slot position % ratio */
} qsa_cache_t;

typedef struct qsa_shape {
    int64_t n_heads, n_kv_heads, head_dim, rotary_dim; /* n_heads, n_kv_heads: local */
    int64_t index_n_heads, index_dim;
    int64_t ratio;    /* indexer_compress_ratio: tokens a block */
    int64_t n_select; /* indexer_budget / ratio: blocks a query sees at most */
} qsa_shape_t;

/* Splits the projected row, norms and rotates queries and keys, appends keys, values and index keys for positions
 * start_pos ... start_pos + n_tokens - 1. */
typedef struct qsa_prepare_args {
    qsa_shape_t shape;
    int64_t n_tokens;
    const int64_t *start_pos; /* in backend memory, as everywhere below */
    float rms_norm_eps;
    double rope_theta;
    const activation_t
        *projected; /* [n_tokens, projected_stride]: per head query, output gate; then k; v; index queries; index key */
    int64_t projected_stride;
    const float *q_norm, *k_norm;             /* [head_dim], one-plus */
    const float *index_q_norm, *index_k_norm; /* [index_dim], one-plus */
    qsa_cache_t cache;
    activation_t *q;       /* [n_tokens, n_heads, head_dim] */
    activation_t *gate;    /* [n_tokens, n_heads, head_dim], as projected */
    activation_t *index_q; /* [n_tokens, index_n_heads, index_dim] */
} qsa_prepare_args_t;

status_t qsa_prepare_cpu(const qsa_prepare_args_t *args);
status_t launch_qsa_prepare(const qsa_prepare_args_t *args, const device_queue_t *queue);

/* For the query at position p: of its (p + 1) / ratio complete blocks the n_select with the highest score
 *   score(block) = sum over index heads of relu(index_q . index_key) / sqrt(index_dim)
 * equal scores in favour of the lower block; written in rising order. relu(NaN) counts as 0, so that the selection is
 * always valid: what made the NaN is in the query's own activations and reaches the output by itself. */
typedef struct qsa_select_args {
    qsa_shape_t shape;
    int64_t n_tokens;
    const int64_t *start_pos;
    const activation_t *index_q; /* [n_tokens, index_n_heads, index_dim] */
    qsa_cache_t cache;
    int32_t *blocks;   /* [n_tokens, n_select] */
    int32_t *n_blocks; /* [n_tokens]: how many of them hold */
    void *workspace;   /* qsa_select_workspace_bytes */
} qsa_select_args_t;

size_t qsa_select_workspace_bytes(const qsa_select_args_t *args);
status_t qsa_select_cpu(const qsa_select_args_t *args);

size_t qsa_select_cuda_workspace_bytes(const qsa_select_args_t *args);
status_t launch_qsa_select(const qsa_select_args_t *args, const device_queue_t *queue);

/* Softmax attention, scale 1/sqrt(head_dim), over the tokens of the selected blocks and the tail after the last
 * complete block; query head i reads KV head i / (n_heads / n_kv_heads). y = attention * sigmoid(gate). */
typedef struct qsa_attend_args {
    qsa_shape_t shape;
    int64_t n_tokens;
    const int64_t *start_pos;
    const activation_t *q, *gate; /* [n_tokens, n_heads, head_dim] */
    qsa_cache_t cache;
    const int32_t *blocks;   /* [n_tokens, n_select] */
    const int32_t *n_blocks; /* [n_tokens] */
    activation_t *y;         /* [n_tokens, n_heads * head_dim] */
    void *workspace;         /* qsa_attend_workspace_bytes */
} qsa_attend_args_t;

size_t qsa_attend_workspace_bytes(const qsa_attend_args_t *args);
status_t qsa_attend_cpu(const qsa_attend_args_t *args);

size_t qsa_attend_cuda_workspace_bytes(const qsa_attend_args_t *args);
status_t launch_qsa_attend(const qsa_attend_args_t *args, const device_queue_t *queue);

/* The three in turn: QSA between its projections. One shape, n_tokens, start_pos and cache serve all of them. What they
 * hand to each other in buffers (queries, gates, index queries, blocks) is of no use afterwards, and their workspaces
 * may be one. */
typedef struct qsa_core_args {
    qsa_prepare_args_t prepare;
    qsa_select_args_t select;
    qsa_attend_args_t attend;
} qsa_core_args_t;

status_t qsa_core_cpu(const qsa_core_args_t *args);
status_t launch_qsa_core(const qsa_core_args_t *args, const device_queue_t *queue);

#ifdef __cplusplus
}
#endif
#endif
