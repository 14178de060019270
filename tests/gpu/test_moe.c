/* The joined MoE block of one token (routes nvfp4_m1, router, shared_gate) against the CPU's ops one by one. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>

#include "base/dtype.h"
#include "device/route.h"
#include "gpu_support.h"

static device_t device;

/* FP16 activations and result of FP32 sums. */
#define ROUNDED 1e-3

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

static route_state_t *route(kernel_route_t which) { return &CUDA->routes(device.cuda)[which]; }

/* One layer's block: the arguments on both sides, and what the CPU's ops need besides. */
typedef struct block {
    moe_args_t host, on;
    void *workspace; /* of the CPU's ops */
    size_t workspace_bytes;
} block_t;

static void make_block(int64_t E, int64_t K, int64_t H, int64_t M, bool norm_topk_prob, block_t *block) {
    block->host = (moe_args_t){.n_experts = E,
                               .top_k = K,
                               .hidden_size = H,
                               .intermediate = M,
                               .shared_intermediate = M,
                               .norm_topk_prob = norm_topk_prob,
                               .u = random_floats(H, 1.0f),
                               .router = random_matrix(E + 1, H),
                               .shared_gate_up = random_matrix(2 * M, H),
                               .shared_down = random_matrix(H, M),
                               .logits = host_floats(E + 1),
                               .experts = host_bytes((size_t)K * sizeof(int32_t)),
                               .weights = host_floats(K),
                               .shared_gate = host_floats(1),
                               .o = host_floats(H)};
    moe_args_t *on = &block->on;
    *on = block->host;
    random_experts(&device, E, H, M, &block->host.expert_weights, &on->expert_weights);
    on->u = upload_halves(&device, block->host.u, H);
    on->router = upload_matrix(&device, block->host.router);
    on->shared_gate_up = upload_matrix(&device, block->host.shared_gate_up);
    on->shared_down = upload_matrix(&device, block->host.shared_down);
    on->logits = poisoned(&device, (size_t)(E + 1) * sizeof(float));
    on->experts = poisoned(&device, (size_t)K * sizeof(int32_t));
    on->weights = poisoned(&device, (size_t)K * sizeof(float));
    on->shared_gate = poisoned(&device, sizeof(float));
    on->o = poisoned(&device, (size_t)H * 2);
    on->workspace = poisoned(&device, CUDA->moe_workspace_bytes(&block->host) +
                                          CUDA->shared_expert_workspace_bytes(&(shared_expert_args_t){
                                              .n_tokens = 1, .gate_up = on->shared_gate_up, .down = on->shared_down}));
    block->workspace_bytes = (size_t)16 << 20;
    block->workspace = host_bytes(block->workspace_bytes);
}

static void free_block(block_t *block) {
    experts_free(&block->host.expert_weights);
    memory_free(block->workspace);
    device_release(&device);
}

/* What follows the logits, by the CPU's ops. */
static void reference(block_t *block) {
    moe_args_t *args = &block->host;
    const router_args_t router = {.n_tokens = 1,
                                  .n_experts = args->n_experts,
                                  .top_k = args->top_k,
                                  .norm_topk_prob = args->norm_topk_prob,
                                  .logits = args->logits,
                                  .logits_stride = args->n_experts + 1,
                                  .experts = args->experts,
                                  .weights = args->weights,
                                  .shared_gate = args->shared_gate};
    const experts_args_t experts = {.n_tokens = 1,
                                    .n_experts = args->n_experts,
                                    .top_k = args->top_k,
                                    .hidden_size = args->hidden_size,
                                    .intermediate = args->intermediate,
                                    .u = args->u,
                                    .experts = args->experts,
                                    .weights = args->weights,
                                    .expert_weights = args->expert_weights,
                                    .o = args->o,
                                    .workspace = block->workspace};
    const shared_expert_args_t shared = {.n_tokens = 1,
                                         .u = args->u,
                                         .shared_gate = args->shared_gate,
                                         .gate_up = args->shared_gate_up,
                                         .down = args->shared_down,
                                         .o = args->o,
                                         .workspace = block->workspace};
    assert_true(CPU->experts_workspace_bytes(&experts) <= block->workspace_bytes);
    assert_true(CPU->shared_expert_workspace_bytes(&shared) <= block->workspace_bytes);
    run(CPU->router(device.cpu, &router));
    run(CPU->experts(device.cpu, &experts));
    run(CPU->shared_expert(device.cpu, &shared));
}

