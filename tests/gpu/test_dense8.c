/* Dense projections against the CPU: 8-bit codes and scales to the bit, and the ops that take them, or FP16 on routes
 * `gemv_m1` and `lm_head`, against FP32 products of the same values. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "gpu_support.h"
#include "linear/dense8.h"

static device_t device;

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

static void free_matrix(matrix_t matrix) { memory_free((void *)(uintptr_t)matrix.data); }

static matrix_t quantize_on_cpu(matrix_t weight, dtype_t dtype, double *errors) {
    void *memory = host_bytes(dense8_bytes(dtype, weight.rows, weight.columns));
    matrix_t target = dense8_matrix(dtype, weight.rows, weight.columns, memory);
    run(CPU->dense8_quantize(device.cpu, &(dense8_args_t){.source = weight, .target = target, .errors = errors}));
    return target;
}

static matrix_t quantize_on_gpu(matrix_t weight, dtype_t dtype, double *errors) {
    size_t bytes = dense8_bytes(dtype, weight.rows, weight.columns);
    matrix_t target = dense8_matrix(dtype, weight.rows, weight.columns, poisoned(&device, bytes));
    run(CUDA->dense8_quantize(device.cuda, &(dense8_args_t){.source = weight, .target = target, .errors = errors}));
    return target;
}

/* What the codes stand for, in FP32. */
static matrix_t values_of(matrix_t matrix) {
    float *values = host_floats(matrix.rows * matrix.columns);
    int64_t n_scales = dense8_row_scales(matrix.dtype, matrix.columns);
    for (int64_t row = 0; row < matrix.rows; row++) {
        for (int64_t i = 0; i < matrix.columns; i++) {
            int64_t at = row * matrix.columns + i;
            values[at] = matrix.dtype == DTYPE_Q8
                             ? (float)((const int8_t *)matrix.data)[at] *
                                   f16_to_float(((const uint16_t *)matrix.scales)[row * n_scales + i / DENSE8_GROUP])
                             : e4m3_values[((const uint8_t *)matrix.data)[at]] * ((const float *)matrix.scales)[row];
        }
    }
    return (matrix_t){.data = values, .dtype = DTYPE_F32, .rows = matrix.rows, .columns = matrix.columns};
}

static const dtype_t formats[] = {DTYPE_Q8, DTYPE_QPN8};

static void conversion_case(int64_t rows, int64_t columns, dtype_t dtype) {
    char what[64];
    snprintf(what, sizeof what, "%s %lld x %lld", dtype_name(dtype), (long long)rows, (long long)columns);
    matrix_t weight = random_matrix(rows, columns);
    uint16_t *halves = (uint16_t *)(uintptr_t)weight.data;
    for (int64_t i = 0; i < rows * columns; i += 97) /* subnormals, zeros and the largest among them */
        halves[i] = (uint16_t)((uint64_t[]){0x0001, 0x8000, 0x7BFF, 0x83FF, 0x0000}[random_below(5)]);
    if (rows > 2) memset(halves + 2 * columns, 0, (size_t)columns * 2); /* a row of zeros */

    double expected[DENSE8_ERRORS] = {0.5, 0.25}, got[2];
    matrix_t on = upload_matrix(&device, weight), target = quantize_on_cpu(weight, dtype, expected);
    double *errors = upload_bytes(&device, (double[DENSE8_ERRORS]){0.5, 0.25}, sizeof expected);
    matrix_t target_on = quantize_on_gpu(on, dtype, errors);
    check_bytes(&device, what, target_on.data, target.data, (size_t)(rows * columns));
    check_bytes(&device, what, target_on.scales, target.scales,
                dense8_bytes(dtype, rows, columns) - (size_t)((const char *)target.scales - (const char *)target.data));
    run(CUDA->download(device.cuda, got, errors, sizeof got));
    for (int i = 0; i < 2; i++)
        if (!(got[i] > expected[i] * (1.0 - 1e-4) && got[i] < expected[i] * (1.0 + 1e-4)))
            fail_msg("%s: sum %d of squares is %g, expected %g", what, i, got[i], expected[i]);

    matrix_t back = {
        .data = host_bytes((size_t)(rows * columns) * 2), .dtype = DTYPE_F16, .rows = rows, .columns = columns};
    matrix_t back_on = back;
    back_on.data = poisoned(&device, (size_t)(rows * columns) * 2);
    run(CPU->dense8_dequantize(device.cpu, &(dense8_args_t){.source = target, .target = back}));
    run(CUDA->dense8_dequantize(device.cuda, &(dense8_args_t){.source = target_on, .target = back_on}));
    check_bytes(&device, what, back_on.data, back.data, (size_t)(rows * columns) * 2);
    device_release(&device);
    free_matrix(weight);
    free_matrix(target);
    free_matrix(back);
}

static void codes_are_those_of_the_cpu(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {5, 37}, {3, 64}, {7, 160}, {324, 640}, {33, 129}, {64, 6144}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++)
        conversion_case(shapes[i / 2][0], shapes[i / 2][1], formats[i % 2]);
}

