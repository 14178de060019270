#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gdn/gdn.h"
#include "support/compare.h"
#include "support/op_data.h"

static int64_t channels_of(const gdn_core_args_t *args) {
    return 2 * args->n_key_heads * args->key_dim + args->n_value_heads * args->value_dim;
}

static int64_t width_of(const gdn_core_args_t *args) {
    return channels_of(args) + args->n_value_heads * (args->value_dim + 2);
}

/* Runs all tokens from zero states, `chunk` at a time. */
static void run(gdn_core_args_t *args, int64_t chunk) {
    int64_t n_values = args->n_value_heads * args->value_dim;
    args->y = op_zeros(args->n_tokens * n_values);
    args->state = op_zeros(n_values * args->key_dim);
    args->conv_state = op_zeros((args->conv_kernel - 1) * channels_of(args));
    for (int64_t first = 0; first < args->n_tokens; first += chunk) {
        gdn_core_args_t part = *args;
        part.n_tokens = args->n_tokens - first < chunk ? args->n_tokens - first : chunk;
        part.projected += first * args->projected_stride;
        part.y += first * n_values;
        part.workspace = op_workspace(gdn_core_workspace_bytes(&part));
        assert_int_equal(gdn_core_cpu(&part), STATUS_OK);
    }
}

static void check_golden(hid_t group) {
    gdn_core_args_t args = {
        .n_tokens = op_int(group, "n_tokens"),
        .n_key_heads = op_int(group, "n_key_heads"),
        .n_value_heads = op_int(group, "n_value_heads"),
        .key_dim = op_int(group, "key_dim"),
        .value_dim = op_int(group, "value_dim"),
        .conv_kernel = op_int(group, "conv_kernel"),
        .rms_norm_eps = (float)op_real(group, "rms_norm_eps"),
        .silu_gate = op_int(group, "silu_gate"),
        .projected = op_floats(group, "projected"),
        .conv = op_floats(group, "conv"),
        .A_log = op_floats(group, "A_log"),
        .dt_bias = op_floats(group, "dt_bias"),
        .norm = op_floats(group, "norm"),
    };
    args.projected_stride = width_of(&args);
    run(&args, args.n_tokens);
    int64_t n_values = args.n_value_heads * args.value_dim;
    assert_close("y", args.y, op_floats(group, "y"), args.n_tokens * n_values, 5e-6);
    assert_close("state", args.state, op_floats(group, "state_out"), n_values * args.key_dim, 5e-6);
    assert_close("conv_state", args.conv_state, op_floats(group, "conv_state_out"),
                 (args.conv_kernel - 1) * channels_of(&args), 0.0);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("gdn", check_golden);
}

static gdn_core_args_t random_args(int64_t n_tokens, int64_t n_key_heads, int64_t n_value_heads, int64_t key_dim,
                                   int64_t value_dim, int64_t conv_kernel) {
    gdn_core_args_t args = {
        .n_tokens = n_tokens,
        .n_key_heads = n_key_heads,
        .n_value_heads = n_value_heads,
        .key_dim = key_dim,
        .value_dim = value_dim,
        .conv_kernel = conv_kernel,
        .rms_norm_eps = 1e-6f,
    };
    args.projected_stride = width_of(&args) + 3; /* more than needed: a row may hold other things behind */
    args.projected = op_random_floats(n_tokens * args.projected_stride, 0.0f, 3.0f);
    args.conv = op_random_floats(channels_of(&args) * conv_kernel, 0.0f, 0.7f);
    args.A_log = op_random_floats(n_value_heads, 0.5f, 1.5f);
    args.dt_bias = op_random_floats(n_value_heads, -1.0f, 2.0f);
    args.norm = op_random_floats(value_dim, 1.0f, 0.3f);
    return args;
}

static double silu_f64(double x) { return x * op_sigmoid(x); }

static void l2norm_f64(double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] /= sqrt(sum + 1e-6);
}

/* The formulas of the contract, one head and one token after the other. `enlarged` [n_tokens, n_value_heads] is how
 * much a head's norm enlarges rounding errors: the largest sum of magnitudes behind an output, over the outputs' root
 * mean square. */