static void run_joined(const block_t *block) {
    run(CUDA->moe_in(device.cuda, &block->on));
    run(CUDA->moe_gate_up(device.cuda, &block->on));
    run(CUDA->moe_down(device.cuda, &block->on));
}

static void poison(const block_t *block) {
    static uint8_t pattern[2560 * 2];
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = 0xFF;
    run(CUDA->upload(device.cuda, block->on.o, pattern, (size_t)block->on.hidden_size * 2));
    run(CUDA->upload(device.cuda, block->on.shared_gate, pattern, sizeof(float)));
    run(CUDA->upload(device.cuda, block->on.experts, pattern, (size_t)block->on.top_k * sizeof(int32_t)));
}

/* The whole block with every combination of the routes within. */
static void block_case(int64_t E, int64_t K, int64_t H, int64_t M, bool norm_topk_prob) {
    block_t block;
    make_block(E, K, H, M, norm_topk_prob, &block);
    run(CPU->linear(
        device.cpu,
        &(linear_args_t){.n_tokens = 1, .weight = block.host.router, .x = block.host.u, .y_f32 = block.host.logits}));
    reference(&block);
    for (int off = 0; off < 4; off++) {
        char what[80];
        snprintf(what, sizeof what, "moe of %lld, %lld, %lld, %lld, off %d", (long long)E, (long long)K, (long long)H,
                 (long long)M, off);
        route(ROUTE_ROUTER)->wanted = !(off & 1);
        route(ROUTE_SHARED_GATE)->wanted = !(off & 2);
        int64_t before[] = {route(ROUTE_NVFP4_M1)->n_launches, route(ROUTE_ROUTER)->n_launches,
                            route(ROUTE_SHARED_GATE)->n_launches};
        poison(&block);
        assert_true(CUDA->moe_is_joined(device.cuda, &block.on));
        run_joined(&block);
        check_floats(&device, "moe logits", block.on.logits, block.host.logits, E + 1, 1e-5);
        check_halves(&device, what, block.on.o, block.host.o, H, ROUNDED);
        assert_int_equal(route(ROUTE_NVFP4_M1)->n_launches, before[0] + 1);
        assert_int_equal(route(ROUTE_ROUTER)->n_launches, before[1] + !(off & 1));
        assert_int_equal(route(ROUTE_SHARED_GATE)->n_launches, before[2] + !(off & 2));
    }
    route(ROUTE_ROUTER)->wanted = route(ROUTE_SHARED_GATE)->wanted = true;
    free_block(&block);
}

static void test_block(void **state) {
    (void)state;
    block_case(512, 10, 2560, 640, true);
    block_case(512, 10, 2560, 320, false);
    block_case(512, 10, 2560, 160, true);
    block_case(512, 10, 2560, 80, true);
    block_case(32, 4, 160, 64, true);
    block_case(32, 4, 160, 32, true);
    block_case(32, 4, 160, 16, false);
}

/* Sets the logits on both sides and compares what follows. */
static void choice_case(block_t *block, const char *what) {
    int64_t E = block->host.n_experts, K = block->host.top_k, H = block->host.hidden_size;
    uint16_t *o = host_bytes((size_t)H * 2);
    reference(block);
    poison(block);
    run(CUDA->moe_in(device.cuda, &block->on)); /* opens the block; its logits are replaced */
    run(CUDA->upload(device.cuda, block->on.logits, block->host.logits, (size_t)(E + 1) * sizeof(float)));
    run(CUDA->moe_gate_up(device.cuda, &block->on));
    run(CUDA->moe_down(device.cuda, &block->on));
    if (!isnan(block->host.weights[K - 1])) {
        check_halves(&device, what, block->on.o, block->host.o, H, ROUNDED);
    } else { /* no distribution: the fault must reach the output */
        run(CUDA->download(device.cuda, o, block->on.o, (size_t)H * 2));
        for (int64_t i = 0; i < H; i++)
            assert_true(isnan(f16_to_float(o[i])));
    }
    memory_free(o);
}

