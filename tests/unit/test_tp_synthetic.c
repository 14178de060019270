/* A synthetic model of middle size computes: it takes the memory that was planned, activations stay small over a long
 * prompt and decode, and the routing reaches every expert of every layer about as often. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "model/memory_plan.h"
#include "model/tensor_source.h"

/* What ranks of 1 to 8 can share, with sparse attention from token 64 on. */
#define CONFIG                                                                                                         \
    "{\"model_type\": \"qwen4_exp_text\", \"vocab_size\": 1024, \"hidden_size\": 128, \"num_hidden_layers\": 8,"       \
    " \"full_attention_interval\": 4, \"hidden_act\": \"silu\", \"num_attention_heads\": 8,"                           \
    " \"num_key_value_heads\": 2, \"head_dim\": 32, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06,"       \
    " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25},"   \
    " \"linear_num_key_heads\": 8, \"linear_num_value_heads\": 24, \"linear_key_head_dim\": 16,"                       \
    " \"linear_value_head_dim\": 16, \"linear_conv_kernel_dim\": 4, \"output_gate_type\": \"sigmoid\","                \
    " \"num_experts\": 64, \"num_experts_per_tok\": 6, \"moe_intermediate_size\": 128,"                                \
    " \"shared_expert_intermediate_size\": 128, \"hc_count\": 4, \"hc_lowrank\": 32, \"ple_layer_ids\": [2],"          \
    " \"ple_embed_dim\": 128, \"ple_conv_kernel_size\": 4, \"ngram_size\": 3, \"heads_per_ngram\": 4,"                 \
    " \"ngram_vocab_size_base\": 1000, \"make_ngram_vocab_size_divisible_by\": 128, \"split_ngram_parts\": 8,"         \
    " \"indexer_n_heads\": 4, \"indexer_kv_heads\": 1, \"indexer_head_dim\": 32, \"indexer_budget\": 64,"              \
    " \"indexer_compress_ratio\": 4, \"eos_token_id\": 1000}"

enum { N_LAYERS = 8, N_EXPERTS = 64, MAX_TOKENS = 2048, N_DECODE = 16 };

static comm_t *comm;
static backend_t *backend;
static backend_ops_t counting_ops;
static status_t (*router)(backend_t *backend, const router_args_t *args);
static int64_t n_routings;
static int64_t usage[N_LAYERS][N_EXPERTS];
static float largest[N_LAYERS]; /* NaN if one was */

/* The router, and a count of what it chose. Every layer calls it once a step. */
static status_t counting_router(backend_t *of, const router_args_t *args) {
    status_t status = router(of, args);
    int64_t layer = n_routings++ % N_LAYERS;
    for (int64_t i = 0; i < args->n_tokens * args->top_k; i++)
        usage[layer][args->experts[i]]++;
    return status;
}

static void watch_streams(void *context, int64_t layer, const float *h, int64_t n_tokens) {
    (void)context;
    for (int64_t i = 0; i < n_tokens * 4 * 128; i++) {
        if (!(fabsf(h[i]) <= largest[layer])) largest[layer] = fabsf(h[i]);
    }
}

/* Entropy of a layer's usage, 1 where all experts are used alike. */
static double evenness(const int64_t counts[N_EXPERTS]) {
    double total = 0.0, entropy = 0.0;
    for (int e = 0; e < N_EXPERTS; e++)
        total += (double)counts[e];
    for (int e = 0; e < N_EXPERTS; e++) {
        double share = (double)counts[e] / total;
        if (share > 0.0) entropy -= share * log(share);
    }
    return entropy / log(N_EXPERTS);
}

/* The config in a file that all ranks read; `model` is synthetic:PATH. */
static void write_config(char model[64]) {
    memset(model, 0, 64);
    strcpy(model, "synthetic:/tmp/galvani-config-XXXXXX");
    if (comm_tp_rank(comm) == 0) {
        int fd = mkstemp(model + strlen("synthetic:"));
        if (fd >= 0 && write(fd, CONFIG, strlen(CONFIG)) < 0) model[0] = '\0';
        close(fd);
    }
    comm_broadcast(comm, model, 64);
}

