#ifndef GALVANI_CHECKPOINT_ROLES_H
#define GALVANI_CHECKPOINT_ROLES_H

/* What each tensor of a checkpoint is: the one table of names, shapes and types. Names are matched whole, so that
 * mtp.layers.0... is never taken for a layer of the text tower. */

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum role {
    ROLE_EMBED,
    ROLE_LM_HEAD,
    ROLE_FINAL_HC_NORM,
    ROLE_FINAL_HC_DOWN,
    ROLE_FINAL_HC_UP,
    /* every layer */
    ROLE_ATTN_HC_NORM,
    ROLE_ATTN_HC_DOWN,
    ROLE_ATTN_HC_UP,
    ROLE_ATTN_HC_INJECT,
    ROLE_MLP_HC_NORM,
    ROLE_MLP_HC_DOWN,
    ROLE_MLP_HC_UP,
    ROLE_MLP_HC_INJECT,
    ROLE_ROUTER,
    ROLE_SHARED_GATE_PROJ,
    ROLE_SHARED_UP_PROJ,
    ROLE_SHARED_DOWN_PROJ,
    ROLE_SHARED_EXPERT_GATE,
    /* GDN layers */
    ROLE_GDN_IN_PROJ_QKV,
    ROLE_GDN_IN_PROJ_Z,
    ROLE_GDN_IN_PROJ_B,
    ROLE_GDN_IN_PROJ_A,
    ROLE_GDN_CONV1D,
    ROLE_GDN_A_LOG,
    ROLE_GDN_DT_BIAS,
    ROLE_GDN_NORM,
    ROLE_GDN_OUT_PROJ,
    /* QSA layers */
    ROLE_QSA_Q_PROJ,
    ROLE_QSA_K_PROJ,
    ROLE_QSA_V_PROJ,
    ROLE_QSA_O_PROJ,
    ROLE_QSA_Q_NORM,
    ROLE_QSA_K_NORM,
    ROLE_QSA_INDEX_QK_PROJ,
    ROLE_QSA_INDEX_Q_NORM,
    ROLE_QSA_INDEX_K_NORM,
    /* one per expert of every layer; the weights are NVFP4 codes or BF16, the scales belong to NVFP4 */
    ROLE_EXPERT_GATE,
    ROLE_EXPERT_GATE_SCALE,
    ROLE_EXPERT_GATE_SCALE_2,
    ROLE_EXPERT_GATE_INPUT_SCALE,
    ROLE_EXPERT_UP,
    ROLE_EXPERT_UP_SCALE,
    ROLE_EXPERT_UP_SCALE_2,
    ROLE_EXPERT_UP_INPUT_SCALE,
    ROLE_EXPERT_DOWN,
    ROLE_EXPERT_DOWN_SCALE,
    ROLE_EXPERT_DOWN_SCALE_2,
    ROLE_EXPERT_DOWN_INPUT_SCALE,
    /* all experts of a layer in one BF16 tensor, gate before up */
    ROLE_EXPERTS_GATE_UP,
    ROLE_EXPERTS_DOWN,
    /* PLE layers; the table is one tensor or shards of row blocks in index order */
    ROLE_PLE_KEY_PROJ,
    ROLE_PLE_VALUE_PROJ,
    ROLE_PLE_NORM_KEY,
    ROLE_PLE_NORM_QUERY,
    ROLE_PLE_NORM_CONV,
    ROLE_PLE_CONV1D,
    ROLE_PLE_MULTIPLIERS,
    ROLE_PLE_HEAD_SIZES,
    ROLE_PLE_HEAD_OFFSETS,
    ROLE_PLE_TABLE_SHARD,
    ROLE_PLE_TABLE,
    ROLE_PLE_TABLE_SCALE,
    ROLE_N,
    /* not part of the text tower */
    ROLE_MTP,
    ROLE_VISUAL,
    ROLE_UNKNOWN
} role_t;

enum { ROLE_NAME_BYTES = 160 };

/* A role and where: the layer (0 outside layers) and the expert or table shard (0 where there is one only). */
typedef struct role_place {
    role_t role;
    int64_t layer, item;
} role_place_t;

/* How the experts are stored; one form for the whole checkpoint. */
typedef enum expert_storage { STORED_NVFP4, STORED_BF16, STORED_BF16_FUSED } expert_storage_t;

enum { ROLE_MAX_DIMS = 3 };

/* What a tensor must be. */
typedef struct role_expectation {
    unsigned dtypes; /* bit 1 << dtype for each type that it may have */
    int n_dims;
    int64_t shape[ROLE_MAX_DIMS]; /* -1: the number of rows of a PLE table or shard, which the role does not tell */
} role_expectation_t;

/* What the tensor of that name is. ROLE_UNKNOWN if it is none of the table. */
role_place_t role_parse(const char *name);

/* The name of a place of the text tower. */
void role_name(role_place_t place, char name[ROLE_NAME_BYTES]);

/* The tensor at a place, or NULL. */
const checkpoint_tensor_t *role_find(const checkpoint_t *checkpoint, role_place_t place);

/* Whether the config gives the text tower a tensor at that place: its layer, the layer's type, its expert. Every shard
 * number of a table fits. */
bool role_exists(role_place_t place, const model_config_t *config, expert_storage_t storage);

role_expectation_t role_expect(role_t role, const model_config_t *config, expert_storage_t storage);

/* Number of layers and of items per layer that a role can have (1 where they do not count). */
int64_t role_n_layers(role_t role, const model_config_t *config);
int64_t role_n_items(role_t role, const model_config_t *config);

#ifdef __cplusplus
}
#endif
#endif