/* `stride`: from the first FP16 value of one round to that of the next. */
static void choices_of(int64_t E, int64_t K, int64_t H, int64_t M, int64_t stride) {
    block_t block;
    make_block(E, K, H, M, true, &block);
    float *logits = block.host.logits;
    route(ROUTE_SHARED_GATE)->wanted = false; /* so that only the logits come from moe_in */

    /* Every FP16 value, as neighbours and far from each other; both make NaN and Inf meet others. */
    for (int64_t first = 0; first < 65536; first += stride) {
        for (int64_t e = 0; e <= E; e++)
            logits[e] = f16_to_float((uint16_t)((first + e) % 65536));
        choice_case(&block, "FP16 logits in order");
        for (int64_t e = 0; e <= E; e++)
            logits[e] = f16_to_float((uint16_t)((first + e * 40503) % 0x7C00 | (e % 3 ? 0 : 0x8000)));
        choice_case(&block, "finite FP16 logits, spread");
    }
    for (int64_t e = 0; e <= E; e++)
        logits[e] = 0.5f;
    choice_case(&block, "all equal");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e % 2 ? -0.0f : 0.0f;
    choice_case(&block, "zeros of both signs");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e % 7 == 3 ? 1.0f : (float)(e % 5) - 8.0f;
    choice_case(&block, "ties across the last place");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e >= E - K ? 3.0f - (float)(E - e) : -1e30f;
    choice_case(&block, "the last experts");
    for (int64_t e = 0; e < E; e++)
        logits[e] = 1e-30f * (float)((e * 37) % E);
    choice_case(&block, "below FP16's range");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e < E / 2 ? 1e5f + (float)((e * 37) % E) : -1e5f;
    choice_case(&block, "above FP16's range");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e == 5 || e == 9 ? 2.0f : -INFINITY;
    choice_case(&block, "nearly all -Inf");
    for (int64_t e = 0; e < E; e++)
        logits[e] = -INFINITY;
    choice_case(&block, "all -Inf");
    logits[E - 1] = INFINITY;
    choice_case(&block, "an Inf");
    for (int64_t e = 0; e < E; e++)
        logits[e] = e == E / 3 ? NAN : (float)e;
    choice_case(&block, "a NaN");
    /* Each infinity and each NaN alone among sound ones. */
    for (int64_t payload = 0x7C00; payload < 0x8000; payload += stride == 512 ? 61 : 1) {
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t e = 0; e <= E; e++)
                logits[e] = (float)((e * 7 + payload) % E) / 8.0f;
            logits[payload % E] = f16_to_float((uint16_t)(payload | sign << 15));
            choice_case(&block, "one that is not finite");
        }
    }
    for (int round = 0; round < 20; round++) {
        for (int64_t e = 0; e <= E; e++)
            logits[e] = (float)random_below(40) / 8.0f;
        choice_case(&block, "few different logits");
    }
    route(ROUTE_SHARED_GATE)->wanted = true;
    free_block(&block);
}

static void test_choice(void **state) {
    (void)state;
    choices_of(512, 10, 2560, 80, 512); /* every value */
    choices_of(32, 4, 160, 16, 1024);
}

