/* Routes `gdn` and `qsa`, one token at a time, against the CPU reference: state over several steps, ties, tails,
 * contexts below and above the budget, and what they refuse. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "device/route.h"
#include "gpu_support.h"

static device_t device;

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

static const route_state_t *route(kernel_route_t which) { return &CUDA->routes(device.cuda)[which]; }

static void gdn_case(int64_t Kh, int64_t Vh, int64_t D, bool silu_gate, bool is_taken) {
    enum { STEPS = 5, Cw = 4 };
    int64_t channels = (2 * Kh + Vh) * D, stride = channels + Vh * D + 2 * Vh;
    int64_t n_before = route(ROUTE_GDN)->n_launches;
    gdn_core_args_t args = {.n_tokens = 1,
                            .n_key_heads = Kh,
                            .n_value_heads = Vh,
                            .key_dim = D,
                            .value_dim = D,
                            .conv_kernel = Cw,
                            .rms_norm_eps = 1e-6f,
                            .silu_gate = silu_gate,
                            .projected_stride = stride,
                            .conv = random_floats(channels * Cw, 0.5f),
                            .A_log = random_floats(Vh, 1.0f),
                            .dt_bias = random_floats(Vh, 1.0f),
                            .norm = random_floats(D, 1.0f),
                            .conv_state = random_floats((Cw - 1) * channels, 1.0f),
                            .state = random_floats(Vh * D * D, 0.3f),
                            .y = host_floats(Vh * D)};
    gdn_core_args_t on = args;
    on.conv = upload_floats(&device, args.conv, channels * Cw);
    on.A_log = upload_floats(&device, args.A_log, Vh);
    on.dt_bias = upload_floats(&device, args.dt_bias, Vh);
    on.norm = upload_floats(&device, args.norm, D);
    on.conv_state = upload_halves(&device, args.conv_state, (Cw - 1) * channels);
    on.state = upload_floats(&device, args.state, Vh * D * D);
    on.workspace = poisoned(&device, CUDA->gdn_core_workspace_bytes(&args));
    args.workspace = host_bytes(CPU->gdn_core_workspace_bytes(&args));
    for (int step = 0; step < STEPS; step++) {
        args.projected = random_floats(stride, 1.5f);
        on.projected = upload_halves(&device, args.projected, stride);
        on.y = poisoned(&device, (size_t)(Vh * D) * 2);
        run(CPU->gdn_core(device.cpu, &args));
        run(CUDA->gdn_core(device.cuda, &on));
        check_halves(&device, "gdn_core y", on.y, args.y, Vh * D, 1e-3);
        /* The general form rounds the convolution's results to FP16. */
        check_floats(&device, "gdn_core state", on.state, args.state, Vh * D * D, is_taken ? 1e-5 : 1e-3);
        check_halves(&device, "gdn_core conv_state", on.conv_state, args.conv_state, (Cw - 1) * channels, 0.0);
    }
    assert_int_equal(route(ROUTE_GDN)->n_launches - n_before, is_taken ? STEPS : 0);
    device_release(&device);
}

static void test_gdn(void **state) {
    (void)state;
    gdn_case(16, 48, 128, false, true);
    gdn_case(8, 24, 128, true, true);
    gdn_case(4, 12, 128, false, true);
    gdn_case(2, 6, 128, false, true);
    gdn_case(3, 3, 128, false, true);
    gdn_case(4, 12, 32, false, true);
    gdn_case(1, 3, 32, true, true);
    assert_null(route(ROUTE_GDN)->refusal);
}

enum qsa_keys {
    KEYS_RANDOM,
    KEYS_TIED, /* few different ones, so that most scores are equal to others */
    KEYS_ZERO, /* all scores are 0 */
};

