/* The projections, one op at the shapes of its places in a step. */

#include "microbench/ops.h"

/* Multiply-adds of a reference at most; of more outputs, every how many-th stands for all. */
static const double most_work = 3e8;

static status_t prepare(microbench_t *bench, bool is_dense, int64_t rows, int64_t columns, bool is_f32, void *args) {
    operands_t *operands = &bench->operands;
    linear_args_t made = {.n_tokens = bench->n_tokens};
    activation_t *x;
    void *y;
    if (is_dense)
        TRY(operands_dense(operands, rows, columns, &made.weight));
    else
        TRY(operands_matrix(operands, OPERAND_COLD, rows, columns, &made.weight));
    TRY(operands_activations(operands, OPERAND_WARM, bench->n_tokens * columns, 1.0, &x));
    size_t item_bytes = is_f32 ? sizeof(float) : bench->backend->ops->activation_bytes;
    TRY(operands_output(operands, (size_t)(bench->n_tokens * rows) * item_bytes, &y));
    made.x = x;
    made.y = is_f32 ? NULL : y;
    made.y_f32 = is_f32 ? y : NULL;
    *(linear_args_t *)args = made;
    return STATUS_OK;
}

static status_t run(backend_t *backend, const void *args) { return backend->ops->linear(backend, args); }

/* What lies in y or y_f32 against W x. */
static status_t compare(const microbench_t *bench, const linear_args_t *linear, microbench_error_t *error) {
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t rows = linear->weight.rows, columns = linear->weight.columns, n = linear->n_tokens * rows;
    const double *x = ops_read(&arrays, linear->x, linear->n_tokens * columns);
    const double *y = linear->y ? ops_download_activations(&arrays, linear->y, n)
                                : ops_download(&arrays, linear->y_f32, DTYPE_F32, n);
    double *expected = ops_zeros(&arrays, n);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    const operand_t *weight = operands_find(&bench->operands, linear->weight.data);
    int64_t step = 1 + (int64_t)((double)n * (double)columns / most_work);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i += step) {
        for (int64_t c = 0; c < columns; c++)
            expected[i] += operand_value(weight, i % rows * columns + c) * x[i / rows * columns + c];
    }
    for (int64_t i = 0; i < n; i += step)
        microbench_compare(y[i], expected[i], error);
    return ops_free(&arrays);
}

static status_t reference(const microbench_t *bench, const void *args, microbench_error_t *error) {
    return compare(bench, args, error);
}

static double bytes(const microbench_t *bench, const void *args) {
    const linear_args_t *linear = args;
    double rows = (double)linear->weight.rows, columns = (double)linear->weight.columns;
    double activation_bytes = (double)bench->backend->ops->activation_bytes;
    return ops_matrix_bytes(&linear->weight) +
           (double)linear->n_tokens * (columns * activation_bytes + rows * (linear->y ? activation_bytes : 4.0));
}

/* is_dense: --dense may keep it in 8 bits (model/dense.h). */
#define LINEAR(op, what, condition, is_dense, n_rows, n_columns, is_f32)                                               \
    static status_t prepare_##op(microbench_t *bench, void *args) {                                                    \
        return prepare(bench, is_dense, n_rows, n_columns, is_f32, args);                                              \
    }                                                                                                                  \
    const microbench_op_t microbench_##op = {.name = #op,                                                              \
                                             .summary = what,                                                          \
                                             .args_bytes = sizeof(linear_args_t),                                      \
                                             .exists = condition,                                                      \
                                             .prepare = prepare_##op,                                                  \
                                             .run = run,                                                               \
                                             .reference = reference,                                                   \
                                             .bytes = bytes}
LINEAR(ple_kv_proj, "key and value of the n-gram block", ops_has_ple, false,
       bench->local.stream_width + bench->config->hidden_size, bench->config->ple_embed_dim, false);
LINEAR(gdn_in_proj, "q, k, v, z, b, a of GDN", ops_has_gdn, true, bench->local.gdn_projected,
       bench->config->hidden_size, false);
LINEAR(gdn_out_proj, "output of GDN", ops_has_gdn, true, bench->config->hidden_size, bench->local.value_width, false);
LINEAR(qsa_in_proj, "q, gate, k, v and index keys of QSA", ops_has_qsa, true, bench->local.qsa_projected,
       bench->config->hidden_size, false);
LINEAR(qsa_o_proj, "output of QSA", ops_has_qsa, true, bench->config->hidden_size, bench->local.attention_width, false);
LINEAR(router_proj, "router logits and the shared expert's gate", NULL, false, router_rows(bench->config->num_experts),
       bench->config->hidden_size, true);

static status_t prepare_lm_head(microbench_t *bench, void *args) {
    static const uint64_t zeros[LM_HEAD_STATE];
    operands_t *operands = &bench->operands;
    lm_head_args_t made = {.first_token = bench->local.tp_rank * bench->local.vocab,
                           .n_valid = bench->config->vocab_size};
    activation_t *u;
    void *data;
    TRY(operands_matrix(operands, OPERAND_COLD, bench->local.vocab, bench->config->hidden_size, &made.weight));
    TRY(operands_activations(operands, OPERAND_WARM, bench->config->hidden_size, 1.0, &u));
    made.u = u;
    TRY(operands_output(operands, (size_t)made.weight.rows * sizeof(float), &data));
    made.logits = data;
    TRY(operands_output(operands, sizeof(token_pair_t), &data));
    made.pair = data;
    TRY(operands_upload(operands, OPERAND_WARM, DTYPE_I64, LM_HEAD_STATE, zeros, &data));
    made.state = data;
    *(lm_head_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_lm_head(backend_t *backend, const void *args) { return backend->ops->lm_head(backend, args); }

static status_t reference_lm_head(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const lm_head_args_t *head = args;
    const linear_args_t linear = {.n_tokens = 1, .weight = head->weight, .x = head->u, .y_f32 = head->logits};
    ops_arrays_t arrays = {.operands = &bench->operands};
    token_pair_t pair;
    TRY(compare(bench, &linear, error));
    TRY(bench->backend->ops->download(bench->backend, &pair, head->pair, sizeof pair));
    const double *logits = ops_download(&arrays, head->logits, DTYPE_F32, head->weight.rows);
    int64_t best = 0;
    for (int64_t i = 1; logits && i < head->weight.rows; i++)
        if (logits[i] > logits[best]) best = i;
    if (pair.token != head->first_token + best) error->is_wrong = true;
    return ops_free(&arrays);
}

static double bytes_lm_head(const microbench_t *bench, const void *args) {
    const lm_head_args_t *head = args;
    return ops_matrix_bytes(&head->weight) +
           (double)head->weight.columns * (double)bench->backend->ops->activation_bytes +
           (double)head->weight.rows * sizeof(float);
}

const microbench_op_t microbench_lm_head = {.name = "lm_head",
                                            .summary = "logits and their argmax",
                                            .args_bytes = sizeof(lm_head_args_t),
                                            .prepare = prepare_lm_head,
                                            .run = run_lm_head,
                                            .reference = reference_lm_head,
                                            .bytes = bytes_lm_head};
