#ifndef GALVANI_SHARD_SCHEMA_H
#define GALVANI_SHARD_SCHEMA_H

/* What a shard file holds: the one table that the writer, the reader and the memory plan share. Pure arithmetic. */

/* clang-format off */
/* Dataset                                   local shape                  dtype          slice
 * /embed                                    [vocab_size, hidden_size]    BF16           replicated
 * /lm_head                                  [vocab_size/T, hidden_size]  BF16           rows
 * /final_hc/hc_norm                         [S*H]                        BF16           replicated, as all *_hc
 * /final_hc/input_mix_weight_down           [R, S*H]
 * /final_hc/input_mix_weight_up             [S*H, R]
 * /layers/NN/attn_hc/..., mlp_hc/...        the same three and block_inject_weight [S, S*H]
 * /layers/NN/gdn/in_proj_qkv                [(2*Kh*Dk + Vh*Dv)/T, H]     BF16           rows of q, of k and of v
 * /layers/NN/gdn/in_proj_z                  [Vh*Dv/T, H]                 BF16           rows
 * /layers/NN/gdn/in_proj_b, in_proj_a       [Vh/T, H]                    BF16           rows
 * /layers/NN/gdn/conv1d                     [(2*Kh*Dk + Vh*Dv)/T, Cw]    BF16           as in_proj_qkv
 * /layers/NN/gdn/A_log, dt_bias             [Vh/T]                       F32            rows
 * /layers/NN/gdn/norm                       [Dv]                         BF16           replicated
 * /layers/NN/gdn/out_proj                   [H, Vh*Dv/T]                 BF16           columns
 * /layers/NN/qsa/q_proj                     [Ah*2*Ad/T, H]               BF16           rows (per head: query, gate)
 * /layers/NN/qsa/k_proj, v_proj             [max(KVh/T, 1)*Ad, H]        BF16           rows; T/KVh ranks share a head
 * /layers/NN/qsa/o_proj                     [H, Ah*Ad/T]                 BF16           columns
 * /layers/NN/qsa/q_norm, k_norm             [Ad]                         BF16           replicated
 * /layers/NN/qsa/index_qk_proj              [(Ih+1)*Id, H]               BF16           replicated
 * /layers/NN/qsa/index_q_norm, index_k_norm [Id]                         BF16           replicated
 * /layers/NN/moe/router                     [E, H]                       BF16           replicated
 * /layers/NN/moe/shared_gate_proj, shared_up_proj [Ms/T, H]              BF16           rows
 * /layers/NN/moe/shared_down_proj           [H, Ms/T]                    BF16           columns
 * /layers/NN/moe/shared_expert_gate         [1, H]                       BF16           replicated
 * NVFP4 experts; gate rows stand before up rows:
 * /layers/NN/moe/gate_up_codes              [E, 2*M/T, H/2]              U8             rows of gate and of up
 * /layers/NN/moe/gate_up_scales             [E, 2*M/T, H/16]             F8_E4M3        rows of gate and of up
 * /layers/NN/moe/gate_up_scale_2            [E, 2]                       F32            gate's, up's
 * /layers/NN/moe/down_codes                 [E, H, M/T/2]                U8             columns
 * /layers/NN/moe/down_scales                [E, H, M/T/16]               F8_E4M3        columns
 * /layers/NN/moe/down_scale_2               [E]                          F32
 * or FP16 experts:
 * /layers/NN/moe/gate_up                    [E, 2*M/T, H]                F16            rows of gate and of up
 * /layers/NN/moe/down                       [E, H, M/T]                  F16            columns
 * PLE, NN is the layer index:
 * /ple/NN/table                             [n_rows/T, ple_embed_dim/n_heads] F8_E4M3 or BF16, row block r
 * /ple/NN/table_scale                       [1]                          F32            1 for a BF16 table
 * /ple/NN/key_proj                          [S*H, ple_embed_dim]         BF16           replicated
 * /ple/NN/value_proj                        [H, ple_embed_dim]           BF16           replicated
 * /ple/NN/norm_key, norm_query, norm_conv   [S*H]                        BF16           replicated
 * /ple/NN/conv1d                            [S*H, ple_conv_kernel_size]  BF16           replicated
 *
 * T = tp_size; S = hc_count, R = hc_lowrank, Kh, Vh, Dk, Dv = linear_num_key_heads, linear_num_value_heads,
 * linear_key_head_dim, linear_value_head_dim; Ah, KVh, Ad = num_attention_heads, num_key_value_heads, head_dim;
 * Ih, Id = indexer_n_heads, indexer_head_dim; E, M, Ms = num_experts, moe_intermediate_size,
 * shared_expert_intermediate_size. KV heads: rank r holds heads r*KVh/T ... where T <= KVh, else head r/(T/KVh). */
/* clang-format on */

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum expert_format { EXPERTS_NVFP4, EXPERTS_F16 } expert_format_t;

enum { SCHEMA_MAX_DIMS = 3, SCHEMA_PATH_BYTES = 64 };

/* What distinguishes two models of one config. */
typedef struct schema_options {
    int tp_rank, tp_size;
    expert_format_t expert_format;
    dtype_t ple_dtype; /* DTYPE_F8_E4M3 or DTYPE_BF16 */
} schema_options_t;

typedef struct schema_tensor {
    char path[SCHEMA_PATH_BYTES]; /* dataset path */
    dtype_t dtype;
    int n_dims;
    int64_t shape[SCHEMA_MAX_DIMS]; /* local */
} schema_tensor_t;

/* Whether tp_size divides everything that it slices. `fault` with the offending field otherwise. */
status_t schema_check_tp(const model_config_t *config, int tp_size, status_t fault);

/* Whether the config can be cut as `options` say: schema_check_tp, the rank, and whole NVFP4 blocks on every rank.
 * `fault` with the reason otherwise. */
status_t schema_check(const model_config_t *config, const schema_options_t *options, status_t fault);

/* Lists the tensors of one rank's shard in file order. The caller frees `*tensors` with memory_free. STATUS_USAGE where
 * schema_check fails. */
status_t schema_build(const model_config_t *config, const schema_options_t *options, schema_tensor_t **tensors,
                      size_t *n_tensors);

/* Bytes of one tensor; STATUS_MEMORY if they do not fit in 64 bits. */
status_t schema_tensor_bytes(const schema_tensor_t *tensor, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
