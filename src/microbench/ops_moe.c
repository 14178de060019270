/* The mixture of experts behind the router's projection. */

#include <math.h>

#include "microbench/ops.h"

enum { REFERENCE_TOKENS = 4 };

static status_t prepare_router(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, K = config->num_experts_per_tok;
    router_args_t made = {.n_tokens = N,
                          .n_experts = config->num_experts,
                          .top_k = K,
                          .norm_topk_prob = config->norm_topk_prob,
                          .logits_stride = router_rows(config->num_experts)};
    float *logits;
    void *experts, *weights, *shared_gate;
    TRY(operands_floats(operands, OPERAND_WARM, N * made.logits_stride, 4.0, &logits));
    TRY(operands_output(operands, (size_t)(N * K) * sizeof(int32_t), &experts));
    TRY(operands_output(operands, (size_t)(N * K) * sizeof(float), &weights));
    TRY(operands_output(operands, (size_t)N * sizeof(float), &shared_gate));
    made.logits = logits;
    made.experts = experts;
    made.weights = weights;
    made.shared_gate = shared_gate;
    *(router_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_router(backend_t *backend, const void *args) { return backend->ops->router(backend, args); }

static status_t reference_router(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const router_args_t *router = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = router->n_tokens, E = router->n_experts, K = router->top_k;
    double *logits = ops_read(&arrays, router->logits, N * router->logits_stride);
    const double *experts = ops_download(&arrays, router->experts, DTYPE_I32, N * K);
    const double *weights = ops_download(&arrays, router->weights, DTYPE_F32, N * K);
    const double *shared_gate = ops_download(&arrays, router->shared_gate, DTYPE_F32, N);
    double *chosen = ops_zeros(&arrays, K);
    for (int64_t t = 0; arrays.status == STATUS_OK && t < N; t++) {
        double *row = logits + t * router->logits_stride, sum_all = 0, sum = 0;
        microbench_compare(shared_gate[t], ops_sigmoid(row[E]), error);
        for (int64_t e = 0; e < E; e++)
            sum_all += exp(row[e]);
        for (int64_t k = 0; k < K; k++) {
            int64_t best = 0;
            for (int64_t e = 1; e < E; e++) {
                if (row[e] > row[best]) best = e;
            }
            if (experts[t * K + k] != (double)best) error->is_wrong = true;
            chosen[k] = exp(row[best]);
            sum += chosen[k];
            row[best] = -INFINITY;
        }
        for (int64_t k = 0; k < K; k++)
            microbench_compare(weights[t * K + k], chosen[k] / (router->norm_topk_prob ? sum : sum_all), error);
    }
    return ops_free(&arrays);
}

static double bytes_router(const microbench_t *bench, const void *args) {
    const router_args_t *router = args;
    (void)bench;
    return (double)router->n_tokens * ((double)router->n_experts + 2 + 2 * (double)router->top_k) * sizeof(float);
}

const microbench_op_t microbench_router = {.name = "router",
                                           .summary = "the experts of a token and their weights",
                                           .args_bytes = sizeof(router_args_t),
                                           .prepare = prepare_router,
                                           .run = run_router,
                                           .reference = reference_router,
                                           .bytes = bytes_router};

/* NVFP4 experts of one layer; every copy takes other ones of it. */
static status_t prepare_expert_weights(microbench_t *bench, int64_t E, int64_t H, int64_t M, expert_weights_t *made) {
    operands_t *operands = &bench->operands;
    void *data;
    TRY(operands_bytes(operands, OPERAND_WARM, DTYPE_U8, E * 2 * M * H / 2, 0xFF, 0, &data));
    made->gate_up_codes = data;
    TRY(operands_bytes(operands, OPERAND_WARM, DTYPE_F8_E4M3, E * 2 * M * H / 16, 0x0F, 0x30, &data));
    made->gate_up_scales = data;
    TRY(operands_bytes(operands, OPERAND_WARM, DTYPE_U8, E * H * M / 2, 0xFF, 0, &data));
    made->down_codes = data;
    TRY(operands_bytes(operands, OPERAND_WARM, DTYPE_F8_E4M3, E * H * M / 16, 0x0F, 0x30, &data));
    made->down_scales = data;
    /* A code times its scale has magnitude 3.4 in the mean. */
    operand_values_t scale_2 = {.life = OPERAND_WARM, .dtype = DTYPE_F32, .n = 2 * E};
    scale_2.middle = 0.6 / sqrt((double)H);
    scale_2.reach = scale_2.middle / 4;
    TRY(operands_values(operands, &scale_2, &data));
    made->gate_up_scale_2 = data;
    scale_2.n = E;
    scale_2.middle = 0.6 / sqrt((double)M);
    scale_2.reach = scale_2.middle / 4;
    TRY(operands_values(operands, &scale_2, &data));
    made->down_scale_2 = data;
    return STATUS_OK;
}

static status_t prepare_experts(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, H = config->hidden_size, K = config->num_experts_per_tok;
    experts_args_t made = {.n_tokens = N,
                           .n_experts = config->num_experts,
                           .top_k = K,
                           .hidden_size = H,
                           .intermediate = bench->local.moe_intermediate};
    activation_t *u;
    void *experts, *weights, *o;
    TRY(prepare_expert_weights(bench, made.n_experts, H, made.intermediate, &made.expert_weights));
    TRY(operands_activations(operands, OPERAND_WARM, N * H, 1.0, &u));
    TRY(operands_choices(operands, N, made.n_experts, K, &experts));
    TRY(operands_values(
        operands,
        &(operand_values_t){.life = OPERAND_WARM, .dtype = DTYPE_F32, .n = N * K, .middle = 0.1, .reach = 0.05},
        &weights));
    TRY(operands_output(operands, (size_t)(N * H) * bench->backend->ops->activation_bytes, &o));
    made.u = u;
    made.experts = experts;
    made.weights = weights;
    made.o = o;
    TRY(operands_output(operands, bench->backend->ops->experts_workspace_bytes(&made), &made.workspace));
    *(experts_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_experts(backend_t *backend, const void *args) { return backend->ops->experts(backend, args); }

/* A row of NVFP4 weights times x, without scale_2. */
static double nvfp4_dot(const operand_t *codes, const operand_t *scales, int64_t row, const double *x, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c += 2) {
        int code = (int)operand_value(codes, (row * n + c) / 2);
        double scale = operand_value(scales, (row * n + c) / 16);
        sum += scale * ((double)e2m1_values[code & 15] * x[c] + (double)e2m1_values[code >> 4] * x[c + 1]);
    }
    return sum;
}

/* o += weight * expert(u) of one token. `a` has room for the intermediate values. */
static void add_expert(const operands_t *operands, const experts_args_t *args, int64_t expert, double weight,
                       const double *u, double *a, double *o) {
    const expert_weights_t *weights = &args->expert_weights;
    int64_t H = args->hidden_size, M = args->intermediate;
    const operand_t *codes = operands_find(operands, weights->gate_up_codes);
    const operand_t *scales = operands_find(operands, weights->gate_up_scales);
    const operand_t *down_codes = operands_find(operands, weights->down_codes);
    const operand_t *down_scales = operands_find(operands, weights->down_scales);
    const operand_t *scale_2 = operands_find(operands, weights->gate_up_scale_2);
    double gate_scale = operand_value(scale_2, 2 * expert), up_scale = operand_value(scale_2, 2 * expert + 1);
    double down_scale = operand_value(operands_find(operands, weights->down_scale_2), expert);
#pragma omp parallel for
    for (int64_t m = 0; m < M; m++) {
        int64_t row = expert * 2 * M + m;
        a[m] = ops_silu(gate_scale * nvfp4_dot(codes, scales, row, u, H)) * up_scale *
               nvfp4_dot(codes, scales, row + M, u, H);
    }
#pragma omp parallel for
    for (int64_t i = 0; i < H; i++)
        o[i] += weight * down_scale * nvfp4_dot(down_codes, down_scales, expert * H + i, a, M);
}

static status_t reference_experts(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const experts_args_t *moe = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = moe->n_tokens, K = moe->top_k, H = moe->hidden_size;
    const double *u = ops_read(&arrays, moe->u, N * H), *experts = ops_read(&arrays, moe->experts, N * K);
    const double *weights = ops_read(&arrays, moe->weights, N * K);
    const double *o = ops_download_activations(&arrays, moe->o, N * H);
    double *a = ops_zeros(&arrays, moe->intermediate), *expected = ops_zeros(&arrays, N * H);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    for (int64_t t = 0; t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        for (int64_t k = t * K; k < (t + 1) * K; k++)
            add_expert(&bench->operands, moe, (int64_t)experts[k], weights[k], u + t * H, a, expected + t * H);
        for (int64_t i = t * H; i < (t + 1) * H; i++)
            microbench_compare(o[i], expected[i], error);
    }
    return ops_free(&arrays);
}

/* Experts that several tokens have chosen are read once. */
static double bytes_experts(const microbench_t *bench, const void *args) {
    const experts_args_t *moe = args;
    double n_chosen = fmin((double)(moe->n_tokens * moe->top_k), (double)moe->n_experts);
    double weights = 3.0 * (double)moe->hidden_size * (double)moe->intermediate * (0.5 + 1.0 / 16);
    return n_chosen * weights +
           (double)moe->n_tokens *
               (2 * (double)moe->hidden_size * (double)bench->backend->ops->activation_bytes + 8 * (double)moe->top_k);
}

const microbench_op_t microbench_experts = {.name = "experts",
                                            .summary = "routed experts, NVFP4",
                                            .args_bytes = sizeof(experts_args_t),
                                            .prepare = prepare_experts,
                                            .run = run_experts,
                                            .reference = reference_experts,
                                            .bytes = bytes_experts};

static status_t prepare_shared(microbench_t *bench, void *args) {
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, H = bench->config->hidden_size, M = bench->local.shared_intermediate;
    shared_expert_args_t made = {.n_tokens = N};
    activation_t *u;
    float *shared_gate;
    TRY(operands_matrix(operands, OPERAND_COLD, 2 * M, H, &made.gate_up));
    TRY(operands_matrix(operands, OPERAND_COLD, H, M, &made.down));
    TRY(operands_activations(operands, OPERAND_WARM, N * H, 1.0, &u));
    TRY(operands_floats(operands, OPERAND_WARM, N, 1.0, &shared_gate));
    TRY(operands_activations(operands, OPERAND_WARM, N * H, 1.0, &made.o));
    TRY(operands_output(operands, bench->backend->ops->shared_expert_workspace_bytes(&made), &made.workspace));
    made.u = u;
    made.shared_gate = shared_gate;
    *(shared_expert_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_shared(backend_t *backend, const void *args) { return backend->ops->shared_expert(backend, args); }

static status_t reference_shared(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const shared_expert_args_t *shared = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = shared->n_tokens, H = shared->down.rows, M = shared->down.columns;
    const double *u = ops_read(&arrays, shared->u, N * H), *gate = ops_read(&arrays, shared->shared_gate, N);
    const double *gate_up = ops_read(&arrays, shared->gate_up.data, 2 * M * H);
    const double *down = ops_read(&arrays, shared->down.data, H * M), *before = ops_read(&arrays, shared->o, N * H);
    const double *o = ops_download_activations(&arrays, shared->o, N * H);
    double *a = ops_zeros(&arrays, M);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    for (int64_t t = 0; t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        for (int64_t m = 0; m < M; m++)
            a[m] = ops_silu(ops_dot(gate_up + m * H, u + t * H, H)) * ops_dot(gate_up + (M + m) * H, u + t * H, H);
        for (int64_t i = 0; i < H; i++)
            microbench_compare(o[t * H + i], before[t * H + i] + gate[t] * ops_dot(down + i * M, a, M), error);
    }
    return ops_free(&arrays);
}

static double bytes_shared(const microbench_t *bench, const void *args) {
    const shared_expert_args_t *shared = args;
    double activations = 3 * (double)shared->down.rows * (double)bench->backend->ops->activation_bytes;
    return ops_matrix_bytes(&shared->gate_up) + ops_matrix_bytes(&shared->down) +
           (double)shared->n_tokens * (activations + sizeof(float));
}

const microbench_op_t microbench_shared_expert = {.name = "shared_expert",
                                                  .summary = "the shared expert",
                                                  .args_bytes = sizeof(shared_expert_args_t),
                                                  .prepare = prepare_shared,
                                                  .run = run_shared,
                                                  .reference = reference_shared,
                                                  .bytes = bytes_shared};

/* The whole block of one token, by the ops one by one or joined (moe/moe.h): whatever the backend takes. */
static bool has_one_token(const microbench_t *bench) { return bench->n_tokens == 1; }

static status_t prepare_moe(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    const backend_ops_t *ops = bench->backend->ops;
    operands_t *operands = &bench->operands;
    int64_t E = config->num_experts, K = config->num_experts_per_tok, H = config->hidden_size;
    int64_t M = bench->local.moe_intermediate, Ms = bench->local.shared_intermediate;
    moe_args_t made = {.n_experts = E,
                       .top_k = K,
                       .hidden_size = H,
                       .intermediate = M,
                       .shared_intermediate = Ms,
                       .norm_topk_prob = config->norm_topk_prob};
    activation_t *u;
    void *logits, *experts, *weights, *shared_gate, *o;
    TRY(operands_matrix(operands, OPERAND_COLD, E + 1, H, &made.router)); /* so each copy chooses other experts */
    TRY(operands_matrix(operands, OPERAND_COLD, 2 * Ms, H, &made.shared_gate_up));
    TRY(operands_matrix(operands, OPERAND_COLD, H, Ms, &made.shared_down));
    TRY(prepare_expert_weights(bench, E, H, M, &made.expert_weights));
    TRY(operands_activations(operands, OPERAND_WARM, H, 1.0, &u));
    TRY(operands_output(operands, (size_t)(E + 1) * sizeof(float), &logits));
    TRY(operands_output(operands, (size_t)K * sizeof(int32_t), &experts));
    TRY(operands_output(operands, (size_t)K * sizeof(float), &weights));
    TRY(operands_output(operands, sizeof(float), &shared_gate));
    TRY(operands_output(operands, (size_t)H * ops->activation_bytes, &o));
    made.u = u;
    made.logits = logits;
    made.experts = experts;
    made.weights = weights;
    made.shared_gate = shared_gate;
    made.o = o;
    size_t most = ops->experts_workspace_bytes(
        &(experts_args_t){.n_tokens = 1, .n_experts = E, .top_k = K, .hidden_size = H, .intermediate = M});
    size_t shared = ops->shared_expert_workspace_bytes(
        &(shared_expert_args_t){.n_tokens = 1, .gate_up = made.shared_gate_up, .down = made.shared_down});
    size_t joined = ops->moe_workspace_bytes ? ops->moe_workspace_bytes(&made) : 0;
    if (most < shared) most = shared;
    if (most < joined) most = joined;
    TRY(operands_output(operands, most, &made.workspace));
    *(moe_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_moe(backend_t *backend, const void *args) {
    const moe_args_t *moe = args;
    const backend_ops_t *ops = backend->ops;
    if (ops->moe_is_joined && ops->moe_is_joined(backend, moe)) {
        TRY(ops->moe_in(backend, moe));
        TRY(ops->moe_gate_up(backend, moe));
        return ops->moe_down(backend, moe);
    }
    TRY(ops->linear(backend,
                    &(linear_args_t){.n_tokens = 1, .weight = moe->router, .x = moe->u, .y_f32 = moe->logits}));
    TRY(ops->router(backend, &(router_args_t){.n_tokens = 1,
                                              .n_experts = moe->n_experts,
                                              .top_k = moe->top_k,
                                              .norm_topk_prob = moe->norm_topk_prob,
                                              .logits = moe->logits,
                                              .experts = moe->experts,
                                              .weights = moe->weights,
                                              .shared_gate = moe->shared_gate}));
    TRY(ops->experts(backend, &(experts_args_t){.n_tokens = 1,
                                                .n_experts = moe->n_experts,
                                                .top_k = moe->top_k,
                                                .hidden_size = moe->hidden_size,
                                                .intermediate = moe->intermediate,
                                                .u = moe->u,
                                                .experts = moe->experts,
                                                .weights = moe->weights,
                                                .expert_weights = moe->expert_weights,
                                                .o = moe->o,
                                                .workspace = moe->workspace}));
    return ops->shared_expert(backend, &(shared_expert_args_t){.n_tokens = 1,
                                                               .u = moe->u,
                                                               .shared_gate = moe->shared_gate,
                                                               .gate_up = moe->shared_gate_up,
                                                               .down = moe->shared_down,
                                                               .o = moe->o,
                                                               .workspace = moe->workspace});
}

static status_t reference_moe(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const moe_args_t *moe = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t E = moe->n_experts, K = moe->top_k, H = moe->hidden_size, M = moe->shared_intermediate;
    const double *u = ops_read(&arrays, moe->u, H), *router = ops_read(&arrays, moe->router.data, (E + 1) * H);
    const double *gate_up = ops_read(&arrays, moe->shared_gate_up.data, 2 * M * H);
    const double *down = ops_read(&arrays, moe->shared_down.data, H * M);
    const double *o = ops_download_activations(&arrays, moe->o, H);
    int64_t most = M > moe->intermediate ? M : moe->intermediate, chosen[64];
    double *a = ops_zeros(&arrays, most), *logits = ops_zeros(&arrays, E + 1), *expected = ops_zeros(&arrays, H);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    double weights[64], sum = 0, sum_all = 0;
    for (int64_t e = 0; e <= E; e++)
        logits[e] = ops_dot(router + e * H, u, H);
    double shared_gate = ops_sigmoid(logits[E]);
    for (int64_t e = 0; e < E; e++)
        sum_all += exp(logits[e]);
    for (int64_t k = 0; k < K && k < 64; k++) {
        chosen[k] = 0;
        for (int64_t e = 1; e < E; e++) {
            if (logits[e] > logits[chosen[k]]) chosen[k] = e;
        }
        weights[k] = exp(logits[chosen[k]]);
        sum += weights[k];
        logits[chosen[k]] = -INFINITY;
    }
    const experts_args_t experts = {
        .hidden_size = H, .intermediate = moe->intermediate, .expert_weights = moe->expert_weights};
    for (int64_t k = 0; k < K && k < 64; k++)
        add_expert(&bench->operands, &experts, chosen[k], weights[k] / (moe->norm_topk_prob ? sum : sum_all), u, a,
                   expected);
    for (int64_t m = 0; m < M; m++)
        a[m] = ops_silu(ops_dot(gate_up + m * H, u, H)) * ops_dot(gate_up + (M + m) * H, u, H);
    for (int64_t i = 0; i < H; i++)
        microbench_compare(o[i], expected[i] + shared_gate * ops_dot(down + i * M, a, M), error);
    return ops_free(&arrays);
}

static double bytes_moe(const microbench_t *bench, const void *args) {
    const moe_args_t *moe = args;
    (void)bench;
    return ops_matrix_bytes(&moe->router) + ops_matrix_bytes(&moe->shared_gate_up) +
           ops_matrix_bytes(&moe->shared_down) +
           3.0 * (double)(moe->top_k * moe->hidden_size * moe->intermediate) * (0.5 + 1.0 / 16);
}

const microbench_op_t microbench_moe = {.name = "moe",
                                        .summary = "router, experts and shared expert of one token",
                                        .args_bytes = sizeof(moe_args_t),
                                        .exists = has_one_token,
                                        .prepare = prepare_moe,
                                        .run = run_moe,
                                        .reference = reference_moe,
                                        .bytes = bytes_moe};