/* What was planned is what the engine then holds; the sampler's few buffers come on top of the workspace. */
static void check_plan(const engine_args_t *args) {
    tensor_source_t *source;
    const tensor_source_args_t source_args = {
        .model = args->model, .tp_rank = comm_tp_rank(comm), .tp_size = comm_tp_size(comm)};
    if (tensor_source_open(&source_args, &source) != STATUS_OK) fail_msg("%s", status_message());
    const shard_info_t *info = tensor_source_info(source);
    memory_plan_args_t plan_args = {.config = &info->config,
                                    .local = local_shape(&info->config, source_args.tp_rank, source_args.tp_size),
                                    .ops = backend->ops,
                                    .max_context = args->max_context,
                                    .prefill_chunk = args->prefill_chunk};
    memory_plan_t plan;
    plan_args.tensors = tensor_source_tensors(source, &plan_args.n_tensors);
    assert_int_equal(memory_plan_make(&plan_args, &plan), STATUS_OK);
    tensor_source_close(source);
    static const memory_label_t exact[] = {MEMORY_WEIGHTS, MEMORY_PLE_TABLE, MEMORY_KV_CACHE, MEMORY_STATE,
                                           MEMORY_COMM};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        if (memory_bytes(exact[i]) != plan.needed[exact[i]])
            fail_msg("%s: %zu bytes planned, %zu held", memory_label_name(exact[i]), plan.needed[exact[i]],
                     memory_bytes(exact[i]));
    }
    size_t planned = plan.needed[MEMORY_WORKSPACE];
    assert_in_range(memory_bytes(MEMORY_WORKSPACE), planned, planned + 32 * 1024 + 1024);
}

static void activations_stay_small_and_routing_is_spread(void **state) {
    (void)state;
    char model[64];
    write_config(model);
    /* Several ranks on a small machine take turns at every sum: a shorter prompt does. */
    int64_t n_prompt = comm_tp_size(comm) == 1 ? MAX_TOKENS : 384;
    engine_t *engine = NULL;
    const engine_args_t args = {
        .model = model, .comm = comm, .backend = backend, .max_context = n_prompt + N_DECODE, .prefill_chunk = 256};
    status_t status = engine_create(&args, &engine);
    if (status != STATUS_OK) fail_msg("%s", status_message());
    check_plan(&args);
    comm_barrier(comm);
    if (comm_tp_rank(comm) == 0) unlink(model + strlen("synthetic:"));
    engine_observe_layers(engine, watch_streams, NULL);

    static int32_t prompt[MAX_TOKENS];
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(((uint32_t)i * 2654435761u) >> 8) % 1024;
    const sampling_t greedy = {.top_p = 1.0};
    sample_t sample;
    status = engine_forward(engine, prompt, (size_t)n_prompt);
    for (int i = 0; i < N_DECODE && status == STATUS_OK; i++) {
        status = engine_sample(engine, &greedy, STATUS_OK, &sample); /* fails on NaN and Inf */
        if (status == STATUS_OK) status = engine_forward(engine, &sample.token, 1);
    }
    if (status != STATUS_OK) fail_msg("%s", status_message());
    for (int layer = 0; layer < N_LAYERS; layer++) {
        if (!(largest[layer] > 1.0f && largest[layer] < 64.0f))
            fail_msg("layer %d: the largest residual is %g", layer, (double)largest[layer]);
        for (int e = 0; e < N_EXPERTS; e++) {
            if (usage[layer][e] == 0) fail_msg("layer %d never uses expert %d", layer, e);
        }
        if (evenness(usage[layer]) < 0.9)
            fail_msg("layer %d uses its experts unevenly: %g", layer, evenness(usage[layer]));
    }
    engine_destroy(engine);
}

int main(void) {
    if (comm_init(&comm) != STATUS_OK || backend_create(BACKEND_CPU, comm, &backend) != STATUS_OK) return 1;
    const backend_ops_t *ops = backend->ops;
    counting_ops = *ops;
    router = ops->router;
    counting_ops.router = counting_router;
    backend->ops = &counting_ops;
    const struct CMUnitTest tests[] = {cmocka_unit_test(activations_stay_small_and_routing_is_spread)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed;
}
