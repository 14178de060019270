/* Each op of the CUDA backend against the CPU reference, over odd sizes, on fresh random data. Inputs are values that
 * FP16 holds, so what differs is FP16 rounding of results and the order of FP32 sums. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "gpu_support.h"

static device_t device;

/* An op's FP16 results after FP32 sums. */
#define ROUNDED 1e-3

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

static void test_linear(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},      {1, 5, 24},      {1, 320, 10240}, {1, 2560, 6144}, {3, 33, 160},
                                        {8, 513, 2560}, {4, 324, 10240}, {9, 40, 64},     {77, 130, 320},  {2, 7, 37}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t n_tokens = shapes[i][0], rows = shapes[i][1], columns = shapes[i][2];
        matrix_t weight = random_matrix(rows, columns);
        float *x = random_floats(n_tokens * columns, 1.0f), *y = host_floats(n_tokens * rows);
        run(CPU->linear(device.cpu, &(linear_args_t){.n_tokens = n_tokens, .weight = weight, .x = x, .y = y}));
        activation_t *device_y = poisoned(&device, (size_t)(n_tokens * rows) * 2);
        float *device_y_f32 = poisoned(&device, (size_t)(n_tokens * rows) * 4);
        linear_args_t args = {.n_tokens = n_tokens,
                              .weight = upload_matrix(&device, weight),
                              .x = upload_halves(&device, x, n_tokens * columns),
                              .y = device_y};
        run(CUDA->linear(device.cuda, &args));
        args.y = NULL;
        args.y_f32 = device_y_f32;
        run(CUDA->linear(device.cuda, &args));
        char what[64];
        snprintf(what, sizeof what, "linear %lld x %lld x %lld", (long long)n_tokens, (long long)rows,
                 (long long)columns);
        check_halves(&device, what, device_y, y, n_tokens * rows, ROUNDED);
        check_floats(&device, what, device_y_f32, y, n_tokens * rows, 1e-5);
        device_release(&device);
        memory_free(x);
        memory_free(y);
        memory_free((void *)(uintptr_t)weight.data);
    }
}

static void test_embed(void **state) {
    (void)state;
    enum { V = 57, H = 40, S = 3, N = 5 };
    matrix_t embed = random_matrix(V, H);
    int32_t tokens[N] = {0, 56, 3, 3, 17};
    float *h = host_floats(N * S * H);
    run(CPU->embed(device.cpu,
                   &(embed_args_t){.n_tokens = N, .hc_count = S, .tokens = tokens, .embed = embed, .h = h}));
    float *device_h = poisoned(&device, N * S * H * sizeof(float));
    run(CUDA->embed(device.cuda, &(embed_args_t){.n_tokens = N,
                                                 .hc_count = S,
                                                 .tokens = upload_bytes(&device, tokens, sizeof tokens),
                                                 .embed = upload_matrix(&device, embed),
                                                 .h = device_h}));
    check_bytes(&device, "embed", device_h, h, N * S * H * sizeof(float));
    device_release(&device);
}

static void gdn_case(int64_t n_tokens, int64_t Kh, int64_t Vh, int64_t Dk, int64_t Dv, int64_t Cw, bool silu_gate) {
    int64_t channels = 2 * Kh * Dk + Vh * Dv, stride = channels + Vh * Dv + 2 * Vh + 3;
    gdn_core_args_t args = {.n_tokens = n_tokens,
                            .n_key_heads = Kh,
                            .n_value_heads = Vh,
                            .key_dim = Dk,
                            .value_dim = Dv,
                            .conv_kernel = Cw,
                            .rms_norm_eps = 1e-6f,
                            .silu_gate = silu_gate,
                            .projected = random_floats(n_tokens * stride, 1.5f),
                            .projected_stride = stride,
                            .conv = random_floats(channels * Cw, 0.5f),
                            .A_log = random_floats(Vh, 1.0f),
                            .dt_bias = random_floats(Vh, 1.0f),
                            .norm = random_floats(Dv, 1.0f),
                            .conv_state = random_floats((Cw - 1) * channels, 1.0f),
                            .state = random_floats(Vh * Dk * Dv, 0.3f),
                            .y = host_floats(n_tokens * Vh * Dv)};
    gdn_core_args_t on = args;
    on.projected = upload_halves(&device, args.projected, n_tokens * stride);
    on.conv = upload_floats(&device, args.conv, channels * Cw);
    on.A_log = upload_floats(&device, args.A_log, Vh);
    on.dt_bias = upload_floats(&device, args.dt_bias, Vh);
    on.norm = upload_floats(&device, args.norm, Dv);
    on.conv_state = upload_halves(&device, args.conv_state, (Cw - 1) * channels);
    on.state = upload_floats(&device, args.state, Vh * Dk * Dv);
    on.y = poisoned(&device, (size_t)(n_tokens * Vh * Dv) * 2);
    on.workspace = poisoned(&device, CUDA->gdn_core_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->gdn_core_workspace_bytes(&args));
    run(CPU->gdn_core(device.cpu, &args));
    run(CUDA->gdn_core(device.cuda, &on));
    check_halves(&device, "gdn_core y", on.y, args.y, n_tokens * Vh * Dv, 3e-3);
    check_floats(&device, "gdn_core state", on.state, args.state, Vh * Dk * Dv, 2e-3);
    check_halves(&device, "gdn_core conv_state", on.conv_state, args.conv_state, (Cw - 1) * channels, 0.0);
    device_release(&device);
}

