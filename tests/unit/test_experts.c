#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "experts/experts.h"
#include "shared_expert/shared_expert.h"
#include "support/compare.h"
#include "support/op_data.h"

static void run(experts_args_t *args) {
    args->o = op_random_floats(args->n_tokens * args->hidden_size, 0.0f, 9.0f);
    args->workspace = op_workspace(experts_workspace_bytes(args));
    assert_int_equal(experts_cpu(args), STATUS_OK);
}

/* Adds to what o holds. */
static void run_shared(shared_expert_args_t *args) {
    args->workspace = op_workspace(shared_expert_workspace_bytes(args));
    assert_int_equal(shared_expert_cpu(args), STATUS_OK);
}

static void check_golden(hid_t group) {
    experts_args_t args = {
        .n_tokens = op_int(group, "n_tokens"),
        .n_experts = op_int(group, "n_experts"),
        .top_k = op_int(group, "top_k"),
        .hidden_size = op_int(group, "hidden_size"),
        .intermediate = op_int(group, "intermediate"),
        .u = op_floats(group, "u"),
        .experts = op_ints(group, "experts"),
        .weights = op_floats(group, "weights"),
    };
    int64_t E = args.n_experts, H = args.hidden_size, M = args.intermediate, Ms = op_int(group, "shared_intermediate");
    if (op_has(group, "gate_up_codes"))
        args.expert_weights = (expert_weights_t){
            .gate_up_codes = op_bytes(group, "gate_up_codes"),
            .gate_up_scales = op_bytes(group, "gate_up_scales"),
            .gate_up_scale_2 = op_floats(group, "gate_up_scale_2"),
            .down_codes = op_bytes(group, "down_codes"),
            .down_scales = op_bytes(group, "down_scales"),
            .down_scale_2 = op_floats(group, "down_scale_2"),
        };
    else
        args.expert_weights = (expert_weights_t){
            .gate_up_f16 = op_matrix(op_floats(group, "gate_up"), E * 2 * M, H, DTYPE_F16).data,
            .down_f16 = op_matrix(op_floats(group, "down"), E * H, M, DTYPE_F16).data,
        };
    run(&args);
    assert_close("experts", args.o, op_floats(group, "o_experts"), args.n_tokens * H, 5e-6);
    shared_expert_args_t shared = {
        .n_tokens = args.n_tokens,
        .u = args.u,
        .shared_gate = op_floats(group, "shared_gate"),
        .gate_up = op_matrix(op_floats(group, "shared_gate_up"), 2 * Ms, H, DTYPE_BF16),
        .down = op_matrix(op_floats(group, "shared_down"), H, Ms, DTYPE_BF16),
        .o = args.o,
    };
    run_shared(&shared);
    assert_close("with the shared expert", args.o, op_floats(group, "o"), args.n_tokens * H, 5e-6);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("moe", check_golden);
}

/* Random codes and scales (no NaN, which a shard never holds; a fifth of the scales is zero). */
static uint8_t *random_codes(int64_t n) {
    uint8_t *codes = op_alloc(n, 1);
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)op_random();
    return codes;
}

static uint8_t *random_scales(int64_t n) {
    uint8_t *scales = op_alloc(n, 1);
    for (int64_t i = 0; i < n; i++)
        scales[i] = op_random_below(5) ? e4m3_from_float(1.0f + op_random_float()) : 0;
    return scales;
}

static experts_args_t random_args(int64_t n_tokens, int64_t E, int64_t top_k, int64_t H, int64_t M, bool nvfp4) {
    experts_args_t args = {.n_tokens = n_tokens, .n_experts = E, .top_k = top_k, .hidden_size = H, .intermediate = M};
    args.u = op_random_floats(n_tokens * H, 0.0f, 1.0f);
    args.weights = op_random_floats(n_tokens * top_k, 0.5f, 0.5f);
    int32_t *experts = op_alloc(n_tokens * top_k, sizeof *experts);
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t first = op_random_below(E);
        for (int64_t k = 0; k < top_k; k++)
            experts[t * top_k + k] = (int32_t)((first + 3 * k) % E);
    }
    args.experts = experts;
    if (nvfp4)
        args.expert_weights = (expert_weights_t){
            .gate_up_codes = random_codes(E * 2 * M * H / 2),
            .gate_up_scales = random_scales(E * 2 * M * H / 16),
            .gate_up_scale_2 = op_random_floats(E * 2, 0.3f, 0.1f),
            .down_codes = random_codes(E * H * M / 2),
            .down_scales = random_scales(E * H * M / 16),
            .down_scale_2 = op_random_floats(E, 0.3f, 0.1f),
        };
    else
        args.expert_weights = (expert_weights_t){
            .gate_up_f16 = op_random_matrix(E * 2 * M, H, DTYPE_F16).data,
            .down_f16 = op_random_matrix(E * H, M, DTYPE_F16).data,
        };
    return args;
}

static double nvfp4_item(const uint8_t *codes, const uint8_t *scales, int64_t row, int64_t columns, int64_t column) {
    int64_t at = row * columns + column;
    return (double)e2m1_values[codes[at / 2] >> (at % 2 * 4) & 15] * (double)e4m3_values[scales[at / 16]];
}

static double gate_up_item(const experts_args_t *args, int64_t expert, int64_t row, int64_t column) {
    const expert_weights_t *w = &args->expert_weights;
    int64_t H = args->hidden_size, M = args->intermediate;
    if (!w->gate_up_codes) return (double)f16_to_float(w->gate_up_f16[(expert * 2 * M + row) * H + column]);
    double scale_2 = (double)w->gate_up_scale_2[2 * expert + (row >= M)];
    return scale_2 * nvfp4_item(w->gate_up_codes, w->gate_up_scales, expert * 2 * M + row, H, column);
}

