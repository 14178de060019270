#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear/linear.h"
#include "ple/ple.h"
#include "support/compare.h"
#include "support/op_data.h"

/* Sum over n_ranks row shards of the table. */
static float *gather(const int64_t *rows, int64_t n_tokens, int64_t n_heads, matrix_t table, float scale, int n_ranks) {
    int64_t n = n_tokens * n_heads * table.columns, n_rows = (table.rows + n_ranks - 1) / n_ranks;
    float *sum = op_zeros(n), *e = op_random_floats(n, 0.0f, 1.0f);
    for (int64_t first = 0; first < table.rows; first += n_rows) {
        matrix_t shard = table;
        shard.data = (const char *)table.data + (size_t)(first * table.columns) * dtype_bytes(table.dtype);
        shard.rows = table.rows - first < n_rows ? table.rows - first : n_rows;
        ple_gather_args_t args = {.n_tokens = n_tokens,
                                  .n_heads = n_heads,
                                  .rows = rows,
                                  .table = shard,
                                  .table_scale = scale,
                                  .first_row = first,
                                  .e = e};
        assert_int_equal(ple_gather_cpu(&args), STATUS_OK);
        for (int64_t i = 0; i < n; i++)
            sum[i] += e[i];
    }
    return sum;
}

/* Runs all tokens from a zero state, `chunk` at a time; h and conv_state are new. */
static void mix(ple_mix_args_t *args, const float *h, int64_t chunk) {
    int64_t channels = args->hc_count * args->hidden_size;
    args->h = op_copy(h, args->n_tokens * channels);
    args->conv_state = op_zeros((args->conv_kernel - 1) * args->dilation * channels);
    for (int64_t first = 0; first < args->n_tokens; first += chunk) {
        ple_mix_args_t part = *args;
        part.n_tokens = args->n_tokens - first < chunk ? args->n_tokens - first : chunk;
        part.projected += first * (channels + args->hidden_size);
        part.h += first * channels;
        part.workspace = op_workspace(ple_mix_workspace_bytes(&part));
        assert_int_equal(ple_mix_cpu(&part), STATUS_OK);
    }
}

static void check_golden(hid_t group) {
    int64_t n = op_int(group, "n_tokens"), S = op_int(group, "hc_count"), H = op_int(group, "hidden_size");
    int64_t n_heads = op_int(group, "n_heads"), width = op_int(group, "row_width"), W = n_heads * width;
    int64_t n_rows = (int64_t)golden_length(group, "table_codes") / width;
    matrix_t table = {.data = op_bytes(group, "table_codes"), .dtype = DTYPE_F8_E4M3, .rows = n_rows, .columns = width};
    const int64_t *rows = op_array(group, "rows", H5T_NATIVE_INT64);
    float *golden_e = op_floats(group, "e");
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        assert_close("e", gather(rows, n, n_heads, table, op_floats(group, "table_scale")[0], n_ranks), golden_e, n * W,
                     0.0);

    float *proj = op_zeros((S + 1) * H * W);
    memcpy(proj, op_floats(group, "key_proj"), (size_t)(S * H * W) * sizeof *proj);
    memcpy(proj + S * H * W, op_floats(group, "value_proj"), (size_t)(H * W) * sizeof *proj);
    float *projected = op_zeros(n * (S + 1) * H);
    linear_args_t linear = {
        .n_tokens = n, .weight = op_matrix(proj, (S + 1) * H, W, DTYPE_BF16), .x = golden_e, .y = projected};
    assert_int_equal(linear_cpu(&linear), STATUS_OK);
    assert_close("projected", projected, op_floats(group, "projected"), n * (S + 1) * H, 2e-6);

    ple_mix_args_t args = {
        .n_tokens = n,
        .hc_count = S,
        .hidden_size = H,
        .conv_kernel = op_int(group, "conv_kernel"),
        .dilation = op_int(group, "dilation"),
        .rms_norm_eps = (float)op_real(group, "rms_norm_eps"),
        .projected = projected,
        .norm_key = op_floats(group, "norm_key"),
        .norm_query = op_floats(group, "norm_query"),
        .norm_conv = op_floats(group, "norm_conv"),
        .conv = op_floats(group, "conv"),
    };
    mix(&args, op_floats(group, "h"), n);
    assert_close("h", args.h, op_floats(group, "h_out"), n * S * H, 5e-6);
    int64_t n_state = (args.conv_kernel - 1) * args.dilation * S * H;
    assert_close("conv_state", args.conv_state, op_floats(group, "conv_state_out"), n_state, 5e-6);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("ple", check_golden);
}

static void test_gather_of_bf16(void **state) {
    (void)state;
    matrix_t table = op_random_matrix(50, 7, DTYPE_BF16);
    int64_t rows[12];
    for (int i = 0; i < 12; i++)
        rows[i] = op_random_below(50);
    float *e = gather(rows, 4, 3, table, 0.5f, 3);
    for (int i = 0; i < 12 * 7; i++)
        assert_true((double)e[i] == 0.5 * op_item(&table, rows[i / 7], i % 7));
}