static void test_gdn(void **state) {
    (void)state;
    gdn_case(1, 16, 48, 128, 128, 4, false);
    gdn_case(1, 4, 12, 32, 32, 4, false);
    gdn_case(2, 4, 12, 32, 32, 4, true);
    gdn_case(5, 1, 3, 20, 24, 2, false);
    gdn_case(33, 2, 2, 64, 48, 4, false);
    gdn_case(100, 2, 6, 128, 128, 4, false);
    gdn_case(65, 1, 2, 200, 36, 3, true);
    gdn_case(9, 1, 1, 600, 5, 4, false);
}

static void router_case(int64_t n_tokens, int64_t E, int64_t K, bool norm, int kind) {
    int64_t stride = router_rows(E);
    router_args_t args = {.n_tokens = n_tokens,
                          .n_experts = E,
                          .top_k = K,
                          .norm_topk_prob = norm,
                          .logits = random_floats(n_tokens * stride, 2.0f),
                          .logits_stride = stride,
                          .experts = host_bytes((size_t)(n_tokens * K) * 4),
                          .weights = host_floats(n_tokens * K),
                          .shared_gate = host_floats(n_tokens)};
    float *logits = (float *)(uintptr_t)args.logits;
    for (int64_t i = 0; i < n_tokens * stride; i++) {
        if (kind == 1) logits[i] = (float)random_below(4);                /* many ties */
        if (kind == 2 && random_below(2)) logits[i] = -INFINITY;          /* weights of 0 */
        if (kind == 3 && random_below((uint64_t)E) == 0) logits[i] = NAN; /* no distribution in most rows */
        if (kind == 4) logits[i] = random_below(2) ? 0.0f : -0.0f;
    }
    router_args_t on = args;
    on.logits = upload_floats(&device, args.logits, n_tokens * stride);
    on.experts = poisoned(&device, (size_t)(n_tokens * K) * 4);
    on.weights = poisoned(&device, (size_t)(n_tokens * K) * 4);
    on.shared_gate = poisoned(&device, (size_t)n_tokens * 4);
    run(CPU->router(device.cpu, &args));
    run(CUDA->router(device.cuda, &on));
    check_bytes(&device, "router experts", on.experts, args.experts, (size_t)(n_tokens * K) * 4);
    check_floats(&device, "router weights", on.weights, args.weights, n_tokens * K, 1e-6);
    check_floats(&device, "router shared_gate", on.shared_gate, args.shared_gate, n_tokens, 1e-6);
    device_release(&device);
}

static void test_router(void **state) {
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        router_case(1, 512, 10, true, kind);
        router_case(40, 512, 10, false, kind);
        router_case(7, 32, 4, true, kind);
        router_case(3, 5, 5, true, kind);
    }
}