/* n_steps tokens from `pos` on, behind a cache of random keys and values. */
static void qsa_case(qsa_shape_t shape, int64_t pos, int n_steps, enum qsa_keys kind) {
    int64_t D = shape.head_dim, Id = shape.index_dim, ratio = shape.ratio, n_q = shape.n_heads * D;
    int64_t stride = (2 * shape.n_heads + 2 * shape.n_kv_heads) * D + (shape.index_n_heads + 1) * Id;
    int64_t capacity = (pos + n_steps + 2 * ratio) / ratio * ratio, n_kv = shape.n_kv_heads * capacity * D;
    int64_t n_keys = capacity / ratio * Id, n_before = route(ROUTE_QSA)->n_launches;
    qsa_cache_t host = {.capacity = capacity,
                        .k = random_floats(n_kv, 1.0f),
                        .v = random_floats(n_kv, 1.0f),
                        .index_keys = random_floats(n_keys, kind == KEYS_ZERO ? 0.0f : 1.0f),
                        .raw_keys = random_floats(ratio * Id, 1.0f)};
    for (int64_t block = 8; block < capacity / ratio && kind == KEYS_TIED; block++)
        memcpy(host.index_keys + block * Id, host.index_keys + random_below(8) * (uint64_t)Id, (size_t)Id * 4);
    static device_t cache_device;
    cache_device = (device_t){.cuda = device.cuda, .cpu = device.cpu};
    qsa_cache_t cache = {.capacity = capacity,
                         .k = upload_halves(&cache_device, host.k, n_kv),
                         .v = upload_halves(&cache_device, host.v, n_kv),
                         .index_keys = upload_halves(&cache_device, host.index_keys, n_keys),
                         .raw_keys = upload_halves(&cache_device, host.raw_keys, ratio * Id)};
    float *norms[4] = {random_floats(D, 0.3f), random_floats(D, 0.3f), random_floats(Id, 0.3f),
                       random_floats(Id, 0.3f)};
    int64_t last = pos + n_steps - 1;
    for (; pos <= last; pos++) {
        int32_t n_blocks;
        qsa_core_args_t args = {.prepare = {.shape = shape,
                                            .n_tokens = 1,
                                            .start_pos = &pos,
                                            .rms_norm_eps = 1e-6f,
                                            .rope_theta = 1e7,
                                            .projected = random_floats(stride, 1.0f),
                                            .projected_stride = stride,
                                            .q_norm = norms[0],
                                            .k_norm = norms[1],
                                            .index_q_norm = norms[2],
                                            .index_k_norm = norms[3],
                                            .cache = host,
                                            .q = host_floats(n_q),
                                            .gate = host_floats(n_q),
                                            .index_q = host_floats(shape.index_n_heads * Id)}};
        args.select = (qsa_select_args_t){.shape = shape,
                                          .n_tokens = 1,
                                          .start_pos = &pos,
                                          .index_q = args.prepare.index_q,
                                          .cache = host,
                                          .blocks = host_bytes((size_t)shape.n_select * 4),
                                          .n_blocks = &n_blocks};
        args.attend = (qsa_attend_args_t){.shape = shape,
                                          .n_tokens = 1,
                                          .start_pos = &pos,
                                          .q = args.prepare.q,
                                          .gate = args.prepare.gate,
                                          .cache = host,
                                          .blocks = args.select.blocks,
                                          .n_blocks = &n_blocks,
                                          .y = host_floats(n_q)};
        qsa_core_args_t on = args;
        const int64_t *start_pos = upload_bytes(&device, &pos, sizeof pos);
        on.prepare.start_pos = on.select.start_pos = on.attend.start_pos = start_pos;
        on.prepare.cache = on.select.cache = on.attend.cache = cache;
        on.prepare.projected = upload_halves(&device, args.prepare.projected, stride);
        on.prepare.q_norm = upload_floats(&device, norms[0], D);
        on.prepare.k_norm = upload_floats(&device, norms[1], D);
        on.prepare.index_q_norm = upload_floats(&device, norms[2], Id);
        on.prepare.index_k_norm = upload_floats(&device, norms[3], Id);
        on.prepare.q = poisoned(&device, (size_t)n_q * 2);
        on.prepare.gate = poisoned(&device, (size_t)n_q * 2);
        on.prepare.index_q = poisoned(&device, (size_t)(shape.index_n_heads * Id) * 2);
        on.select.index_q = on.prepare.index_q;
        on.select.blocks = poisoned(&device, (size_t)shape.n_select * 4);
        on.select.n_blocks = poisoned(&device, 4);
        on.attend.q = on.prepare.q, on.attend.gate = on.prepare.gate;
        on.attend.blocks = on.select.blocks, on.attend.n_blocks = on.select.n_blocks;
        on.attend.y = poisoned(&device, (size_t)n_q * 2);
        size_t select_bytes = CUDA->qsa_select_workspace_bytes(&args.select);
        size_t attend_bytes = CUDA->qsa_attend_workspace_bytes(&args.attend);
        on.select.workspace = on.attend.workspace =
            poisoned(&device, select_bytes > attend_bytes ? select_bytes : attend_bytes);
        args.select.workspace = host_bytes(CPU->qsa_select_workspace_bytes(&args.select));
        args.attend.workspace = host_bytes(CPU->qsa_attend_workspace_bytes(&args.attend));

        run(CUDA->qsa_core(device.cuda, &on));
        run(CPU->qsa_prepare(device.cpu, &args.prepare));
        check_halves(&device, "qsa k", cache.k, host.k, n_kv, 1e-3);
        check_halves(&device, "qsa v", cache.v, host.v, n_kv, 0.0);
        check_halves(&device, "qsa index_keys", cache.index_keys, host.index_keys, n_keys, 2e-3);
        if ((pos + 1) % ratio)
            check_halves(&device, "qsa raw_keys", cache.raw_keys + pos % ratio * Id / 2,
                         host.raw_keys + pos % ratio * Id, Id, 0.0);
        run(CPU->qsa_select(device.cpu, &args.select));
        if ((pos + 1) / ratio > shape.n_select) {
            int32_t *blocks = host_bytes((size_t)shape.n_select * 4), n_other = 0;
            run(CUDA->download(device.cuda, blocks, on.select.blocks, (size_t)shape.n_select * 4));
            for (int32_t i = 0, j = 0; i < shape.n_select; i++) {
                if (blocks[i] < 0 || blocks[i] >= (pos + 1) / ratio || (i > 0 && blocks[i] <= blocks[i - 1]))
                    fail_msg("block %d of the list is %d", i, blocks[i]);
                while (j < n_blocks && args.select.blocks[j] < blocks[i])
                    j++;
                n_other += j == n_blocks || args.select.blocks[j] != blocks[i];
            }
            /* FP16 keys may order near-equal scores otherwise, but not equal ones. A block that was made here has its
             * own key. */
            int32_t may_differ = kind == KEYS_RANDOM ? (int32_t)shape.n_select / 50 + 1 : 0;
            if (n_other > may_differ) fail_msg("%d of the selected blocks differ at %lld", n_other, (long long)pos);
            memcpy(args.select.blocks, blocks, (size_t)shape.n_select * 4);
        }
        run(CPU->qsa_attend(device.cpu, &args.attend));
        check_halves(&device, "qsa y", on.attend.y, args.attend.y, n_q, 2e-3);
        device_release(&device);
    }
    assert_int_equal(route(ROUTE_QSA)->n_launches - n_before, n_steps);
    device_release(&cache_device);
    memory_free(host.k);
    memory_free(host.v);
    memory_free(host.index_keys);
}

