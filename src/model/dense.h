#ifndef GALVANI_MODEL_DENSE_H
#define GALVANI_MODEL_DENSE_H

/* Which projections may be kept in 8 bits (linear/dense8.h), and what that takes: those of GR, GDN and QSA. Rows that
 * are stacked with them go along: b and a of GDN, index_qk of QSA. Router, shared expert, experts, embedding, LM head,
 * PLE and block_inject stay as they are. */

#include <stdbool.h>

#include "linear/dense8.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dense_role {
    DENSE_GR_DOWN,
    DENSE_GR_UP,
    DENSE_GDN_IN,
    DENSE_GDN_OUT,
    DENSE_QSA_IN,
    DENSE_QSA_OUT,
    DENSE_N_ROLES
} dense_role_t;

const char *dense_role_name(dense_role_t role);

/* The form that they are loaded in. All zeros is FP16. */
typedef struct dense_form {
    bool is_8bit;
    dtype_t dtype; /* DTYPE_Q8 or DTYPE_QPN8, with is_8bit */
    bool keep_f16; /* besides, so that a run can go from one to the other */
} dense_form_t;

/* DENSE_N_ROLES for a tensor that is none of them. */
dense_role_t dense_role_of(const schema_tensor_t *tensor);

/* Bytes of a rank's tensors in that form: of one of them, but for the padding between codes and scales, and of the FP16
 * scratch that set_dense8_scratch is to be given. */
size_t dense_tensor_bytes(const schema_tensor_t *tensor, const dense_form_t *form);
size_t dense_scratch_bytes(const schema_tensor_t *tensors, size_t n_tensors);

#ifdef __cplusplus
}
#endif
#endif
