/* Gated DeltaNet between its projections. */

#include <math.h>

#include "microbench/ops.h"

static int64_t channels_of(const gdn_core_args_t *gdn) {
    return 2 * gdn->n_key_heads * gdn->key_dim + gdn->n_value_heads * gdn->value_dim;
}

static int64_t state_of(const gdn_core_args_t *gdn) { return gdn->n_value_heads * gdn->key_dim * gdn->value_dim; }

static status_t prepare(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    gdn_core_args_t made = {.n_tokens = bench->n_tokens,
                            .n_key_heads = bench->local.n_key_heads,
                            .n_value_heads = bench->local.n_value_heads,
                            .key_dim = config->linear_key_head_dim,
                            .value_dim = config->linear_value_head_dim,
                            .conv_kernel = config->linear_conv_kernel_dim,
                            .rms_norm_eps = (float)config->rms_norm_eps,
                            .silu_gate = config->output_gate_type == GATE_SILU,
                            .projected_stride = bench->local.gdn_projected};
    int64_t channels = channels_of(&made), heads = made.n_value_heads;
    activation_t *projected;
    float *conv;
    void *A_log, *dt_bias, *norm, *output;
    TRY(operands_activations(operands, OPERAND_WARM, made.n_tokens * made.projected_stride, 1.5, &projected));
    TRY(operands_floats(operands, OPERAND_COLD, channels * made.conv_kernel, 0.8, &conv));
    /* Rates and steps as a synthetic model has them. */
    TRY(operands_values(operands, &(operand_values_t){.dtype = DTYPE_F32, .n = heads, .middle = 1.4, .reach = 1.4},
                        &A_log));
    TRY(operands_values(operands, &(operand_values_t){.dtype = DTYPE_F32, .n = heads, .middle = -4, .reach = 2},
                        &dt_bias));
    TRY(operands_values(
        operands, &(operand_values_t){.dtype = DTYPE_F32, .n = made.value_dim, .middle = 1, .reach = 0.1}, &norm));
    TRY(operands_activations(operands, OPERAND_COLD, (made.conv_kernel - 1) * channels, 1.0, &made.conv_state));
    TRY(operands_floats(operands, OPERAND_COLD, state_of(&made), 0.3, &made.state));
    TRY(operands_output(
        operands, (size_t)(made.n_tokens * heads * made.value_dim) * bench->backend->ops->activation_bytes, &output));
    made.y = output;
    TRY(operands_output(operands, bench->backend->ops->gdn_core_workspace_bytes(&made), &made.workspace));
    made.projected = projected;
    made.conv = conv;
    made.A_log = A_log;
    made.dt_bias = dt_bias;
    made.norm = norm;
    *(gdn_core_args_t *)args = made;
    return STATUS_OK;
}

static status_t run(backend_t *backend, const void *args) { return backend->ops->gdn_core(backend, args); }

/* silu(conv(.)) of one token; the input of the token at place p < 0 is in the state. */
static void convolve(const gdn_core_args_t *gdn, const double *projected, const double *conv, const double *conv_state,
                     int64_t token, double *convolved) {
    int64_t channels = channels_of(gdn), kernel = gdn->conv_kernel;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0;
        for (int64_t j = 0; j < kernel; j++) {
            int64_t place = token + j - (kernel - 1);
            double x = place < 0 ? conv_state[(place + kernel - 1) * channels + c]
                                 : projected[place * gdn->projected_stride + c];
            sum += conv[c * kernel + j] * x;
        }
        convolved[c] = ops_silu(sum);
    }
}

static double l2_factor(const double *x, int64_t n) { return 1.0 / sqrt(ops_dot(x, x, n) + 1e-6); }

/* o = S^T q of one head after one token; `delta` has room for value_dim values. */
static void step_head(const gdn_core_args_t *gdn, const double *q, const double *k, const double *v, double beta,
                      double decay, double *state, double *delta, double *o) {
    int64_t Dk = gdn->key_dim, Dv = gdn->value_dim;
    double q_factor = l2_factor(q, Dk) / sqrt((double)Dk), k_factor = l2_factor(k, Dk);
    for (int64_t j = 0; j < Dv; j++)
        delta[j] = o[j] = 0;
    for (int64_t i = 0; i < Dk; i++) {
        for (int64_t j = 0; j < Dv; j++) {
            state[i * Dv + j] *= decay;
            delta[j] += state[i * Dv + j] * k[i] * k_factor;
        }
    }
    for (int64_t j = 0; j < Dv; j++)
        delta[j] = (v[j] - delta[j]) * beta;
    for (int64_t i = 0; i < Dk; i++) {
        for (int64_t j = 0; j < Dv; j++) {
            state[i * Dv + j] += k[i] * k_factor * delta[j];
            o[j] += state[i * Dv + j] * q[i] * q_factor;
        }
    }
}