static void experts_case(int64_t n_tokens, int64_t E, int64_t K, int64_t H, int64_t M, bool nvfp4) {
    experts_args_t args = {.n_tokens = n_tokens,
                           .n_experts = E,
                           .top_k = K,
                           .hidden_size = H,
                           .intermediate = M,
                           .u = random_floats(n_tokens * H, 1.0f),
                           .experts = host_bytes((size_t)(n_tokens * K) * 4),
                           .weights = random_floats(n_tokens * K, 0.3f),
                           .o = host_floats(n_tokens * H)};
    int32_t *experts = (int32_t *)(uintptr_t)args.experts;
    for (int64_t i = 0; i < n_tokens * K; i++)
        experts[i] = (int32_t)random_below((uint64_t)E);
    experts_args_t on = args;
    if (nvfp4) {
        random_experts(&device, E, H, M, &args.expert_weights, &on.expert_weights);
    } else {
        args.expert_weights.gate_up_f16 = random_matrix(E * 2 * M, H).data;
        args.expert_weights.down_f16 = random_matrix(E * H, M).data;
        on.expert_weights.gate_up_f16 =
            upload_bytes(&device, args.expert_weights.gate_up_f16, (size_t)(E * 2 * M * H) * 2);
        on.expert_weights.down_f16 = upload_bytes(&device, args.expert_weights.down_f16, (size_t)(E * M * H) * 2);
    }
    on.u = upload_halves(&device, args.u, n_tokens * H);
    on.experts = upload_bytes(&device, args.experts, (size_t)(n_tokens * K) * 4);
    on.weights = upload_floats(&device, args.weights, n_tokens * K);
    on.o = poisoned(&device, (size_t)(n_tokens * H) * 2);
    on.workspace = poisoned(&device, CUDA->experts_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->experts_workspace_bytes(&args));
    run(CPU->experts(device.cpu, &args));
    run(CUDA->experts(device.cuda, &on));
    check_halves(&device, nvfp4 ? "experts nvfp4" : "experts f16", on.o, args.o, n_tokens * H, ROUNDED);
    device_release(&device);
}

static void test_experts(void **state) {
    (void)state;
    experts_case(1, 16, 10, 2560, 640, true);
    experts_case(1, 16, 10, 2560, 160, true);
    experts_case(1, 32, 4, 160, 64, true);
    experts_case(3, 5, 3, 48, 16, true);
    experts_case(40, 8, 3, 160, 64, true);
    experts_case(300, 8, 4, 256, 128, true);
    experts_case(1, 8, 4, 160, 64, false);
    experts_case(50, 6, 2, 96, 48, false);
}

static void shared_expert_case(int64_t n_tokens, int64_t H, int64_t M) {
    shared_expert_args_t args = {.n_tokens = n_tokens,
                                 .u = random_floats(n_tokens * H, 1.0f),
                                 .shared_gate = random_floats(n_tokens, 1.0f),
                                 .gate_up = random_matrix(2 * M, H),
                                 .down = random_matrix(H, M),
                                 .o = random_floats(n_tokens * H, 1.0f)};
    shared_expert_args_t on = args;
    on.u = upload_halves(&device, args.u, n_tokens * H);
    on.shared_gate = upload_floats(&device, args.shared_gate, n_tokens);
    on.gate_up = upload_matrix(&device, args.gate_up);
    on.down = upload_matrix(&device, args.down);
    on.o = upload_halves(&device, args.o, n_tokens * H);
    on.workspace = poisoned(&device, CUDA->shared_expert_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->shared_expert_workspace_bytes(&args));
    run(CPU->shared_expert(device.cpu, &args));
    run(CUDA->shared_expert(device.cuda, &on));
    check_halves(&device, "shared_expert", on.o, args.o, n_tokens * H, ROUNDED);
    device_release(&device);
}

static void test_shared_expert(void **state) {
    (void)state;
    shared_expert_case(1, 2560, 640);
    shared_expert_case(1, 160, 64);
    shared_expert_case(6, 70, 9);
    shared_expert_case(31, 160, 64);
}