static ple_mix_args_t random_args(int64_t n_tokens, int64_t S, int64_t H, int64_t conv_kernel, int64_t dilation) {
    return (ple_mix_args_t){
        .n_tokens = n_tokens,
        .hc_count = S,
        .hidden_size = H,
        .conv_kernel = conv_kernel,
        .dilation = dilation,
        .rms_norm_eps = 1e-6f,
        .projected = op_random_floats(n_tokens * (S + 1) * H, 0.0f, 2.0f),
        .norm_key = op_random_floats(S * H, 0.0f, 0.5f),
        .norm_query = op_random_floats(S * H, 0.0f, 0.5f),
        .norm_conv = op_random_floats(S * H, 0.0f, 0.5f),
        .conv = op_random_floats(S * H * conv_kernel, 0.0f, 0.7f),
    };
}

/* The formulas of the contract. A gate's root is steep at 0, so that FP32's errors of c grow there: 2e-5. */
static void test_formula(void **state) {
    (void)state;
    static const int64_t sizes[][5] = {{1, 1, 1, 1, 1}, {4, 2, 13, 2, 3}, {25, 4, 24, 4, 3}, {90, 3, 17, 3, 2}};
    for (int i = 0; i < 4; i++) {
        int64_t n = sizes[i][0], S = sizes[i][1], H = sizes[i][2], taps = sizes[i][3], dilation = sizes[i][4];
        ple_mix_args_t args = random_args(n, S, H, taps, dilation);
        float *h = op_random_floats(n * S * H, 0.0f, 3.0f);
        mix(&args, h, n);
        double *normed = op_alloc(n * S * H, sizeof *normed), *expected = op_widen(h, n * S * H);
        double *key = op_alloc(H, sizeof *key), *query = op_alloc(H, sizeof *query), *gv = op_alloc(H, sizeof *gv);
        for (int64_t j = 0; j < n * S; j++) {
            int64_t t = j / S, s = j % S;
            const float *row = args.projected + t * (S + 1) * H;
            op_norm(op_widen(row + s * H, H), args.norm_key + s * H, H, 1e-6, key);
            op_norm(op_widen(h + j * H, H), args.norm_query + s * H, H, 1e-6, query);
            double c = 0.0;
            for (int64_t d = 0; d < H; d++)
                c += key[d] * query[d] / sqrt((double)H);
            c = c == 0.0 ? 0.0 : copysign(sqrt(fmax(fabs(c), 1e-6)), c);
            for (int64_t d = 0; d < H; d++)
                gv[d] = op_sigmoid(c) * (double)row[S * H + d];
            op_norm(gv, args.norm_conv + s * H, H, 1e-6, normed + j * H);
            for (int64_t d = 0; d < H; d++) {
                double sum = 0.0;
                for (int64_t tap = 0; tap < taps && tap * dilation <= t; tap++)
                    sum += (double)args.conv[(s * H + d) * taps + taps - 1 - tap] *
                           normed[(j - tap * dilation * S) * H + d];
                expected[j * H + d] += gv[d] + sum * op_sigmoid(sum);
            }
        }
        assert_close_f64("h", args.h, expected, n * S * H, 2e-5);
    }
}

static void test_one_result(void **state) {
    (void)state;
    ple_mix_args_t whole = random_args(140, 4, 36, 4, 3);
    float *h = op_random_floats(140 * 4 * 36, 0.0f, 3.0f);
    omp_set_num_threads(1);
    mix(&whole, h, 140);
    for (int64_t chunk = 1; chunk <= 140; chunk += chunk < 12 ? 1 : 61) {
        ple_mix_args_t parts = whole;
        omp_set_num_threads(1 + (int)(chunk % 3));
        mix(&parts, h, chunk);
        assert_same_bits("h in chunks", parts.h, whole.h, 140 * 4 * 36);
        assert_same_bits("conv_state in chunks", parts.conv_state, whole.conv_state, 9 * 4 * 36);
    }
}

/* c = 0 gives sigmoid(0), not sigmoid(1e-3): the sign of zero is zero. */
static void test_zero_key(void **state) {
    (void)state;
    ple_mix_args_t args = random_args(1, 1, 16, 1, 1);
    args.projected = op_zeros(32);
    ((float *)args.projected)[16] = 1.0f;
    args.conv = op_zeros(16);
    mix(&args, op_zeros(16), 1);
    assert_true(args.h[0] == 0.5f && args.h[1] == 0.0f);
}

/* |c| below 1e-6 counts as 1e-6, with c's sign: key and query that are nearly orthogonal. */
static void test_small_key(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        ple_mix_args_t args = random_args(1, 1, 16, 1, 1);
        float *projected = op_zeros(32), *h = op_zeros(16);
        projected[0] = (float)sign;
        projected[16] = 1.0f;
        h[0] = 1e-7f;
        h[1] = 1.0f;
        args.projected = projected;
        args.conv = op_zeros(16);
        args.norm_key = args.norm_query = op_zeros(16);
        mix(&args, h, 1);
        double expected = (double)h[0] + op_sigmoid(1e-3 * sign);
        assert_close_f64("h", args.h, &expected, 1, 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_gather_of_bf16, op_data_free),
        cmocka_unit_test_teardown(test_formula, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_zero_key, op_data_free),
        cmocka_unit_test_teardown(test_small_key, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