static status_t reference(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const gdn_core_args_t *gdn = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = gdn->n_tokens, heads = gdn->n_value_heads, Dk = gdn->key_dim, Dv = gdn->value_dim;
    int64_t channels = channels_of(gdn), stride = gdn->projected_stride, keys = gdn->n_key_heads * Dk;
    const double *projected = ops_read(&arrays, gdn->projected, N * stride);
    const double *conv = ops_read(&arrays, gdn->conv, channels * gdn->conv_kernel);
    const double *conv_state = ops_read(&arrays, gdn->conv_state, (gdn->conv_kernel - 1) * channels);
    const double *A_log = ops_read(&arrays, gdn->A_log, heads), *dt_bias = ops_read(&arrays, gdn->dt_bias, heads);
    const double *norm = ops_read(&arrays, gdn->norm, Dv);
    double *state = ops_read(&arrays, gdn->state, state_of(gdn)), *convolved = ops_zeros(&arrays, channels);
    double *expected = ops_zeros(&arrays, N * heads * Dv), *delta = ops_zeros(&arrays, heads * Dv);
    const double *y = ops_download_activations(&arrays, gdn->y, N * heads * Dv);
    const double *state_after = ops_download(&arrays, gdn->state, DTYPE_F32, state_of(gdn));
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    for (int64_t t = 0; t < N; t++) {
        convolve(gdn, projected, conv, conv_state, t, convolved);
        const double *z = projected + t * stride + channels, *b = z + heads * Dv, *a = b + heads;
#pragma omp parallel for
        for (int64_t head = 0; head < heads; head++) {
            int64_t key_head = head / (heads / gdn->n_key_heads);
            double *o = expected + (t * heads + head) * Dv;
            double decay = exp(-exp(A_log[head]) * log1p(exp(a[head] + dt_bias[head])));
            step_head(gdn, convolved + key_head * Dk, convolved + keys + key_head * Dk,
                      convolved + 2 * keys + head * Dv, ops_sigmoid(b[head]), decay, state + head * Dk * Dv,
                      delta + head * Dv, o);
            double factor = 1.0 / sqrt(ops_dot(o, o, Dv) / (double)Dv + gdn->rms_norm_eps);
            for (int64_t i = 0; i < Dv; i++) {
                double gate = gdn->silu_gate ? ops_silu(z[head * Dv + i]) : ops_sigmoid(z[head * Dv + i]);
                o[i] *= factor * norm[i] * gate;
            }
        }
    }
    microbench_error_t of_y = {0}, of_state = {0};
    for (int64_t i = 0; i < N * heads * Dv; i++)
        microbench_compare(y[i], expected[i], &of_y);
    for (int64_t i = 0; i < state_of(gdn); i++)
        microbench_compare(state_after[i], state[i], &of_state);
    microbench_take_worst(&of_y, error);
    microbench_take_worst(&of_state, error);
    return ops_free(&arrays);
}

static double bytes(const microbench_t *bench, const void *args) {
    const gdn_core_args_t *gdn = args;
    double channels = (double)channels_of(gdn), values = (double)(gdn->n_value_heads * gdn->value_dim);
    double conv = channels * (double)gdn->conv_kernel * sizeof(float);
    double activations = 2 * channels * (double)(gdn->conv_kernel - 1) +
                         (double)gdn->n_tokens * ((double)gdn->projected_stride + values);
    return 2 * (double)state_of(gdn) * sizeof(float) + conv +
           activations * (double)bench->backend->ops->activation_bytes;
}

const microbench_op_t microbench_gdn_core = {.name = "gdn_core",
                                             .summary = "gated DeltaNet between its projections",
                                             .args_bytes = sizeof(gdn_core_args_t),
                                             .exists = ops_has_gdn,
                                             .prepare = prepare,
                                             .run = run,
                                             .reference = reference,
                                             .bytes = bytes};
