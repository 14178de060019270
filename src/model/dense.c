#include "model/dense.h"

#include <string.h>

const char *dense_role_name(dense_role_t role) {
    static const char *const names[DENSE_N_ROLES] = {
        [DENSE_GR_DOWN] = "gr_down",      [DENSE_GR_UP] = "gr_up",        [DENSE_GDN_IN] = "gdn_in_proj",
        [DENSE_GDN_OUT] = "gdn_out_proj", [DENSE_QSA_IN] = "qsa_in_proj", [DENSE_QSA_OUT] = "qsa_o_proj",
    };
    return names[role];
}

dense_role_t dense_role_of(const schema_tensor_t *tensor) {
    static const struct {
        const char *part; /* of the path */
        dense_role_t role;
    } parts[] = {
        {"/input_mix_weight_down", DENSE_GR_DOWN},
        {"/input_mix_weight_up", DENSE_GR_UP},
        {"/gdn/in_proj_", DENSE_GDN_IN},
        {"/gdn/out_proj", DENSE_GDN_OUT},
        {"/qsa/q_proj", DENSE_QSA_IN},
        {"/qsa/k_proj", DENSE_QSA_IN},
        {"/qsa/v_proj", DENSE_QSA_IN},
        {"/qsa/index_qk_proj", DENSE_QSA_IN},
        {"/qsa/o_proj", DENSE_QSA_OUT},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(tensor->path, parts[i].part)) return parts[i].role;
    }
    return DENSE_N_ROLES;
}

size_t dense_tensor_bytes(const schema_tensor_t *tensor, const dense_form_t *form) {
    int64_t rows = tensor->shape[0], columns = tensor->shape[1];
    size_t f16_bytes = (size_t)(rows * columns) * sizeof(uint16_t);
    if (!form->is_8bit) return f16_bytes;
    return dense8_bytes(form->dtype, rows, columns) + (form->keep_f16 ? f16_bytes : 0);
}

size_t dense_scratch_bytes(const schema_tensor_t *tensors, size_t n_tensors) {
    size_t most = 0, stacked = 0, directory = 0;
    const schema_tensor_t *before = NULL;
    for (size_t i = 0; i < n_tensors; i++) {
        const schema_tensor_t *tensor = &tensors[i];
        if (dense_role_of(tensor) == DENSE_N_ROLES) continue;
        bool goes_on = before && dense_role_of(before) == dense_role_of(tensor) &&
                       strncmp(before->path, tensor->path, directory) == 0;
        stacked = (goes_on ? stacked : 0) + (size_t)(tensor->shape[0] * tensor->shape[1]) * sizeof(uint16_t);
        if (stacked > most) most = stacked;
        directory = (size_t)(strrchr(tensor->path, '/') + 1 - tensor->path);
        before = tensor;
    }
    return most;
}
