/* Where ranks meet and where a step ends: all_reduce and argmax. */

#include "microbench/ops.h"

typedef struct all_reduce_args {
    activation_t *data;
    int64_t n;
} all_reduce_args_t;

static bool has_ranks(const microbench_t *bench) { return comm_tp_size(bench->backend->comm) > 1; }

/* Rank r's values have key r + 1, so that every rank knows them. */
static operand_values_t of_rank(const microbench_t *bench, int64_t n, int rank) {
    return (operand_values_t){.life = OPERAND_WARM,
                              .dtype = operands_activation_dtype(&bench->operands),
                              .n = n,
                              .reach = 1.0,
                              .key = (uint64_t)rank + 1};
}

static status_t prepare_all_reduce(microbench_t *bench, void *args) {
    all_reduce_args_t made = {.n = bench->n_tokens * bench->config->hidden_size};
    const operand_values_t values = of_rank(bench, made.n, comm_tp_rank(bench->backend->comm));
    void *data;
    TRY(operands_values(&bench->operands, &values, &data));
    made.data = data;
    *(all_reduce_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_all_reduce(backend_t *backend, const void *args) {
    const all_reduce_args_t *sum = args;
    return backend->ops->all_reduce(backend, sum->data, (size_t)sum->n);
}

static status_t reference_all_reduce(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const all_reduce_args_t *sum = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    const double *data = ops_download_activations(&arrays, sum->data, sum->n);
    for (int64_t i = 0; arrays.status == STATUS_OK && i < sum->n; i++) {
        double expected = 0;
        for (int rank = 0; rank < comm_tp_size(bench->backend->comm); rank++) {
            const operand_values_t values = of_rank(bench, sum->n, rank);
            expected += operands_value_of(&values, i);
        }
        microbench_compare(data[i], expected, error);
    }
    return ops_free(&arrays);
}

/* What a rank sends to each other one, and takes from it. */
static double bytes_all_reduce(const microbench_t *bench, const void *args) {
    const all_reduce_args_t *sum = args;
    return 2.0 * (double)sum->n * (double)bench->backend->ops->activation_bytes *
           (double)(comm_tp_size(bench->backend->comm) - 1);
}

const microbench_op_t microbench_all_reduce = {.name = "all_reduce",
                                               .summary = "sum over ranks",
                                               .args_bytes = sizeof(all_reduce_args_t),
                                               .exists = has_ranks,
                                               .prepare = prepare_all_reduce,
                                               .run = run_all_reduce,
                                               .reference = reference_all_reduce,
                                               .bytes = bytes_all_reduce};

static status_t prepare_argmax(microbench_t *bench, void *args) {
    argmax_args_t made = {.n_logits = bench->local.vocab,
                          .first_token = bench->local.tp_rank * bench->local.vocab,
                          .n_valid = bench->config->vocab_size};
    float *logits;
    void *pair;
    TRY(operands_floats(&bench->operands, OPERAND_WARM, made.n_logits, 8.0, &logits));
    TRY(operands_output(&bench->operands, sizeof(token_pair_t), &pair));
    made.logits = logits;
    made.pair = pair;
    *(argmax_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_argmax(backend_t *backend, const void *args) { return backend->ops->argmax(backend, args); }

static status_t reference_argmax(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const argmax_args_t *argmax = args;
    backend_t *backend = bench->backend;
    const operand_t *logits = operands_find(&bench->operands, argmax->logits);
    int64_t best = 0;
    for (int64_t i = 1; i < argmax->n_logits; i++) {
        if (operand_value(logits, i) > operand_value(logits, best)) best = i;
    }
    token_pair_t pair;
    TRY(backend->ops->download(backend, &pair, argmax->pair, sizeof pair));
    microbench_compare(pair.value, operand_value(logits, best), error);
    if (pair.token != argmax->first_token + best) error->is_wrong = true;
    return STATUS_OK;
}

static double bytes_argmax(const microbench_t *bench, const void *args) {
    const argmax_args_t *argmax = args;
    (void)bench;
    return (double)argmax->n_logits * sizeof(float);
}

const microbench_op_t microbench_argmax = {.name = "argmax",
                                           .summary = "a rank's best token",
                                           .args_bytes = sizeof(argmax_args_t),
                                           .prepare = prepare_argmax,
                                           .run = run_argmax,
                                           .reference = reference_argmax,
                                           .bytes = bytes_argmax};
