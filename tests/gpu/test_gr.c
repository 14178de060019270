/* The gated residual on CUDA against the CPU reference: the general form, and route `gr` with every type of weight. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "device/route.h"
#include "gpu_support.h"
#include "linear/dense8.h"

static device_t device;

/* FP16 results of FP32 sums; the general form also rounds what lies between. */
#define ROUNDED 1e-3

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

static route_state_t *gr_route(void) { return &CUDA->routes(device.cuda)[ROUTE_GR]; }

/* A random matrix in two forms of the same values: FP32 or FP16 for the CPU, `dtype` for the device. */
typedef struct weight {
    matrix_t host, on_device;
} weight_t;

static weight_t random_weight(dtype_t dtype, int64_t rows, int64_t columns) {
    matrix_t source = random_matrix(rows, columns);
    if (dtype == DTYPE_F16) return (weight_t){source, upload_matrix(&device, source)};
    size_t bytes = dense8_bytes(dtype, rows, columns);
    matrix_t target = dense8_matrix(dtype, rows, columns, host_bytes(bytes));
    run(dense8_quantize_cpu(&(dense8_args_t){.source = source, .target = target}));
    float *values = host_floats(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, group = row * dense8_row_scales(dtype, columns) + i % columns / DENSE8_GROUP;
        values[i] =
            dtype == DTYPE_Q8
                ? (float)((const int8_t *)target.data)[i] * f16_to_float(((const uint16_t *)target.scales)[group])
                : e4m3_values[((const uint8_t *)target.data)[i]] * ((const float *)target.scales)[row];
    }
    void *memory = upload_bytes(&device, target.data, bytes);
    return (weight_t){{.data = values, .dtype = DTYPE_F32, .rows = rows, .columns = columns},
                      dense8_matrix(dtype, rows, columns, memory)};
}

typedef struct gr_case {
    int64_t n_tokens, S, H, R;
    dtype_t dtype;
    bool with_inject, pending;
} gr_case_t;

/* The same call for both backends; outputs on the device are poisoned. */
static void make_case(const gr_case_t *c, gr_mix_args_t *host, gr_mix_args_t *on) {
    int64_t n = c->n_tokens, width = c->S * c->H;
    weight_t down = random_weight(c->dtype, c->R, width), up = random_weight(c->dtype, width, c->R);
    *host = (gr_mix_args_t){.n_tokens = n,
                            .hc_count = c->S,
                            .hidden_size = c->H,
                            .rms_norm_eps = 1e-6f,
                            .h = random_floats(n * width, 2.0f),
                            .hc_norm = random_floats(width, 0.3f),
                            .down = down.host,
                            .up = up.host,
                            .u = host_floats(n * c->H)};
    *on = *host;
    on->h = upload_floats(&device, host->h, n * width);
    on->hc_norm = upload_floats(&device, host->hc_norm, width);
    on->down = down.on_device;
    on->up = up.on_device;
    on->u = poisoned(&device, (size_t)(n * c->H) * 2);
    if (c->with_inject) {
        weight_t block_inject = random_weight(DTYPE_F16, c->S, width);
        host->block_inject = block_inject.host;
        host->inject = host_floats(n * c->S);
        on->block_inject = block_inject.on_device;
        on->inject = poisoned(&device, (size_t)(n * c->S) * 4);
    }
    if (c->pending) {
        float *inject_before = random_floats(n * c->S, 1.0f), *o = random_floats(n * c->H, 1.0f);
        host->inject_before = inject_before;
        host->o = o;
        on->inject_before = upload_floats(&device, inject_before, n * c->S);
        on->o = upload_halves(&device, o, n * c->H);
    }
    host->workspace = host_bytes(CPU->gr_mix_workspace_bytes(host));
    on->workspace = poisoned(&device, CUDA->gr_mix_workspace_bytes(on));
}

static void check_case(const gr_case_t *c) {
    gr_mix_args_t host, on;
    make_case(c, &host, &on);
    run(CPU->gr_mix(device.cpu, &host));
    run(CUDA->gr_mix(device.cuda, &on));
    check_floats(&device, "gr_mix h", on.h, host.h, c->n_tokens * c->S * c->H, 1e-6);
    check_halves(&device, "gr_mix u", on.u, host.u, c->n_tokens * c->H, ROUNDED);
    if (c->with_inject) check_floats(&device, "gr_mix inject", on.inject, host.inject, c->n_tokens * c->S, ROUNDED);
    device_release(&device);
}