static qsa_shape_t full_shape(int64_t n_heads, int64_t n_kv_heads) {
    return (qsa_shape_t){.n_heads = n_heads,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = 256,
                         .rotary_dim = 64,
                         .index_n_heads = 4,
                         .index_dim = 128,
                         .ratio = 4,
                         .n_select = 512};
}

static qsa_shape_t nano_shape(int64_t n_heads, int64_t n_kv_heads, int64_t n_select) {
    return (qsa_shape_t){.n_heads = n_heads,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = 32,
                         .rotary_dim = 16,
                         .index_n_heads = 4,
                         .index_dim = 32,
                         .ratio = 4,
                         .n_select = n_select};
}

static void test_qsa(void **state) {
    (void)state;
    qsa_case(full_shape(24, 2), 0, 9, KEYS_RANDOM);
    qsa_case(full_shape(24, 2), 2045, 9, KEYS_RANDOM);
    qsa_case(full_shape(24, 2), 8189, 5, KEYS_RANDOM);
    qsa_case(full_shape(12, 1), 3001, 4, KEYS_RANDOM);
    qsa_case(full_shape(6, 1), 3002, 4, KEYS_RANDOM);
    qsa_case(full_shape(3, 1), 3003, 4, KEYS_RANDOM);
    qsa_case(nano_shape(8, 2, 16), 0, 12, KEYS_RANDOM);
    qsa_case(nano_shape(8, 2, 16), 61, 12, KEYS_RANDOM);
    qsa_case(nano_shape(4, 1, 16), 777, 5, KEYS_RANDOM);
    qsa_case(nano_shape(2, 1, 13), 778, 5, KEYS_RANDOM);
    assert_null(route(ROUTE_QSA)->refusal);
}

/* Select keeps keys of up to 4096 and up to 16384 blocks in registers and reads those of more again. */
static void test_qsa_lengths_and_ties(void **state) {
    (void)state;
    static const int64_t positions[] = {2700, 16383, 16384, 16387, 65535, 65540};
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        for (int kind = KEYS_RANDOM; kind <= KEYS_ZERO; kind++)
            qsa_case(nano_shape(2, 1, 512), positions[i], 1, (enum qsa_keys)kind);
    }
    qsa_case(nano_shape(2, 1, 512), 262143, 1, KEYS_TIED);
    qsa_case(full_shape(6, 1), 8190, 3, KEYS_TIED);
    qsa_case(full_shape(6, 1), 8191, 1, KEYS_ZERO);
    assert_null(route(ROUTE_QSA)->refusal);
}

static void test_refusals(void **state) {
    (void)state;
    gdn_case(2, 6, 64, false, false);
    assert_non_null(route(ROUTE_GDN)->refusal);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gdn),
        cmocka_unit_test(test_qsa),
        cmocka_unit_test(test_qsa_lengths_and_ties),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
