/* The fast paths of prefill against the CPU reference: that they were taken, over odd lengths, chunk boundaries, states
 * carried from call to call and the slices of several ranks; and that they refuse what they were not made for. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "gpu_support.h"

static device_t device;

#define ROUNDED 1e-3

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

/* How often a route was taken; tests skip a device that cannot. */
static int64_t n_taken(kernel_route_t route) {
    const route_state_t *state = &CUDA->routes(device.cuda)[route];
    if (state->refusal && strstr(state->refusal, "sm_80")) skip();
    return state->n_launches;
}

typedef struct gdn_case {
    int64_t pieces[3]; /* tokens of each call */
    int64_t n_key_heads, n_value_heads, dim, conv_kernel;
    bool silu_gate, taken;
    bool is_hard;     /* equal keys that are never forgotten */
    int64_t n_behind; /* values behind a row of the projection */
} gdn_case_t;

static void gdn_case(const gdn_case_t *test) {
    int64_t Kh = test->n_key_heads, Vh = test->n_value_heads, D = test->dim, Cw = test->conv_kernel, n_tokens = 0;
    int64_t channels = (2 * Kh + Vh) * D, stride = channels + Vh * D + 2 * Vh, n_state = Vh * D * D;
    stride = (stride + 3) / 4 * 4 + test->n_behind;
    for (int i = 0; i < 3; i++)
        n_tokens += test->pieces[i];
    gdn_core_args_t args = {.n_tokens = n_tokens,
                            .n_key_heads = Kh,
                            .n_value_heads = Vh,
                            .key_dim = D,
                            .value_dim = D,
                            .conv_kernel = Cw,
                            .rms_norm_eps = 1e-6f,
                            .silu_gate = test->silu_gate,
                            .projected = random_floats(n_tokens * stride, 1.5f),
                            .projected_stride = stride,
                            .conv = random_floats(channels * Cw, 0.5f),
                            .A_log = random_floats(Vh, 1.0f),
                            .dt_bias = random_floats(Vh, 1.0f),
                            .norm = random_floats(D, 1.0f),
                            .conv_state = random_floats((Cw - 1) * channels, 1.0f),
                            .state = random_floats(n_state, 0.3f),
                            .y = host_floats(n_tokens * Vh * D)};
    if (test->is_hard) {
        float *row = (float *)(uintptr_t)args.projected, *A_log = (float *)(uintptr_t)args.A_log;
        for (int64_t head = 0; head < Vh; head++)
            A_log[head] = -20.0f;
        for (int64_t t = 0; t < n_tokens; t++, row += stride) {
            for (int64_t i = Kh * D; i < 2 * Kh * D; i++)
                row[i] = 1.0f + (float)(i % 7);
            for (int64_t head = 0; head < Vh; head++)
                row[channels + Vh * D + head] = 6.0f;
        }
    }
    gdn_core_args_t on = args;
    on.conv = upload_floats(&device, args.conv, channels * Cw);
    on.A_log = upload_floats(&device, args.A_log, Vh);
    on.dt_bias = upload_floats(&device, args.dt_bias, Vh);
    on.norm = upload_floats(&device, args.norm, D);
    on.conv_state = upload_halves(&device, args.conv_state, (Cw - 1) * channels);
    on.state = upload_floats(&device, args.state, n_state);
    activation_t *projected = upload_halves(&device, args.projected, n_tokens * stride);
    activation_t *y = poisoned(&device, (size_t)(n_tokens * Vh * D) * 2);
    on.workspace = poisoned(&device, CUDA->gdn_core_workspace_bytes(&args));
    int64_t done = 0, before = n_taken(ROUTE_GDN_CHUNK), n_calls = 0;
    for (int i = 0; i < 3 && test->pieces[i]; i++, n_calls++) {
        on.n_tokens = test->pieces[i];
        on.projected = (activation_t *)((uint16_t *)projected + done * stride);
        on.y = (activation_t *)((uint16_t *)y + done * Vh * D);
        run(CUDA->gdn_core(device.cuda, &on));
        done += on.n_tokens;
    }
    assert_int_equal(n_taken(ROUTE_GDN_CHUNK) - before, test->taken ? n_calls : 0);
    args.workspace = host_bytes(CPU->gdn_core_workspace_bytes(&args));
    run(CPU->gdn_core(device.cpu, &args));
    check_halves(&device, "gdn_core y", y, args.y, n_tokens * Vh * D, 3e-3);
    check_floats(&device, "gdn_core state", on.state, args.state, n_state, 2e-3);
    check_halves(&device, "gdn_core conv_state", on.conv_state, args.conv_state, (Cw - 1) * channels, 0.0);
    device_release(&device);
}