static const route_state_t *route(kernel_route_t which) { return &CUDA->routes(device.cuda)[which]; }

/* FP32 results in y_f32 and FP16 ones in y, each against the CPU's. */
static void check_linear(const char *what, linear_args_t args, const float *y, double limit) {
    int64_t n = args.n_tokens * args.weight.rows;
    args.y_f32 = NULL;
    args.y = poisoned(&device, (size_t)n * 2);
    run(CUDA->linear(device.cuda, &args));
    check_halves(&device, what, args.y, y, n, 1e-3);
    args.y = NULL;
    args.y_f32 = poisoned(&device, (size_t)n * 4);
    run(CUDA->linear(device.cuda, &args));
    check_floats(&device, what, args.y_f32, y, n, limit);
}

/* Values of the codes are exact in FP32, so only sums differ; behind FP16 scratch also the weights. */
static void linear_case(int64_t n_tokens, int64_t rows, int64_t columns, dtype_t dtype) {
    char what[64];
    snprintf(what, sizeof what, "%s %lld x %lld x %lld", dtype_name(dtype), (long long)n_tokens, (long long)rows,
             (long long)columns);
    matrix_t weight = random_matrix(rows, columns), on = upload_matrix(&device, weight), values = weight;
    bool is_8bit = dtype != DTYPE_F16;
    if (is_8bit) {
        matrix_t target = quantize_on_cpu(weight, dtype, NULL);
        values = values_of(target);
        free_matrix(target);
        on = quantize_on_gpu(on, dtype, NULL);
        CUDA->set_dense8_scratch(device.cuda, poisoned(&device, (size_t)(rows * columns) * 2));
    }
    float *x = random_floats(n_tokens * columns, 1.0f), *y = host_floats(n_tokens * rows);
    run(CPU->linear(device.cpu, &(linear_args_t){.n_tokens = n_tokens, .weight = values, .x = x, .y = y}));
    linear_args_t args = {.n_tokens = n_tokens, .weight = on, .x = upload_halves(&device, x, n_tokens * columns)};
    bool fits = n_tokens == 1 && rows >= 4 && columns % (is_8bit ? 16 : 8) == 0 && columns <= 6144;
    route_state_t *m1 = &CUDA->routes(device.cuda)[ROUTE_GEMV_M1];
    int64_t n_before = m1->n_launches;
    check_linear(what, args, y, is_8bit && !fits ? 1e-3 : 1e-5);
    assert_int_equal(m1->n_launches - n_before, fits ? 2 : 0);
    m1->wanted = false;
    if (fits) check_linear("general form", args, y, is_8bit ? 1e-3 : 1e-5);
    assert_int_equal(m1->n_launches - n_before, fits ? 2 : 0);
    m1->wanted = true;
    CUDA->set_dense8_scratch(device.cuda, NULL);
    device_release(&device);
    memory_free(x);
    memory_free(y);
    free_matrix(weight);
    if (is_8bit) free_matrix(values);
}

/* The shapes of the full model on 1, 2 and 4 ranks and of nano, and others. */
static void linear_takes_every_form(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 1031, 2560}, {1, 640, 6144}, {1, 640, 3072}, {1, 2560, 1536}, {1, 1048, 160}, {1, 160, 384},
        {1, 160, 96},    {1, 33, 2560},  {1, 3, 16},     {1, 7, 1008},    {1, 11, 4112},  {1, 5, 24},
        {1, 70, 37},     {1, 3, 10240},  {2, 320, 640},  {8, 160, 384},   {40, 320, 160}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        linear_case(shapes[i][0], shapes[i][1], shapes[i][2], DTYPE_F16);
        linear_case(shapes[i][0], shapes[i][1], shapes[i][2], DTYPE_Q8);
        linear_case(shapes[i][0], shapes[i][1], shapes[i][2], DTYPE_QPN8);
    }
    if (!route(ROUTE_GEMV_M1)->refusal) fail_msg("nothing was refused");
}