static void formula(const gdn_core_args_t *args, double *y, double *S, double *enlarged) {
    int64_t channels = channels_of(args), Dk = args->key_dim, Dv = args->value_dim, Vh = args->n_value_heads;
    int64_t keys = args->n_key_heads * Dk, taps = args->conv_kernel;
    double *x = op_alloc(channels, sizeof *x), *q = op_alloc(Dk, sizeof *q), *k = op_alloc(Dk, sizeof *k);
    for (int64_t t = 0; t < args->n_tokens; t++) {
        const float *row = args->projected + t * args->projected_stride;
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0.0;
            for (int64_t j = 0; j < taps && j <= t; j++)
                sum += (double)args->conv[c * taps + taps - 1 - j] * (double)row[c - j * args->projected_stride];
            x[c] = silu_f64(sum);
        }
        for (int64_t head = 0; head < Vh; head++) {
            int64_t key_head = head * args->n_key_heads / Vh;
            memcpy(q, x + key_head * Dk, (size_t)Dk * sizeof *q);
            memcpy(k, x + keys + key_head * Dk, (size_t)Dk * sizeof *k);
            l2norm_f64(q, Dk);
            l2norm_f64(k, Dk);
            double beta = op_sigmoid((double)row[channels + Vh * Dv + head]);
            double a = (double)row[channels + Vh * Dv + Vh + head] + (double)args->dt_bias[head];
            double decay = exp(-exp((double)args->A_log[head]) * (fmax(a, 0) + log1p(exp(-fabs(a)))));
            double *out = y + (t * Vh + head) * Dv, squares = 0.0, most = 0.0;
            for (int64_t c = 0; c < Dv; c++) {
                double *column = S + head * Dk * Dv + c, remembered = 0.0;
                for (int64_t i = 0; i < Dk; i++)
                    remembered += (column[i * Dv] *= decay) * k[i];
                double d = (x[2 * keys + head * Dv + c] - remembered) * beta;
                double magnitude = 0.0;
                out[c] = 0.0;
                for (int64_t i = 0; i < Dk; i++) {
                    double product = (column[i * Dv] += k[i] * d) * q[i] / sqrt((double)Dk);
                    out[c] += product;
                    magnitude += fabs(product);
                }
                most = fmax(most, magnitude);
                squares += out[c] * out[c];
            }
            enlarged[t * Vh + head] = most / sqrt(squares / (double)Dv + (double)args->rms_norm_eps);
            for (int64_t c = 0; c < Dv; c++) {
                double z = (double)row[channels + head * Dv + c];
                out[c] *= (double)args->norm[c] / sqrt(squares / (double)Dv + (double)args->rms_norm_eps);
                out[c] *= args->silu_gate ? silu_f64(z) : op_sigmoid(z);
            }
        }
    }
}

/* FP32 errors of the state do not grow, for it decays: 1e-5 of the largest leaves ten times what is seen. Those of an
 * output are a part of its sum of magnitudes, enlarged by the norm, times norm and gate, at most 4 here. */
static void check_formula(const gdn_core_args_t *args) {
    int64_t Dv = args->value_dim, n_heads = args->n_tokens * args->n_value_heads;
    int64_t n_state = args->n_value_heads * args->key_dim * Dv;
    double *y = op_alloc(n_heads * Dv, sizeof *y), *S = op_alloc(n_state, sizeof *S);
    double *enlarged = op_alloc(n_heads, sizeof *enlarged);
    formula(args, y, S, enlarged);
    assert_close_f64("state", args->state, S, n_state, 1e-5);
    for (int64_t head = 0; head < n_heads; head++) {
        double largest = 0.0;
        for (int64_t c = 0; c < Dv; c++)
            largest = fmax(largest, fabs(y[head * Dv + c]));
        double allowed = 5e-6 * largest + 2e-6 * enlarged[head];
        assert_close_f64("y", args->y + head * Dv, y + head * Dv, Dv, allowed / largest);
    }
}

static void test_formula(void **state) {
    (void)state;
    static const int64_t sizes[][6] = {{1, 1, 1, 1, 1, 2},   {6, 2, 6, 12, 24, 4},   {9, 1, 3, 40, 12, 4},
                                       {5, 3, 3, 17, 33, 3}, {140, 2, 4, 24, 40, 4}, {3, 1, 2, 128, 128, 4}};
    for (int i = 0; i < 12; i++) {
        const int64_t *s = sizes[i / 2];
        gdn_core_args_t args = random_args(s[0], s[1], s[2], s[3], s[4], s[5]);
        args.silu_gate = i % 2;
        run(&args, args.n_tokens);
        check_formula(&args);
    }
}

static void test_one_result(void **state) {
    (void)state;
    gdn_core_args_t whole = random_args(150, 2, 6, 20, 44, 4);
    int64_t n_values = 6 * 44, n_state = n_values * 20, n_conv = 3 * channels_of(&whole);
    omp_set_num_threads(1);
    run(&whole, 150);
    for (int64_t chunk = 1; chunk <= 150; chunk += chunk < 12 ? 1 : 53) {
        gdn_core_args_t parts = whole;
        omp_set_num_threads(1 + (int)(chunk % 3));
        run(&parts, chunk);
        assert_same_bits("y in chunks", parts.y, whole.y, 150 * n_values);
        assert_same_bits("state in chunks", parts.state, whole.state, n_state);
        assert_same_bits("conv_state in chunks", parts.conv_state, whole.conv_state, n_conv);
    }
}

/* A gate of any size: no overflow in softplus or exp, and the state stays finite. */
static void test_extreme_gates(void **state) {
    (void)state;
    gdn_core_args_t args = random_args(8, 1, 2, 16, 16, 4);
    float *projected = op_copy(args.projected, 8 * args.projected_stride);
    static const float extremes[8] = {1e4f, -1e4f, 100, -100, 1e30f, -1e30f, 0, 50};
    for (int t = 0; t < 8; t++) {
        for (int64_t i = channels_of(&args) + 32; i < width_of(&args); i++)
            projected[t * args.projected_stride + i] = extremes[t];
    }
    args.projected = projected;
    run(&args, 8);
    check_formula(&args);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_formula, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_extreme_gates, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
