#ifndef GALVANI_MODEL_WEIGHTS_H
#define GALVANI_MODEL_WEIGHTS_H

/* The rank's weights in backend memory. Matrices that share an input are stacked into one, so that one `linear` serves
 * them. T, S, R, ... and what is sliced: shard/schema.h. Norms, convolutions, A_log and dt_bias are FP32. */

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "checkpoint/ngram.h"
#include "model/dense.h"
#include "model/shape.h"
#include "model/tensor_source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gated residual, replicated. */
typedef struct gr_weights {
    float *hc_norm;        /* [S*H] */
    matrix_t down;         /* [R, S*H] */
    matrix_t up;           /* [S*H, R] */
    matrix_t block_inject; /* [S, S*H]; data is NULL in the final mixer */
} gr_weights_t;

typedef struct gdn_weights {
    matrix_t in_proj;  /* [gdn_projected, H]: rows of qkv | z | b | a */
    float *conv;       /* [conv_channels, Cw] */
    float *A_log;      /* [Vh/T] */
    float *dt_bias;    /* [Vh/T] */
    float *norm;       /* [Dv] */
    matrix_t out_proj; /* [H, Vh*Dv/T] */
} gdn_weights_t;

typedef struct qsa_weights {
    matrix_t in_proj;                   /* [qsa_projected, H]: rows of q (query, gate per head) | k | v | index_qk */
    float *q_norm, *k_norm;             /* [Ad] */
    float *index_q_norm, *index_k_norm; /* [Id] */
    matrix_t o_proj;                    /* [H, Ah*Ad/T] */
} qsa_weights_t;

typedef struct moe_weights {
    matrix_t router; /* [router_rows(E), H]: row E is shared_expert_gate, zeros follow */
    expert_weights_t experts;
    matrix_t shared_gate_up; /* [2*Ms/T, H]: gate rows | up rows */
    matrix_t shared_down;    /* [H, Ms/T] */
} moe_weights_t;

typedef struct ple_weights {
    ngram_constants_t ngram;
    int64_t *multipliers, *head_sizes, *head_offsets; /* those of `ngram`, in backend memory */
    matrix_t table; /* [ngram.n_rows/T, ple_embed_dim/n_heads], F8_E4M3 or BF16, MEMORY_PLE_TABLE */
    float table_scale;
    int64_t first_row;                        /* global id of the table's first row */
    matrix_t kv_proj;                         /* [(S+1)*H, ple_embed_dim]: key_proj rows | value_proj rows */
    float *norm_key, *norm_query, *norm_conv; /* [S*H] */
    float *conv;                              /* [S*H, ple_conv_kernel_size] */
} ple_weights_t;

typedef struct layer_weights {
    const ple_weights_t *ple; /* NULL on layers without */
    gr_weights_t attn_hc;
    gdn_weights_t gdn; /* on LAYER_GDN */
    qsa_weights_t qsa; /* on LAYER_QSA */
    gr_weights_t mlp_hc;
    moe_weights_t moe;
} layer_weights_t;

/* A projection that is kept in both forms. */
typedef struct dense_pair {
    matrix_t *place; /* which of the two is in use */
    matrix_t f16, dense8;
} dense_pair_t;

typedef struct weights {
    model_config_t config;
    local_shape_t local;
    matrix_t embed;          /* [vocab_size, H] */
    matrix_t lm_head;        /* [vocab_size/T, H] */
    layer_weights_t *layers; /* [num_hidden_layers] */
    ple_weights_t *ple;      /* [n_ple_layers] */
    gr_weights_t final_hc;

    dense_form_t dense;
    double dense_errors[DENSE_N_ROLES]; /* ||w - 8-bit w|| / ||w|| over the layers; 0 for FP16 */
    void *dense_scratch;                /* dense_scratch_bytes, of the 8-bit forms */
    dense_pair_t *dense_pairs;          /* [n_dense_pairs], with dense.keep_f16 */
    size_t n_dense_pairs;

    backend_t *backend; /* borrowed */
    void **allocations; /* [n_allocations], in backend memory */
    size_t n_allocations;
} weights_t;

/* A rank's tensors and the form of those that are dense projections. */
typedef struct weights_plan {
    const model_config_t *config;
    const schema_tensor_t *tensors; /* [n_tensors] */
    size_t n_tensors;
    dense_form_t dense;
} weights_plan_t;

/* Memory that weights_load takes for one tensor of the plan, and for what. */
status_t weights_tensor_bytes(const weights_plan_t *plan, size_t index, memory_label_t *label, size_t *bytes);

/* Adds what weights_load will allocate to `needed`. */
status_t weights_count(const weights_plan_t *plan, size_t needed[MEMORY_N_LABELS]);

/* Reads or makes the rank's tensors. 8-bit forms need a backend that takes them; their matrices become so one by one.
 * With show_progress (the same on all ranks) rank 0 shows how far it is, and then what each rank has read. Collective:
 * the ranks agree after each layer, so that one rank's fault ends all of them soon. STATUS_INPUT where a digest is
 * wrong. The caller ends it with weights_destroy. */
status_t weights_load(tensor_source_t *source, backend_t *backend, const dense_form_t *dense, bool show_progress,
                      weights_t **weights);
void weights_destroy(weights_t *weights); /* NULL is allowed */

/* Puts all dense projections into use in 8 bits or in FP16; without keep_f16 nothing changes. Recorded steps hold the
 * form that they were recorded with. */
void weights_use_dense8(weights_t *weights, bool on);

#ifdef __cplusplus
}
#endif
#endif