/* Rows are made to give chosen logits: column 0 of a row times u[0] = 1; the others add nothing. */
static void lm_head_case(int64_t rows, int64_t columns, int kind, bool with_route) {
    enum { FIRST = 10000 };
    matrix_t weight = random_matrix(rows, columns);
    uint16_t *w = (uint16_t *)(uintptr_t)weight.data;
    float *u = random_floats(columns, 1.0f), *logits = host_floats(rows);
    if (kind > 0) {
        memset(u, 0, (size_t)columns * sizeof *u);
        u[0] = 1.0f;
        for (int64_t i = 0; i < rows; i++)
            w[i * columns] = f16_from_float(kind == 1 ? (float)random_below(3) : -(float)random_below(1000) - 1.0f);
    }
    if (kind == 2) w[(rows - 1) * columns] = f16_from_float(-0.0f), w[(rows / 2) * columns] = 0x8000;
    if (kind == 3) w[(rows / 2) * columns] = 0x7C00, w[(rows - 30) * columns] = 0x7E00;
    if (kind == 4) w[(rows - 1) * columns] = 0x7C00; /* of a padding id */
    token_pair_t pair;
    lm_head_args_t args = {.weight = weight,
                           .u = u,
                           .first_token = FIRST,
                           .n_valid = kind == 5 ? 9000 : FIRST + rows - (kind == 4 ? 20 : 0),
                           .logits = logits,
                           .pair = &pair};
    lm_head_args_t on = args;
    on.weight = upload_matrix(&device, weight);
    on.u = upload_halves(&device, u, columns);
    on.logits = poisoned(&device, (size_t)rows * sizeof(float));
    on.pair = poisoned(&device, sizeof pair);
    on.state = upload_bytes(&device, (uint64_t[LM_HEAD_STATE]){0}, LM_HEAD_STATE * sizeof(uint64_t));
    run(CPU->lm_head(device.cpu, &args));
    int64_t n_before = route(ROUTE_LM_HEAD)->n_launches;
    CUDA->routes(device.cuda)[ROUTE_LM_HEAD].wanted = with_route;
    for (int i = 0; i < 2; i++) { /* the second time from what the first left */
        run(CUDA->lm_head(device.cuda, &on));
        if (kind != 3 && kind != 4) check_floats(&device, "lm_head", on.logits, logits, rows, 1e-5);
        check_bytes(&device, "lm_head token", &on.pair->token, &pair.token, sizeof pair.token);
        if (kind > 0 && !isnan(pair.value))
            check_bytes(&device, "lm_head value", &on.pair->value, &pair.value, sizeof pair.value);
    }
    assert_int_equal(route(ROUTE_LM_HEAD)->n_launches - n_before, with_route ? 2 : 0);
    CUDA->routes(device.cuda)[ROUTE_LM_HEAD].wanted = true;
    device_release(&device);
    memory_free(u);
    memory_free(logits);
    free_matrix(weight);
}

static void lm_head_chooses_as_the_cpu(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        lm_head_case(2656, 160, kind, true);
        lm_head_case(1003, 2560, kind, true);
        lm_head_case(664, 160, kind, false);
    }
}

/* Against FP16 weights rounded from the same codes. */
static void gr_case(int64_t n_tokens, int64_t S, int64_t H, int64_t R, dtype_t dtype) {
    int64_t width = S * H;
    matrix_t down = random_matrix(R, width), up = random_matrix(width, R);
    matrix_t down8 = quantize_on_cpu(down, dtype, NULL), up8 = quantize_on_cpu(up, dtype, NULL);
    gr_mix_args_t args = {.n_tokens = n_tokens,
                          .hc_count = S,
                          .hidden_size = H,
                          .rms_norm_eps = 1e-6f,
                          .h = random_floats(n_tokens * width, 2.0f),
                          .hc_norm = random_floats(width, 0.3f),
                          .down = values_of(down8),
                          .up = values_of(up8),
                          .block_inject = random_matrix(S, width),
                          .u = host_floats(n_tokens * H),
                          .inject = host_floats(n_tokens * S)};
    gr_mix_args_t on = args;
    on.h = upload_floats(&device, args.h, n_tokens * width);
    on.hc_norm = upload_floats(&device, args.hc_norm, width);
    on.down = quantize_on_gpu(upload_matrix(&device, down), dtype, NULL);
    on.up = quantize_on_gpu(upload_matrix(&device, up), dtype, NULL);
    on.block_inject = upload_matrix(&device, args.block_inject);
    on.u = poisoned(&device, (size_t)(n_tokens * H) * 2);
    on.inject = poisoned(&device, (size_t)(n_tokens * S) * 4);
    args.workspace = host_bytes(CPU->gr_mix_workspace_bytes(&args));
    on.workspace = poisoned(&device, CUDA->gr_mix_workspace_bytes(&args));
    CUDA->set_dense8_scratch(device.cuda, poisoned(&device, (size_t)(R * width) * 2));
    run(CPU->gr_mix(device.cpu, &args));
    run(CUDA->gr_mix(device.cuda, &on));
    char what[64];
    snprintf(what, sizeof what, "gr_mix %s %lld tokens", dtype_name(dtype), (long long)n_tokens);
    check_halves(&device, what, on.u, args.u, n_tokens * H, 1e-3);
    check_floats(&device, what, on.inject, args.inject, n_tokens * S, 1e-3);
    CUDA->set_dense8_scratch(device.cuda, NULL);
    device_release(&device);
    free_matrix(down);
    free_matrix(up);
    free_matrix(down8);
    free_matrix(up8);
    free_matrix(args.down);
    free_matrix(args.up);
    free_matrix(args.block_inject);
}

static void gr_mix_takes_8_bits(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        gr_case(1, 4, 2560, 320, formats[i]);
        gr_case(1, 4, 160, 32, formats[i]);
        gr_case(5, 4, 160, 32, formats[i]);
        gr_case(40, 4, 160, 32, formats[i]);
        gr_case(2, 3, 50, 7, formats[i]);
    }
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_the_cpu),
        cmocka_unit_test(linear_takes_every_form),
        cmocka_unit_test(lm_head_chooses_as_the_cpu),
        cmocka_unit_test(gr_mix_takes_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
