/* What works on the residual streams: embed and the gated residual. */

#include "microbench/ops.h"

enum { REFERENCE_TOKENS = 4 };

/* One matrix: every copy takes other rows of it. */
static status_t prepare_embed(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    embed_args_t made = {.n_tokens = bench->n_tokens, .hc_count = config->hc_count};
    void *tokens, *h;
    TRY(operands_matrix(operands, OPERAND_WARM, config->vocab_size, config->hidden_size, &made.embed));
    TRY(operands_ids(operands, OPERAND_COLD, DTYPE_I32, bench->n_tokens, config->vocab_size, &tokens));
    TRY(operands_output(operands, (size_t)(bench->n_tokens * bench->local.stream_width) * sizeof(float), &h));
    made.tokens = tokens;
    made.h = h;
    *(embed_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_embed(backend_t *backend, const void *args) { return backend->ops->embed(backend, args); }

static status_t reference_embed(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const embed_args_t *embed = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t H = bench->config->hidden_size, S = embed->hc_count, N = embed->n_tokens;
    const double *tokens = ops_read(&arrays, embed->tokens, N);
    const double *h = ops_download(&arrays, embed->h, DTYPE_F32, N * S * H);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    const operand_t *weight = operands_find(&bench->operands, embed->embed.data);
    for (int64_t i = 0; i < N * S * H; i++)
        microbench_compare(h[i], operand_value(weight, (int64_t)tokens[i / (S * H)] * H + i % H), error);
    return ops_free(&arrays);
}

static double bytes_embed(const microbench_t *bench, const void *args) {
    const embed_args_t *embed = args;
    double H = (double)bench->config->hidden_size;
    return (double)embed->n_tokens *
           (H * (double)dtype_bytes(embed->embed.dtype) + H * (double)embed->hc_count * sizeof(float));
}

const microbench_op_t microbench_embed = {.name = "embed",
                                          .summary = "a token's row of the embedding to every residual stream",
                                          .args_bytes = sizeof(embed_args_t),
                                          .prepare = prepare_embed,
                                          .run = run_embed,
                                          .reference = reference_embed,
                                          .bytes = bytes_embed};

/* As in a step: with the injection of the block before still to come. */
static status_t prepare_gr_mix(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, H = config->hidden_size, S = config->hc_count, width = bench->local.stream_width;
    gr_mix_args_t made = {.n_tokens = N, .hc_count = S, .hidden_size = H, .rms_norm_eps = (float)config->rms_norm_eps};
    float *inject, *hc_norm;
    activation_t *o;
    void *output;
    TRY(operands_floats(operands, OPERAND_WARM, N * width, 2.0, &made.h));
    TRY(operands_floats(operands, OPERAND_WARM, N * S, 1.0, &inject));
    TRY(operands_activations(operands, OPERAND_WARM, N * H, 1.0, &o));
    TRY(operands_floats(operands, OPERAND_COLD, width, 0.2, &hc_norm));
    TRY(operands_dense(operands, config->hc_lowrank, width, &made.down));
    TRY(operands_dense(operands, width, config->hc_lowrank, &made.up));
    TRY(operands_matrix(operands, OPERAND_COLD, S, width, &made.block_inject));
    TRY(operands_output(operands, (size_t)(N * H) * bench->backend->ops->activation_bytes, &output));
    made.u = output;
    TRY(operands_output(operands, (size_t)(N * S) * sizeof(float), &output));
    made.inject = output;
    TRY(operands_output(operands, bench->backend->ops->gr_mix_workspace_bytes(&made), &made.workspace));
    made.inject_before = inject;
    made.o = o;
    made.hc_norm = hc_norm;
    *(gr_mix_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_gr_mix(backend_t *backend, const void *args) { return backend->ops->gr_mix(backend, args); }

static status_t reference_gr_mix(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const gr_mix_args_t *gr = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = gr->n_tokens, H = gr->hidden_size, S = gr->hc_count, width = S * H, R = gr->down.rows;
    const double *h = ops_read(&arrays, gr->h, N * width), *before = ops_read(&arrays, gr->inject_before, N * S);
    const double *o = ops_read(&arrays, gr->o, N * H), *norm = ops_read(&arrays, gr->hc_norm, width);
    const double *down = ops_read(&arrays, gr->down.data, R * width), *up = ops_read(&arrays, gr->up.data, width * R);
    const double *block = ops_read(&arrays, gr->block_inject.data, S * width);
    const double *h_after = ops_download(&arrays, gr->h, DTYPE_F32, N * width);
    const double *inject = ops_download(&arrays, gr->inject, DTYPE_F32, N * S);
    const double *u = ops_download_activations(&arrays, gr->u, N * H);
    microbench_error_t of_h = {0}, of_inject = {0}, of_u = {0};
    double *z = ops_zeros(&arrays, width), *a = ops_zeros(&arrays, R), *gate = ops_zeros(&arrays, width);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    for (int64_t t = 0; t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        for (int64_t i = 0; i < width; i++) {
            z[i] = h[t * width + i] + before[t * S + i / H] * o[t * H + i % H];
            microbench_compare(h_after[t * width + i], z[i], &of_h);
        }
        for (int64_t s = 0; s < S; s++)
            ops_norm(z + s * H, norm + s * H, H, gr->rms_norm_eps, z + s * H);
        for (int64_t r = 0; r < R; r++)
            a[r] = ops_silu(ops_dot(down + r * width, z, width) / (double)S);
        for (int64_t s = 0; s < S; s++)
            microbench_compare(inject[t * S + s], 2.0 * ops_sigmoid(ops_dot(block + s * width, z, width) / (double)S),
                               error);
#pragma omp parallel for
        for (int64_t i = 0; i < width; i++)
            gate[i] = ops_sigmoid(ops_dot(up + i * R, a, R));
        for (int64_t i = 0; i < H; i++) {
            double sum = 0;
            for (int64_t s = 0; s < S; s++)
                sum += gate[s * H + i] * z[s * H + i];
            microbench_compare(u[t * H + i], sum / (double)S, &of_u);
        }
    }
    microbench_take_worst(&of_h, error);
    microbench_take_worst(&of_inject, error);
    microbench_take_worst(&of_u, error);
    return ops_free(&arrays);
}

static double bytes_gr_mix(const microbench_t *bench, const void *args) {
    const gr_mix_args_t *gr = args;
    double width = (double)bench->local.stream_width, H = (double)gr->hidden_size, S = (double)gr->hc_count;
    double token =
        2 * width * sizeof(float) + 2 * H * (double)bench->backend->ops->activation_bytes + 2 * S * sizeof(float);
    return ops_matrix_bytes(&gr->down) + ops_matrix_bytes(&gr->up) + ops_matrix_bytes(&gr->block_inject) +
           width * sizeof(float) + (double)gr->n_tokens * token;
}

const microbench_op_t microbench_gr_mix = {.name = "gr_mix",
                                           .summary = "gated residual: takes in the block before, mixes the streams",
                                           .args_bytes = sizeof(gr_mix_args_t),
                                           .prepare = prepare_gr_mix,
                                           .run = run_gr_mix,
                                           .reference = reference_gr_mix,
                                           .bytes = bytes_gr_mix};

static status_t prepare_gr_inject(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, H = config->hidden_size, S = config->hc_count;
    gr_inject_args_t made = {.n_tokens = N, .hc_count = S, .hidden_size = H};
    float *inject;
    activation_t *o;
    TRY(operands_floats(operands, OPERAND_WARM, N * S, 1.0, &inject));
    TRY(operands_activations(operands, OPERAND_WARM, N * H, 1.0, &o));
    TRY(operands_floats(operands, OPERAND_WARM, N * S * H, 2.0, &made.h));
    made.inject = inject;
    made.o = o;
    *(gr_inject_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_gr_inject(backend_t *backend, const void *args) { return backend->ops->gr_inject(backend, args); }

static status_t reference_gr_inject(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const gr_inject_args_t *gr = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = gr->n_tokens, H = gr->hidden_size, S = gr->hc_count, n = N * S * H;
    const double *h = ops_read(&arrays, gr->h, n), *inject = ops_read(&arrays, gr->inject, N * S);
    const double *o = ops_read(&arrays, gr->o, N * H), *h_after = ops_download(&arrays, gr->h, DTYPE_F32, n);
    for (int64_t i = 0; arrays.status == STATUS_OK && i < n; i++)
        microbench_compare(h_after[i], h[i] + inject[i / H] * o[i / (S * H) * H + i % H], error);
    return ops_free(&arrays);
}

static double bytes_gr_inject(const microbench_t *bench, const void *args) {
    const gr_inject_args_t *gr = args;
    double H = (double)gr->hidden_size, S = (double)gr->hc_count;
    return (double)gr->n_tokens * ((2 * S * H + S) * sizeof(float) + H * (double)bench->backend->ops->activation_bytes);
}

const microbench_op_t microbench_gr_inject = {.name = "gr_inject",
                                              .summary = "gated residual: adds a block's output to the streams",
                                              .args_bytes = sizeof(gr_inject_args_t),
                                              .prepare = prepare_gr_inject,
                                              .run = run_gr_inject,
                                              .reference = reference_gr_inject,
                                              .bytes = bytes_gr_inject};