static void test_refusal(void **state) {
    (void)state;
    block_t block;
    make_block(32, 4, 160, 64, true, &block);
    int64_t before = route(ROUTE_NVFP4_M1)->n_launches;
    moe_args_t other = block.on;
    other.top_k = 3;
    route(ROUTE_NVFP4_M1)->refusal = route(ROUTE_ROUTER)->refusal = NULL;
    assert_false(CUDA->moe_is_joined(device.cuda, &other));
    assert_string_equal(route(ROUTE_NVFP4_M1)->refusal, "not a shape it was built for");
    assert_string_equal(route(ROUTE_ROUTER)->refusal, "part of nvfp4_m1");
    other = block.on;
    other.u = (const void *)((const char *)block.on.u + 2);
    route(ROUTE_NVFP4_M1)->refusal = NULL;
    assert_false(CUDA->moe_is_joined(device.cuda, &other));
    assert_string_equal(route(ROUTE_NVFP4_M1)->refusal, "an operand is not aligned to 16 bytes");
    other = block.on;
    other.expert_weights.gate_up_codes = NULL;
    route(ROUTE_NVFP4_M1)->refusal = NULL;
    assert_false(CUDA->moe_is_joined(device.cuda, &other));
    assert_string_equal(route(ROUTE_NVFP4_M1)->refusal, "the experts are not NVFP4");
    route(ROUTE_NVFP4_M1)->wanted = false;
    assert_false(CUDA->moe_is_joined(device.cuda, &block.on));
    route(ROUTE_NVFP4_M1)->wanted = true;
    route(ROUTE_NVFP4_M1)->refusal = route(ROUTE_ROUTER)->refusal = route(ROUTE_SHARED_GATE)->refusal = NULL;
    assert_int_equal(route(ROUTE_NVFP4_M1)->n_launches, before);
    free_block(&block);
}

/* The largest value and the largest distances of what is FP16 from its FP64 reference: as it is, and beyond that of the
 * reference's own rounding, which leaves what FP32 sums cost. */
typedef struct extremes {
    double value, error, beyond_rounding;
} extremes_t;

static void take(extremes_t *of, uint16_t got, double want) {
    double error = fabs((double)f16_to_float(got) - want);
    double rounding = fabs((double)f16_to_float(f16_from_float((float)want)) - want);
    assert_true(isfinite(error));
    of->value = fmax(of->value, fabs(want));
    of->error = fmax(of->error, error);
    of->beyond_rounding = fmax(of->beyond_rounding, error - rounding);
}

enum { INPUTS = 16 };

/* sums[i] = row . x[.][i] of NVFP4 weights, without scale_2; x is [n][INPUTS]. */
static void dot_inputs(const uint8_t *codes, const uint8_t *scales, const double *x, int64_t n, double sums[INPUTS]) {
    for (int i = 0; i < INPUTS; i++)
        sums[i] = 0;
    for (int64_t c = 0; c < n; c++) {
        double weight = (double)(e2m1_values[codes[c / 2] >> 4 * (c % 2) & 15] * e4m3_values[scales[c / 16]]);
        for (int i = 0; i < INPUTS; i++)
            sums[i] += weight * x[c * INPUTS + i];
    }
}

/* a[m][i] of one expert. */
static void activations_of(const expert_weights_t *w, int64_t expert, int64_t H, int64_t M, const double *u,
                           double *a) {
    double gate_scale = (double)w->gate_up_scale_2[2 * expert], up_scale = (double)w->gate_up_scale_2[2 * expert + 1];
#pragma omp parallel for
    for (int64_t m = 0; m < M; m++) {
        double gate[INPUTS], up[INPUTS];
        int64_t row = expert * 2 * M + m;
        dot_inputs(w->gate_up_codes + row * H / 2, w->gate_up_scales + row * H / 16, u, H, gate);
        row += M;
        dot_inputs(w->gate_up_codes + row * H / 2, w->gate_up_scales + row * H / 16, u, H, up);
        for (int i = 0; i < INPUTS; i++) {
            double g = gate[i] * gate_scale;
            a[m * INPUTS + i] = g / (1.0 + exp(-g)) * up[i] * up_scale;
        }
    }
}