static double down_item(const experts_args_t *args, int64_t expert, int64_t row, int64_t column) {
    const expert_weights_t *w = &args->expert_weights;
    int64_t H = args->hidden_size, M = args->intermediate;
    if (!w->down_codes) return (double)f16_to_float(w->down_f16[(expert * H + row) * M + column]);
    return (double)w->down_scale_2[expert] * nvfp4_item(w->down_codes, w->down_scales, expert * H + row, M, column);
}

/* Two sums of a few hundred FP32 products, one upon the other: 1e-5 of a token's largest value. */
static void check_formula(const experts_args_t *args) {
    int64_t H = args->hidden_size, M = args->intermediate;
    double *act = op_alloc(M, sizeof *act), *o = op_alloc(H, sizeof *o);
    for (int64_t t = 0; t < args->n_tokens; t++) {
        memset(o, 0, (size_t)H * sizeof *o);
        for (int64_t k = 0; k < args->top_k; k++) {
            int64_t expert = args->experts[t * args->top_k + k];
            for (int64_t m = 0; m < M; m++) {
                double gate = 0.0, up = 0.0;
                for (int64_t c = 0; c < H; c++) {
                    gate += gate_up_item(args, expert, m, c) * (double)args->u[t * H + c];
                    up += gate_up_item(args, expert, M + m, c) * (double)args->u[t * H + c];
                }
                act[m] = gate * op_sigmoid(gate) * up;
            }
            for (int64_t r = 0; r < H; r++) {
                double sum = 0.0;
                for (int64_t m = 0; m < M; m++)
                    sum += down_item(args, expert, r, m) * act[m];
                o[r] += (double)args->weights[t * args->top_k + k] * sum;
            }
        }
        assert_close_f64("o", args->o + t * H, o, H, 1e-5);
    }
}

static void test_formula(void **state) {
    (void)state;
    static const int64_t sizes[][5] = {{1, 1, 1, 16, 16}, {3, 7, 2, 48, 32}, {9, 12, 4, 160, 16}, {70, 4, 3, 32, 48}};
    for (int i = 0; i < 8; i++) {
        const int64_t *s = sizes[i / 2];
        experts_args_t args = random_args(s[0], s[1], s[2], s[3], s[4], i % 2);
        run(&args);
        check_formula(&args);
    }
    experts_args_t odd = random_args(5, 3, 2, 21, 13, false);
    run(&odd);
    check_formula(&odd);
}

/* A block whose scale is zero is zero whatever its codes; the largest scale and the smallest keep their values. */
static void test_scale_zero(void **state) {
    (void)state;
    experts_args_t args = random_args(4, 2, 1, 32, 16, true);
    args.expert_weights.gate_up_scales = op_alloc(2 * 32 * 2, 1);
    run(&args);
    for (int64_t i = 0; i < 4 * 32; i++)
        assert_true(args.o[i] == 0.0f);
}

static void test_one_result(void **state) {
    (void)state;
    for (int nvfp4 = 0; nvfp4 < 2; nvfp4++) {
        experts_args_t args = random_args(75, 9, 3, 80, 48, nvfp4);
        omp_set_num_threads(1);
        run(&args);
        experts_args_t again = args;
        omp_set_num_threads(3);
        run(&again);
        assert_same_bits("three threads", again.o, args.o, 75 * 80);
        for (int64_t t = 0; t < 75; t++) {
            experts_args_t one = args;
            one.n_tokens = 1;
            one.u += t * 80;
            one.experts += t * 3;
            one.weights += t * 3;
            run(&one);
            assert_same_bits("one token", one.o, args.o + t * 80, 80);
        }
    }
}

static void test_shared_expert(void **state) {
    (void)state;
    int64_t n = 67, H = 45, Ms = 21;
    shared_expert_args_t args = {
        .n_tokens = n,
        .u = op_random_floats(n * H, 0.0f, 1.0f),
        .shared_gate = op_random_floats(n, 0.5f, 0.5f),
        .gate_up = op_random_matrix(2 * Ms, H, DTYPE_BF16),
        .down = op_random_matrix(H, Ms, DTYPE_BF16),
    };
    float *before = op_random_floats(n * H, 0.0f, 1.0f);
    omp_set_num_threads(3);
    args.o = op_copy(before, n * H);
    run_shared(&args);
    double *gate_up = op_alloc(2 * Ms, sizeof *gate_up), *down = op_alloc(H, sizeof *down);
    for (int64_t t = 0; t < n; t++) {
        op_multiply(&args.gate_up, op_widen(args.u + t * H, H), gate_up);
        for (int64_t m = 0; m < Ms; m++)
            gate_up[m] *= op_sigmoid(gate_up[m]) * gate_up[Ms + m];
        op_multiply(&args.down, gate_up, down);
        for (int64_t i = 0; i < H; i++)
            down[i] = (double)before[t * H + i] + (double)args.shared_gate[t] * down[i];
        assert_close_f64("o", args.o + t * H, down, H, 1e-5);

        shared_expert_args_t one = args;
        one.n_tokens = 1;
        one.u += t * H;
        one.shared_gate += t;
        one.o = op_copy(before + t * H, H);
        omp_set_num_threads(1);
        run_shared(&one);
        assert_same_bits("one token", one.o, args.o + t * H, H);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_formula, op_data_free),
        cmocka_unit_test_teardown(test_scale_zero, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_shared_expert, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
