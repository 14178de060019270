/* The joined MoE block of one token (routes nvfp4_m1, router, shared_gate) against the CPU's ops one by one. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>

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
    route(ROUTE_SHARED_GATE)->wanted = false; /* moe_in does not run */

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
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