/* o[h][i] += weight * down(a[.][i]) */
static void add_down(const expert_weights_t *w, int64_t expert, int64_t H, int64_t M, double weight, const double *a,
                     double *o) {
    weight *= (double)w->down_scale_2[expert];
#pragma omp parallel for
    for (int64_t h = 0; h < H; h++) {
        double sums[INPUTS];
        int64_t row = expert * H + h;
        dot_inputs(w->down_codes + row * M / 2, w->down_scales + row * M / 16, a, M, sums);
        for (int i = 0; i < INPUTS; i++)
            o[h * INPUTS + i] += weight * sums[i];
    }
}

/* Weights such that activations stay below 1/8 and outputs below 1/1024, and no shared expert. */
static void scale_weights(block_t *block) {
    enum { E = 512, H = 2560 };
    int64_t M = block->host.intermediate;
    expert_weights_t *host = &block->host.expert_weights, *on = &block->on.expert_weights;
    struct {
        const uint8_t *scales, *on_scales;
        const float *scale_2, *on_scale_2;
        int64_t n_scales, n_scale_2;
        float unit;
    } both[] = {{host->gate_up_scales, on->gate_up_scales, host->gate_up_scale_2, on->gate_up_scale_2,
                 E * 2 * M * H / 16, 2 * E, 0.1f / 171.0f},
                {host->down_scales, on->down_scales, host->down_scale_2, on->down_scale_2, E * H * M / 16, E,
                 0.03f / sqrtf((float)M)}};
    for (int i = 0; i < 2; i++) {
        uint8_t *scales = (uint8_t *)(uintptr_t)both[i].scales;
        float *scale_2 = (float *)(uintptr_t)both[i].scale_2;
        for (int64_t n = 0; n < both[i].n_scales; n++)
            scales[n] = (scales[n] & 15) | 0x30; /* 0.5 to 1.875 */
        for (int64_t n = 0; n < both[i].n_scale_2; n++)
            scale_2[n] = both[i].unit * (0.75f + (float)random_below(256) / 1024.0f);
        run(CUDA->upload(device.cuda, (void *)(uintptr_t)both[i].on_scales, scales, (size_t)both[i].n_scales));
        run(CUDA->upload(device.cuda, (void *)(uintptr_t)both[i].on_scale_2, scale_2,
                         (size_t)both[i].n_scale_2 * sizeof(float)));
    }
    void *none = host_bytes((size_t)(H * M) * 2);
    run(CUDA->upload(device.cuda, (void *)(uintptr_t)block->on.shared_down.data, none, (size_t)(H * M) * 2));
    memory_free(none);
}

/* Every expert on 16 inputs. Activations against FP64; the output against FP64 of the device's own activations, and
 * against FP64 throughout. */