static void test_gdn(void **state) {
    (void)state;
    static const gdn_case_t cases[] = {
        {{64}, 2, 6, 128, 4, .taken = true},
        {{9, 64, 31}, 2, 6, 128, 4, .taken = true},
        {{128, 65, 300}, 1, 3, 128, 4, .silu_gate = true, .taken = true},
        {{2048, 2085}, 2, 6, 128, 4, .taken = true},
        {{70}, 16, 48, 128, 4, .taken = true},
        {{77, 200}, 4, 12, 32, 4, .taken = true},
        {{150, 20}, 1, 3, 32, 4, .silu_gate = true, .taken = true},
        {{200}, 1, 2, 128, 4, .taken = true, .is_hard = true},
        {{20}, 1, 2, 64, 4, .taken = false},
        {{20}, 1, 2, 128, 3, .taken = false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        gdn_case(&cases[i]);
}

static void gr_case(int64_t n_tokens, int64_t S, int64_t H, int64_t R, bool with_inject, bool is_pending, bool taken) {
    int64_t width = S * H;
    gr_mix_args_t args = {.n_tokens = n_tokens,
                          .hc_count = S,
                          .hidden_size = H,
                          .rms_norm_eps = 1e-6f,
                          .h = random_floats(n_tokens * width, 2.0f),
                          .inject_before = is_pending ? random_floats(n_tokens * S, 0.5f) : NULL,
                          .o = is_pending ? random_floats(n_tokens * H, 1.0f) : NULL,
                          .hc_norm = random_floats(width, 0.3f),
                          .down = random_matrix(R, width),
                          .up = random_matrix(width, R),
                          .u = host_floats(n_tokens * H)};
    if (with_inject) {
        args.block_inject = random_matrix(S, width);
        args.inject = host_floats(n_tokens * S);
    }
    gr_mix_args_t on = args;
    on.h = upload_floats(&device, args.h, n_tokens * width);
    if (is_pending) {
        on.inject_before = upload_floats(&device, args.inject_before, n_tokens * S);
        on.o = upload_halves(&device, args.o, n_tokens * H);
    }
    on.hc_norm = upload_floats(&device, args.hc_norm, width);
    on.down = upload_matrix(&device, args.down);
    on.up = upload_matrix(&device, args.up);
    on.u = poisoned(&device, (size_t)(n_tokens * H) * 2);
    if (with_inject) {
        on.block_inject = upload_matrix(&device, args.block_inject);
        on.inject = poisoned(&device, (size_t)(n_tokens * S) * 4);
    }
    on.workspace = poisoned(&device, CUDA->gr_mix_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->gr_mix_workspace_bytes(&args));
    int64_t before = n_taken(ROUTE_GR_MANY);
    run(CPU->gr_mix(device.cpu, &args));
    run(CUDA->gr_mix(device.cuda, &on));
    assert_int_equal(n_taken(ROUTE_GR_MANY) - before, taken);
    check_halves(&device, "gr_mix u", on.u, args.u, n_tokens * H, ROUNDED);
    check_floats(&device, "gr_mix h", on.h, args.h, n_tokens * width, 1e-6);
    if (with_inject) check_floats(&device, "gr_mix inject", on.inject, args.inject, n_tokens * S, ROUNDED);
    device_release(&device);
}

static void test_gr(void **state) {
    (void)state;
    gr_case(9, 4, 2560, 320, true, true, true);
    gr_case(300, 4, 2560, 320, true, true, true);
    gr_case(257, 4, 160, 32, true, false, true);
    gr_case(128, 4, 160, 32, false, true, true);
    gr_case(40, 3, 160, 32, true, true, false);
    gr_case(40, 4, 148, 32, true, true, false);
}

static void experts_case(int64_t n_tokens, int64_t E, int64_t K, int64_t H, int64_t M, bool taken) {
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
    for (int64_t i = 0; i < n_tokens * K; i++) /* low ones more often, and the last one never */
        experts[i] = (int32_t)(random_below((uint64_t)E) * random_below((uint64_t)E) / (uint64_t)E);
    experts_args_t on = args;
    random_experts(&device, E, H, M, &args.expert_weights, &on.expert_weights);
    on.u = upload_halves(&device, args.u, n_tokens * H);
    on.experts = upload_bytes(&device, args.experts, (size_t)(n_tokens * K) * 4);
    on.weights = upload_floats(&device, args.weights, n_tokens * K);
    on.o = poisoned(&device, (size_t)(n_tokens * H) * 2);
    on.workspace = poisoned(&device, CUDA->experts_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->experts_workspace_bytes(&args));
    int64_t before = n_taken(ROUTE_EXPERTS_GROUPED);
    run(CPU->experts(device.cpu, &args));
    run(CUDA->experts(device.cuda, &on));
    assert_int_equal(n_taken(ROUTE_EXPERTS_GROUPED) - before, taken);
    check_halves(&device, "experts", on.o, args.o, n_tokens * H, ROUNDED);
    device_release(&device);
    experts_free(&args.expert_weights);
}

static void test_experts(void **state) {
    (void)state;
    experts_case(9, 32, 4, 160, 64, true);
    experts_case(333, 32, 4, 160, 64, true);
    experts_case(40, 8, 3, 160, 32, true);
    experts_case(300, 12, 10, 2560, 640, true);
    experts_case(150, 12, 10, 2560, 320, true);
    experts_case(70, 12, 10, 2560, 160, true);
    experts_case(50, 1500, 3, 64, 32, true);
    experts_case(40, 8, 3, 160, 80, false);
    experts_case(40, 5, 3, 48, 16, false);
}

/* Each token's blocks are drawn at random from those that are complete, so that unions are large. */
static void qsa_case(int64_t start_pos, int64_t n_tokens, qsa_shape_t shape, bool taken) {
    int64_t D = shape.head_dim, ratio = shape.ratio, n_q = n_tokens * shape.n_heads * D;
    int64_t capacity = (start_pos + n_tokens + 100) / ratio * ratio, n_kv = shape.n_kv_heads * capacity * D;
    qsa_attend_args_t args = {
        .shape = shape,
        .n_tokens = n_tokens,
        .start_pos = &start_pos,
        .q = random_floats(n_q, 1.0f),
        .gate = random_floats(n_q, 1.0f),
        .cache = {.capacity = capacity, .k = random_floats(n_kv, 1.0f), .v = random_floats(n_kv, 1.0f)},
        .blocks = host_bytes((size_t)(n_tokens * shape.n_select) * 4),
        .n_blocks = host_bytes((size_t)n_tokens * 4),
        .y = host_floats(n_q)};
    for (int64_t t = 0; t < n_tokens; t++) {
        int32_t *blocks = (int32_t *)(uintptr_t)args.blocks + t * shape.n_select;
        int64_t n_left = (start_pos + t + 1) / ratio, n_wanted = n_left < shape.n_select ? n_left : shape.n_select;
        ((int32_t *)(uintptr_t)args.n_blocks)[t] = (int32_t)n_wanted;
        for (int32_t block = 0; n_wanted > 0; block++, n_left--) {
            if ((int64_t)random_below((uint64_t)n_left) < n_wanted) {
                *blocks++ = block;
                n_wanted--;
            }
        }
    }
    for (int64_t head = 0; head < shape.n_kv_heads; head++) /* nothing behind the last token may be used */
        for (int64_t i = (head * capacity + start_pos + n_tokens) * D; i < (head + 1) * capacity * D; i++)
            args.cache.k[i] = args.cache.v[i] = NAN;
    qsa_attend_args_t on = args;
    on.start_pos = upload_bytes(&device, &start_pos, sizeof start_pos);
    on.q = upload_halves(&device, args.q, n_q);
    on.gate = upload_halves(&device, args.gate, n_q);
    on.cache.k = upload_halves(&device, args.cache.k, n_kv);
    on.cache.v = upload_halves(&device, args.cache.v, n_kv);
    on.blocks = upload_bytes(&device, args.blocks, (size_t)(n_tokens * shape.n_select) * 4);
    on.n_blocks = upload_bytes(&device, args.n_blocks, (size_t)n_tokens * 4);
    on.y = poisoned(&device, (size_t)n_q * 2);
    on.workspace = poisoned(&device, CUDA->qsa_attend_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->qsa_attend_workspace_bytes(&args));
    int64_t before = n_taken(ROUTE_QSA_TILES);
    run(CPU->qsa_attend(device.cpu, &args));
    run(CUDA->qsa_attend(device.cuda, &on));
    assert_int_equal(n_taken(ROUTE_QSA_TILES) - before, taken);
    check_halves(&device, "qsa_attend", on.y, args.y, n_q, 2e-3);
    device_release(&device);
}

/* Small whole numbers, so that scores are exact and many are equal. */
static float *small_integers(int64_t n) {
    float *values = host_floats(n);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)random_below(3) - 1.0f;
    return values;
}

static void select_case(int64_t start_pos, int64_t n_tokens, qsa_shape_t shape, bool taken) {
    int64_t capacity = (start_pos + n_tokens + 100) / shape.ratio * shape.ratio, width = shape.index_dim;
    int64_t n_q = n_tokens * shape.index_n_heads * width, n_keys = capacity / shape.ratio * width;
    size_t block_bytes = (size_t)(n_tokens * shape.n_select) * 4;
    qsa_select_args_t args = {.shape = shape,
                              .n_tokens = n_tokens,
                              .start_pos = &start_pos,
                              .index_q = small_integers(n_q),
                              .cache = {.capacity = capacity, .index_keys = small_integers(n_keys)},
                              .blocks = host_bytes(block_bytes),
                              .n_blocks = host_bytes((size_t)n_tokens * 4)};
    for (int64_t i = 0; i < width && start_pos > 40; i++) /* counts as 0 */
        args.cache.index_keys[9 * width + i] = NAN;
    qsa_select_args_t on = args;
    on.start_pos = upload_bytes(&device, &start_pos, sizeof start_pos);
    on.index_q = upload_halves(&device, args.index_q, n_q);
    on.cache.index_keys = upload_halves(&device, args.cache.index_keys, n_keys);
    on.n_blocks = poisoned(&device, (size_t)n_tokens * 4);
    on.workspace = poisoned(&device, CUDA->qsa_select_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->qsa_select_workspace_bytes(&args));
    memset(args.blocks, 0xFF, block_bytes); /* as what is not written stays poisoned */
    on.blocks = poisoned(&device, block_bytes);
    int64_t before = n_taken(ROUTE_QSA_TILES);
    run(CPU->qsa_select(device.cpu, &args));
    run(CUDA->qsa_select(device.cuda, &on));
    assert_int_equal(n_taken(ROUTE_QSA_TILES) - before, taken);
    check_bytes(&device, "qsa_select n_blocks", on.n_blocks, args.n_blocks, (size_t)n_tokens * 4);
    check_bytes(&device, "qsa_select blocks", on.blocks, args.blocks, block_bytes);
    device_release(&device);
}

static void test_select(void **state) {
    (void)state;
    qsa_shape_t full = {.index_n_heads = 4, .index_dim = 128, .ratio = 4, .n_select = 512};
    qsa_shape_t nano = {.index_n_heads = 4, .index_dim = 32, .ratio = 4, .n_select = 16}, other = nano;
    select_case(0, 300, full, true);
    select_case(2040, 33, full, true);
    select_case(9001, 130, full, true);
    select_case(0, 1500, nano, true);
    select_case(101, 9, nano, true);
    other.index_n_heads = 3, other.ratio = 2;
    select_case(55, 80, other, true);
    other.index_dim = 48;
    select_case(55, 80, other, false);
}

static void test_qsa(void **state) {
    (void)state;
    qsa_shape_t full = {.n_heads = 24, .n_kv_heads = 2, .head_dim = 256, .ratio = 4, .n_select = 512};
    qsa_shape_t half = full, quarter = full, eighth = full, nano = full, other = full;
    half.n_heads = 12, half.n_kv_heads = 1;
    quarter.n_heads = 6, quarter.n_kv_heads = 1;
    eighth.n_heads = 3, eighth.n_kv_heads = 1;
    nano.n_heads = 8, nano.head_dim = 32, nano.n_select = 16;
    other.head_dim = 64;
    qsa_case(0, 9, full, true);
    qsa_case(1, 123, full, true);
    qsa_case(2030, 61, full, true);
    qsa_case(9001, 31, full, true);
    qsa_case(3003, 50, half, true);
    qsa_case(3003, 50, quarter, true);
    qsa_case(3003, 70, eighth, true);
    qsa_case(0, 301, nano, true);
    qsa_case(333, 77, nano, true);
    qsa_case(40, 20, other, false);
    other.head_dim = 256, other.ratio = 2;
    qsa_case(40, 20, other, false);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gdn),    cmocka_unit_test(test_gr),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_select), cmocka_unit_test(test_qsa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