static void ple_case(int64_t n_tokens, int64_t S, int64_t H, int64_t kernel, int64_t dilation) {
    int64_t width = S * H, n_state = (kernel - 1) * dilation;
    ple_mix_args_t args = {.n_tokens = n_tokens,
                           .hc_count = S,
                           .hidden_size = H,
                           .conv_kernel = kernel,
                           .dilation = dilation,
                           .rms_norm_eps = 1e-6f,
                           .projected = random_floats(n_tokens * (S + 1) * H, 1.0f),
                           .norm_key = random_floats(width, 0.3f),
                           .norm_query = random_floats(width, 0.3f),
                           .norm_conv = random_floats(width, 0.3f),
                           .conv = random_floats(width * kernel, 0.5f),
                           .conv_state = random_floats(n_state * width, 1.0f),
                           .h = random_floats(n_tokens * width, 1.0f)};
    ple_mix_args_t on = args;
    on.projected = upload_halves(&device, args.projected, n_tokens * (S + 1) * H);
    on.norm_key = upload_floats(&device, args.norm_key, width);
    on.norm_query = upload_floats(&device, args.norm_query, width);
    on.norm_conv = upload_floats(&device, args.norm_conv, width);
    on.conv = upload_floats(&device, args.conv, width * kernel);
    on.conv_state = upload_floats(&device, args.conv_state, n_state * width);
    on.h = upload_floats(&device, args.h, n_tokens * width);
    on.workspace = poisoned(&device, CUDA->ple_mix_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->ple_mix_workspace_bytes(&args));
    run(CPU->ple_mix(device.cpu, &args));
    run(CUDA->ple_mix(device.cuda, &on));
    check_floats(&device, "ple_mix h", on.h, args.h, n_tokens * width, 1e-5);
    check_floats(&device, "ple_mix conv_state", on.conv_state, args.conv_state, n_state * width, 1e-5);
    device_release(&device);
}

static void test_ple(void **state) {
    (void)state;
    ple_case(1, 4, 2560, 4, 3);
    ple_case(2, 4, 160, 4, 3);
    ple_case(12, 3, 50, 2, 2);
    ple_case(90, 4, 160, 4, 3);
    for (int is_f8 = 0; is_f8 < 2; is_f8++) {
        enum { ROWS = 40, WIDTH = 20, N = 4, HEADS = 5 };
        int64_t rows[N * HEADS];
        uint16_t table[ROWS * WIDTH];
        for (int i = 0; i < N * HEADS; i++)
            rows[i] = (int64_t)random_below(2 * ROWS);
        for (int i = 0; i < ROWS * WIDTH; i++)
            table[i] =
                is_f8 ? (uint16_t)(random_below(0x7F) | random_below(0x7F) << 8) : bf16_from_float((float)i * 0.01f);
        float *e = host_floats(N * HEADS * WIDTH);
        ple_gather_args_t args = {
            .n_tokens = N,
            .n_heads = HEADS,
            .rows = rows,
            .table = {.data = table, .dtype = is_f8 ? DTYPE_F8_E4M3 : DTYPE_BF16, .rows = ROWS, .columns = WIDTH},
            .table_scale = 0.01f,
            .first_row = 20,
            .e = e};
        ple_gather_args_t on = args;
        on.rows = upload_bytes(&device, rows, sizeof rows);
        on.table.data = upload_bytes(&device, table, sizeof table);
        on.e = poisoned(&device, N * HEADS * WIDTH * 2);
        run(CPU->ple_gather(device.cpu, &args));
        run(CUDA->ple_gather(device.cuda, &on));
        check_halves(&device, "ple_gather", on.e, e, N * HEADS * WIDTH, ROUNDED);
        device_release(&device);
    }
}

static void test_ngram_rows(void **state) {
    (void)state;
    enum { N = 50, HEADS = 12, SIZE = 4 };
    int64_t multipliers[SIZE], sizes[HEADS], offsets[HEADS], rows[N * HEADS];
    int32_t context[SIZE - 1] = {7, 2, 5}, tokens[N];
    for (int i = 0; i < SIZE; i++)
        multipliers[i] = (int64_t)(random_below(UINT64_MAX) | 1);
    for (int i = 0; i < HEADS; i++) {
        sizes[i] = 1000 + (int64_t)random_below(1000);
        offsets[i] = 5000 * i;
    }
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)random_below(8);
    ngram_rows_args_t args = {.n_tokens = N,
                              .n_heads = HEADS,
                              .ngram_size = SIZE,
                              .heads_per_ngram = HEADS / (SIZE - 1),
                              .eos_token_id = 2,
                              .multipliers = multipliers,
                              .head_sizes = sizes,
                              .head_offsets = offsets,
                              .context = context,
                              .tokens = tokens,
                              .rows = rows};
    ngram_rows_args_t on = args;
    on.multipliers = upload_bytes(&device, multipliers, sizeof multipliers);
    on.head_sizes = upload_bytes(&device, sizes, sizeof sizes);
    on.head_offsets = upload_bytes(&device, offsets, sizeof offsets);
    on.context = upload_bytes(&device, context, sizeof context);
    on.tokens = upload_bytes(&device, tokens, sizeof tokens);
    on.rows = poisoned(&device, sizeof rows);
    run(CPU->ngram_rows(device.cpu, &args));
    run(CUDA->ngram_rows(device.cuda, &on));
    check_bytes(&device, "ngram_rows", on.rows, rows, sizeof rows);
    device_release(&device);
}