static void errors_case(int64_t M) {
    enum { E = 512, K = 10, H = 2560 };
    block_t block;
    make_block(E, K, H, M, true, &block);
    scale_weights(&block);
    const expert_weights_t *weights = &block.host.expert_weights;
    uint16_t *inputs = host_bytes((size_t)H * INPUTS * 2), *o = host_bytes((size_t)H * INPUTS * 2);
    uint16_t *act = host_bytes((size_t)(K * M) * INPUTS * 2);
    double *u = host_bytes((size_t)H * INPUTS * sizeof(double)), *a = host_bytes((size_t)M * INPUTS * sizeof(double));
    double *own_a = host_bytes((size_t)M * INPUTS * sizeof(double));
    double *whole = host_bytes((size_t)H * INPUTS * sizeof(double)),
           *stage = host_bytes((size_t)H * INPUTS * sizeof(double));
    for (int i = 0; i < INPUTS; i++) {
        float *values = random_floats(H, 1.0f);
        for (int64_t h = 0; h < H; h++) {
            inputs[i * H + h] = f16_from_float(values[h]);
            u[h * INPUTS + i] = (double)values[h];
        }
        memory_free(values);
    }
    float logits[E + 1];
    double chosen[K], sum = 0;
    for (int k = 0; k < K; k++)
        sum += chosen[k] = exp((double)(-0.1f * (float)k));
    extremes_t of_act = {0}, of_stage = {0}, of_output = {0};
    for (int64_t first = 0; first < E; first += K) {
        for (int64_t e = 0; e <= E; e++)
            logits[e] = -10.0f;
        for (int64_t k = 0; k < K; k++)
            logits[(first + k) % E] = -0.1f * (float)k;
        for (int i = 0; i < INPUTS; i++) {
            run(CUDA->upload(device.cuda, (void *)(uintptr_t)block.on.u, inputs + i * H, (size_t)H * 2));
            run(CUDA->moe_in(device.cuda, &block.on));
            run(CUDA->upload(device.cuda, block.on.logits, logits, sizeof logits));
            run(CUDA->moe_gate_up(device.cuda, &block.on));
            run(CUDA->moe_down(device.cuda, &block.on));
            run(CUDA->download(device.cuda, act + i * K * M, block.on.workspace, (size_t)(K * M) * 2));
            run(CUDA->download(device.cuda, o + i * H, block.on.o, (size_t)H * 2));
        }
        for (int64_t n = 0; n < H * INPUTS; n++)
            whole[n] = stage[n] = 0;
        for (int64_t k = 0; k < K; k++) {
            int64_t expert = (first + k) % E;
            activations_of(weights, expert, H, M, u, a);
            for (int64_t n = 0; n < M * INPUTS; n++) {
                int64_t m = n / INPUTS, i = n % INPUTS, place = m % 8 < 4 ? 2 * (m % 8) : 2 * (m % 8) - 7;
                uint16_t got = act[(i * K + k) * M + m / 8 * 8 + place]; /* as moe_m1.cu keeps them */
                take(&of_act, got, a[n]);
                own_a[n] = (double)f16_to_float(got);
            }
            add_down(weights, expert, H, M, chosen[k] / sum, a, whole);
            add_down(weights, expert, H, M, chosen[k] / sum, own_a, stage);
        }
        for (int64_t n = 0; n < H * INPUTS; n++) {
            uint16_t got = o[n % INPUTS * H + n / INPUTS];
            take(&of_stage, got, stage[n]);
            take(&of_output, got, whole[n]);
        }
    }
    const struct {
        const char *what;
        extremes_t of;
    } rows[] = {{"activation", of_act}, {"output of its activations", of_stage}, {"weighted output", of_output}};
    for (int i = 0; i < 3; i++)
        printf("    nvfp4_m1, intermediate %lld, %d experts, %d inputs: %s: at most %.3g, error at most %.3g, beyond "
               "FP16 %.3g\n",
               (long long)M, E, INPUTS, rows[i].what, rows[i].of.value, rows[i].of.error, rows[i].of.beyond_rounding);
    assert_true(of_act.value < 0.125 && of_output.value < 1.0 / 1024);
    assert_true(of_act.error <= 3.1e-5 && of_stage.error <= 3.1e-5 && of_output.error <= 4.8e-7);
    void *const memory[] = {inputs, o, act, u, a, own_a, whole, stage};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        memory_free(memory[i]);
    free_block(&block);
}

static void test_errors(void **state) {
    (void)state;
    errors_case(640);
    errors_case(160);
}

/* The same bits whenever it runs. */
static void test_repeated(void **state) {
    (void)state;
    block_t block;
    make_block(512, 10, 2560, 160, true, &block);
    enum { BYTES = 2560 * 2 };
    void *first = host_bytes(BYTES), *again = host_bytes(BYTES);
    run_joined(&block);
    run(CUDA->download(device.cuda, first, block.on.o, BYTES));
    for (int i = 0; i < 20; i++) {
        run_joined(&block);
        run(CUDA->download(device.cuda, again, block.on.o, BYTES));
        assert_memory_equal(again, first, BYTES);
    }
    free_block(&block);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block),   cmocka_unit_test(test_choice),   cmocka_unit_test(test_errors),
        cmocka_unit_test(test_refusal), cmocka_unit_test(test_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
