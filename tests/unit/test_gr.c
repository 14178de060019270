#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gr/gr.h"
#include "support/compare.h"
#include "support/op_data.h"

/* Runs the mixing side; u and inject are new. */
static void mix(gr_mix_args_t *args) {
    args->u = op_zeros(args->n_tokens * args->hidden_size);
    args->inject = args->block_inject.data ? op_zeros(args->n_tokens * args->hc_count) : NULL;
    args->workspace = op_workspace(gr_mix_workspace_bytes(args));
    assert_int_equal(gr_mix_cpu(args), STATUS_OK);
}

static void check_golden(hid_t group) {
    int64_t n = op_int(group, "n_tokens"), S = op_int(group, "hc_count"), H = op_int(group, "hidden_size");
    int64_t R = op_int(group, "hc_lowrank");
    gr_mix_args_t args = {
        .n_tokens = n,
        .hc_count = S,
        .hidden_size = H,
        .rms_norm_eps = (float)op_real(group, "rms_norm_eps"),
        .h = op_floats(group, "h"),
        .hc_norm = op_floats(group, "hc_norm"),
        .down = op_matrix(op_floats(group, "down"), R, S * H, DTYPE_BF16),
        .up = op_matrix(op_floats(group, "up"), S * H, R, DTYPE_BF16),
    };
    bool has_inject = op_has(group, "block_inject");
    if (has_inject) args.block_inject = op_matrix(op_floats(group, "block_inject"), S, S * H, DTYPE_BF16);
    mix(&args);
    assert_close("u", args.u, op_floats(group, "u"), n * H, 2e-6);
    if (!has_inject) return;
    assert_close("inject", args.inject, op_floats(group, "inject"), n * S, 2e-6);
    float *h = op_copy(args.h, n * S * H);
    gr_inject_args_t inject = {
        .n_tokens = n, .hc_count = S, .hidden_size = H, .inject = args.inject, .o = op_floats(group, "o"), .h = h};
    assert_int_equal(gr_inject_cpu(&inject), STATUS_OK);
    assert_close("h_out", h, op_floats(group, "h_out"), n * S * H, 2e-6);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("gr", check_golden);
}

static gr_mix_args_t random_args(int64_t n, int64_t S, int64_t H, int64_t R) {
    return (gr_mix_args_t){
        .n_tokens = n,
        .hc_count = S,
        .hidden_size = H,
        .rms_norm_eps = 1e-6f,
        .h = op_random_floats(n * S * H, 0.1f, 3.0f),
        .hc_norm = op_random_floats(S * H, 0.0f, 0.5f),
        .down = op_random_matrix(R, S * H, DTYPE_BF16),
        .up = op_random_matrix(S * H, R, DTYPE_BF16),
        .block_inject = op_random_matrix(S, S * H, DTYPE_BF16),
    };
}

/* Sums of a few hundred terms in FP32: some 1e-6 of the largest value. */
static void test_formula(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{1, 1, 1, 1}, {2, 2, 17, 3}, {3, 4, 40, 9}, {70, 4, 24, 5}};
    for (int i = 0; i < 4; i++) {
        int64_t n = sizes[i][0], S = sizes[i][1], H = sizes[i][2], R = sizes[i][3];
        gr_mix_args_t args = random_args(n, S, H, R);
        mix(&args);
        double *u = op_alloc(n * H, sizeof *u), *inject = op_alloc(n * S, sizeof *inject);
        double *z = op_alloc(S * H, sizeof *z), *gate = op_alloc(S * H, sizeof *gate), *a = op_alloc(R, sizeof *a);
        for (int64_t t = 0; t < n; t++) {
            double *h = op_widen(args.h + t * S * H, S * H);
            for (int64_t s = 0; s < S; s++)
                op_norm(h + s * H, args.hc_norm + s * H, H, 1e-6, z + s * H);
            op_multiply(&args.down, z, a);
            for (int64_t r = 0; r < R; r++)
                a[r] = a[r] / (double)S * op_sigmoid(a[r] / (double)S);
            op_multiply(&args.up, a, gate);
            for (int64_t j = 0; j < S * H; j++)
                u[t * H + j % H] += op_sigmoid(gate[j]) * z[j] / (double)S;
            op_multiply(&args.block_inject, z, inject + t * S);
            for (int64_t s = 0; s < S; s++)
                inject[t * S + s] = 2.0 * op_sigmoid(inject[t * S + s] / (double)S);
        }
        assert_close_f64("u", args.u, u, n * H, 5e-6);
        assert_close_f64("inject", args.inject, inject, n * S, 5e-6);
    }
}

static void test_one_result(void **state) {
    (void)state;
    int64_t n = 130, S = 4, H = 50, R = 7;
    gr_mix_args_t args = random_args(n, S, H, R);
    omp_set_num_threads(1);
    mix(&args);
    gr_mix_args_t again = args;
    omp_set_num_threads(3);
    mix(&again);
    assert_same_bits("u by three threads", again.u, args.u, n * H);
    assert_same_bits("inject by three threads", again.inject, args.inject, n * S);
    for (int64_t t = 0; t < n; t += 13) {
        gr_mix_args_t one = args;
        one.n_tokens = 1;
        one.h = args.h + t * S * H;
        mix(&one);
        assert_same_bits("u of one token", one.u, args.u + t * H, H);
        assert_same_bits("inject of one token", one.inject, args.inject + t * S, S);
    }
}

/* A mix that finds an injection pending gives what gr_inject and a mix give. */
static void test_pending(void **state) {
    (void)state;
    int64_t n = 3, S = 4, H = 40, R = 9;
    gr_mix_args_t args = random_args(n, S, H, R);
    args.o = op_random_floats(n * H, 0.0f, 1.0f);
    args.inject_before = op_random_floats(n * S, 1.0f, 0.5f);
    gr_mix_args_t plain = args;
    plain.inject_before = NULL;
    plain.h = op_copy(args.h, n * S * H);
    gr_inject_args_t inject = {
        .n_tokens = n, .hc_count = S, .hidden_size = H, .inject = args.inject_before, .o = args.o, .h = plain.h};
    assert_int_equal(gr_inject_cpu(&inject), STATUS_OK);
    mix(&plain);
    mix(&args);
    assert_same_bits("h", args.h, plain.h, n * S * H);
    assert_same_bits("u", args.u, plain.u, n * H);
    assert_same_bits("inject", args.inject, plain.inject, n * S);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_formula, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_pending, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