static void test_argmax(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        enum { N = 5003 };
        float *logits = random_floats(N, 1.0f);
        for (int i = 0; i < N && kind == 1; i++)
            logits[i] = (float)random_below(3);
        if (kind == 2) logits[2500] = NAN, logits[4000] = INFINITY;
        if (kind == 3) logits[4990] = INFINITY;
        token_pair_t pair;
        argmax_args_t args = {.n_logits = N,
                              .first_token = 10000,
                              .n_valid = kind == 4 ? 9000 : 10000 + N - (kind == 5 ? 0 : 20),
                              .logits = logits,
                              .pair = &pair};
        argmax_args_t on = args;
        on.logits = upload_floats(&device, logits, N);
        on.pair = poisoned(&device, sizeof pair);
        run(CPU->argmax(device.cpu, &args));
        run(CUDA->argmax(device.cuda, &on));
        check_bytes(&device, "argmax", &on.pair->token, &pair.token, sizeof pair.token);
        if (!isnan(pair.value)) check_bytes(&device, "argmax", &on.pair->value, &pair.value, sizeof pair.value);
        device_release(&device);
        memory_free(logits);
    }
}

/* The device makes the same items as the CPU, to the bit: synthetic models are then one model on both. Slices: other
 * columns of a row, runs of rows, groups. */
static void fill_case(dtype_t dtype, fill_rule_t rule, int64_t n_groups, int64_t n_columns, int64_t first_column) {
    fill_args_t args = {
        .rule = rule,
        .dtype = dtype,
        .n_groups = n_groups,
        .group_rows = 9,
        .whole_group_rows = 30,
        .n_runs = 3,
        .runs = {{.n_rows = 2, .whole_row = 3}, {.n_rows = 1, .whole_row = 11}, {.n_rows = 6, .whole_row = 24}},
        .n_columns = n_columns,
        .first_column = first_column,
        .whole_columns = first_column + n_columns + 5};
    size_t bytes = (size_t)(n_groups * args.group_rows * n_columns) * dtype_bytes(dtype);
    fill_args_t on = args;
    args.data = host_bytes(bytes);
    on.data = poisoned(&device, bytes);
    run(CPU->fill(device.cpu, &args));
    run(CUDA->fill(device.cuda, &on));
    check_bytes(&device, dtype_name(dtype), on.data, args.data, bytes);
    memory_free(args.data);
    device_release(&device);
}

static void test_fill(void **state) {
    (void)state;
    static const struct {
        dtype_t dtype;
        fill_rule_t rule;
    } rules[] = {
        {DTYPE_F32, {.mask = 0xFFFF, .offset = -32768, .unit = 3.1e-5f}},
        {DTYPE_BF16, {.mask = 0xFFFF, .offset = -32768, .unit = 1.7e-6f}},
        {DTYPE_F16, {.mask = 0xFFFF, .offset = -30000, .unit = 2.9e-9f}}, /* subnormal ones among them */
        {DTYPE_F8_E4M3, {.mask = 0x8F, .offset = 0x38}},
        {DTYPE_U8, {.mask = 0xFF}},
    };
    static const int64_t widths[] = {1, 3, 8, 64, 257, 1030};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            fill_rule_t rule = rules[i].rule;
            rule.key = random_below(UINT64_MAX >> 12);
            fill_case(rules[i].dtype, rule, 1 + (int64_t)random_below(4), widths[w], (int64_t)random_below(19));
        }
    }
    fill_case(DTYPE_F16, (fill_rule_t){.key = 5, .mask = 0xFFFF, .offset = -32768, .unit = 1e-4f}, 70, 2560, 0);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),        cmocka_unit_test(test_embed),      cmocka_unit_test(test_gdn),
        cmocka_unit_test(test_router),        cmocka_unit_test(test_experts),    cmocka_unit_test(test_ple),
        cmocka_unit_test(test_shared_expert), cmocka_unit_test(test_ngram_rows), cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