static void test_general(void **state) {
    (void)state;
    static const gr_case_t cases[] = {
        {1, 4, 2560, 320, DTYPE_F16, true, true}, {1, 4, 2560, 320, DTYPE_F16, false, false},
        {1, 4, 160, 32, DTYPE_F16, true, false},  {3, 4, 160, 32, DTYPE_F16, false, true},
        {2, 3, 50, 7, DTYPE_F16, true, true},     {8, 1, 64, 24, DTYPE_F16, true, false},
        {33, 4, 160, 32, DTYPE_F16, true, true},  {70, 2, 96, 20, DTYPE_F16, false, false},
    };
    gr_route()->wanted = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(&cases[i]);
    gr_route()->wanted = true;
}

static void test_route(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{2560, 320}, {160, 32}};
    static const dtype_t dtypes[] = {DTYPE_F16, DTYPE_Q8, DTYPE_QPN8};
    for (int i = 0; i < 2 * 3 * 4; i++) {
        const int64_t *shape = shapes[i % 2];
        gr_case_t c = {1, 4, shape[0], shape[1], dtypes[i / 2 % 3], i / 6 % 2 == 0, i / 12 == 0};
        if (c.H == 2560 && c.with_inject != c.pending) continue; /* the large shape is slow on the CPU */
        printf("    %s, H %lld%s%s\n", dtype_name(c.dtype), (long long)c.H, c.with_inject ? "" : ", final",
               c.pending ? ", pending" : "");
        int64_t before = gr_route()->n_launches;
        check_case(&c);
        assert_int_equal(gr_route()->n_launches, before + 1);
    }
}

/* What the route was not built for goes through the general form, with its reason. */
static void test_refusal(void **state) {
    (void)state;
    static const gr_case_t other_shape = {1, 4, 2560, 160, DTYPE_F16, true, true};
    static const gr_case_t fits = {1, 4, 160, 32, DTYPE_F16, true, true};
    int64_t before = gr_route()->n_launches;
    gr_route()->refusal = NULL;
    check_case(&other_shape);
    assert_string_equal(gr_route()->refusal, "not a shape it was built for");

    gr_mix_args_t host, on;
    make_case(&fits, &host, &on);
    float *shifted = poisoned(&device, (size_t)(4 * 160 + 1) * sizeof(float));
    run(CUDA->upload(device.cuda, shifted + 1, host.h, 4 * 160 * sizeof(float)));
    on.h = shifted + 1;
    gr_route()->refusal = NULL;
    run(CPU->gr_mix(device.cpu, &host));
    run(CUDA->gr_mix(device.cuda, &on));
    assert_string_equal(gr_route()->refusal, "an operand is not aligned to 16 bytes");
    check_halves(&device, "gr_mix u, shifted h", on.u, host.u, 160, ROUNDED);
    device_release(&device);
    assert_int_equal(gr_route()->n_launches, before);
}

/* The same bits whenever it runs. */
static void test_repeated(void **state) {
    (void)state;
    static const gr_case_t c = {1, 4, 2560, 320, DTYPE_F16, true, false};
    gr_mix_args_t host, on;
    make_case(&c, &host, &on);
    void *first = host_bytes(2560 * 2), *again = host_bytes(2560 * 2);
    run(CUDA->gr_mix(device.cuda, &on));
    run(CUDA->download(device.cuda, first, on.u, 2560 * 2));
    for (int i = 0; i < 20; i++) {
        run(CUDA->gr_mix(device.cuda, &on));
        run(CUDA->download(device.cuda, again, on.u, 2560 * 2));
        assert_memory_equal(again, first, 2560 * 2);
    }
    device_release(&device);
}

static void test_inject(void **state) {
    (void)state;
    enum { N = 3, S = 5, H = 77 };
    gr_inject_args_t args = {.n_tokens = N,
                             .hc_count = S,
                             .hidden_size = H,
                             .inject = random_floats(N * S, 1.0f),
                             .o = random_floats(N * H, 1.0f),
                             .h = random_floats(N * S * H, 1.0f)};
    gr_inject_args_t on = args;
    on.inject = upload_floats(&device, args.inject, N * S);
    on.o = upload_halves(&device, args.o, N * H);
    on.h = upload_floats(&device, args.h, N * S * H);
    run(CPU->gr_inject(device.cpu, &args));
    run(CUDA->gr_inject(device.cuda, &on));
    check_floats(&device, "gr_inject", on.h, args.h, N * S * H, 1e-6);
    device_release(&device);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_general),  cmocka_unit_test(test_route),  cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_repeated), cmocka_unit_test(test_inject),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
