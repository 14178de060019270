#include "microbench/ops.h"

#include <math.h>

const microbench_op_t *const microbench_ops[] = {
    &microbench_embed,         &microbench_ngram_rows,   &microbench_ple_gather,  &microbench_ple_kv_proj,
    &microbench_ple_mix,       &microbench_gr_mix,       &microbench_gr_inject,   &microbench_gdn_in_proj,
    &microbench_gdn_core,      &microbench_gdn_out_proj, &microbench_qsa_in_proj, &microbench_qsa_prepare,
    &microbench_qsa_select,    &microbench_qsa_attend,   &microbench_qsa_core,    &microbench_qsa_o_proj,
    &microbench_all_reduce,    &microbench_router_proj,  &microbench_router,      &microbench_experts,
    &microbench_shared_expert, &microbench_moe,          &microbench_lm_head,     &microbench_argmax,
};
const int microbench_n_ops = sizeof microbench_ops / sizeof *microbench_ops;

static bool has_layer(const microbench_t *bench, layer_type_t type) {
    for (int64_t layer = 0; layer < bench->config->num_hidden_layers; layer++) {
        if (bench->config->layer_types[layer] == type) return true;
    }
    return false;
}

bool ops_has_gdn(const microbench_t *bench) { return has_layer(bench, LAYER_GDN); }
bool ops_has_qsa(const microbench_t *bench) { return has_layer(bench, LAYER_QSA); }
bool ops_has_ple(const microbench_t *bench) { return bench->config->n_ple_layers > 0; }

double ops_matrix_bytes(const matrix_t *matrix) {
    double rows = (double)matrix->rows, columns = (double)matrix->columns;
    double scales = matrix->dtype == DTYPE_Q8 ? 2.0 / 64 * columns : matrix->dtype == DTYPE_QPN8 ? 4.0 : 0.0;
    return rows * (columns * (double)dtype_bytes(matrix->dtype) + scales);
}

int64_t ops_next_token(int64_t token, int64_t n_tokens, int64_t most) {
    if (token == n_tokens - 1) return -1;
    int64_t step = 1 + (n_tokens - 1) / most;
    return token + step < n_tokens ? token + step : n_tokens - 1;
}

double ops_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
double ops_silu(double x) { return x * ops_sigmoid(x); }

double ops_dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void ops_norm(const double *x, const double *weight, int64_t n, double eps, double *y) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    double factor = 1.0 / sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor * (1.0 + weight[i]);
}

static double *keep(ops_arrays_t *arrays, status_t status, double *values) {
    if (status != STATUS_OK) {
        arrays->status = status;
        return NULL;
    }
    arrays->list[arrays->n++] = values;
    return values;
}

double *ops_read(ops_arrays_t *arrays, const void *data, int64_t n) {
    double *values = NULL;
    if (arrays->status != STATUS_OK) return NULL;
    status_t status = operands_read(arrays->operands, data, n, &values);
    return keep(arrays, status, values);
}

double *ops_download(ops_arrays_t *arrays, const void *data, dtype_t dtype, int64_t n) {
    double *values = NULL;
    if (arrays->status != STATUS_OK) return NULL;
    status_t status = operands_download(arrays->operands, data, dtype, n, &values);
    return keep(arrays, status, values);
}

double *ops_download_activations(ops_arrays_t *arrays, const void *data, int64_t n) {
    return ops_download(arrays, data, operands_activation_dtype(arrays->operands), n);
}

double *ops_zeros(ops_arrays_t *arrays, int64_t n) {
    void *memory = NULL;
    if (arrays->status != STATUS_OK) return NULL;
    status_t status = memory_alloc(MEMORY_OTHER, (size_t)n, sizeof(double), &memory);
    return keep(arrays, status, memory);
}

status_t ops_free(ops_arrays_t *arrays) {
    for (int i = 0; i < arrays->n; i++)
        memory_free(arrays->list[i]);
    arrays->n = 0;
    return arrays->status;
}
