#include "backend/cuda_sizes.h"
#include "push/push.h"

enum {
    F16_BYTES = 2,
    PREFILL_CHUNK = 8192,
    MAX_SCORES = 8 << 20, /* of queries against all blocks, at a time */
    LEAST_SCORED_TOKENS = 64,
    MOST_SCORED_TOKENS = 1024,
    SPLIT_TOKENS = 8, /* queries whose keys are split over the device */
    TOKENS_PER_SPLIT = 32,
    GDN_CHUNK = 64,
    GDN_SEGMENT = 2048,
    ATTEND_ROWS = 128, /* of a tile: tokens times their heads */
    ATTEND_TOKENS = 32
};

static size_t halves(int64_t n) { return (size_t)n * F16_BYTES; }
static size_t floats(int64_t n) { return (size_t)n * sizeof(float); }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* z and a, each before and behind its nonlinearity. */
static size_t gr_mix(const gr_mix_args_t *args) {
    return halves(2 * args->n_tokens * (args->up.rows + args->down.rows));
}

/* Convolved q, k and v; y in FP32. In chunks of 64 tokens of a segment also their products: T k, T v, the weights, q
 * and k. */
static size_t gdn_core(const gdn_core_args_t *args) {
    int64_t values = args->n_value_heads * args->value_dim, keys = args->n_key_heads * args->key_dim;
    int64_t n_segment = smaller(args->n_tokens + GDN_CHUNK - 1, GDN_SEGMENT);
    size_t whole = halves(args->n_tokens * (2 * keys + values)) + floats(args->n_tokens * values);
    size_t chunks = halves(n_segment * (4 * keys + 3 * values + args->n_value_heads * GDN_CHUNK)) +
                    floats(n_segment * (values + 2 * args->n_value_heads));
    return larger(whole, args->n_tokens > SPLIT_TOKENS ? chunks : 0);
}

static size_t qsa_select(const qsa_select_args_t *args) {
    int64_t n_blocks = args->cache.capacity / args->shape.ratio;
    int64_t n_at_once = n_blocks ? smaller(MAX_SCORES / n_blocks, MOST_SCORED_TOKENS) : 0;
    if (n_at_once < LEAST_SCORED_TOKENS) n_at_once = LEAST_SCORED_TOKENS;
    return floats(smaller(args->n_tokens, n_at_once) * n_blocks);
}

static size_t qsa_attend(const qsa_attend_args_t *args) {
    int64_t n_splits = (args->shape.n_select + 1) * args->shape.ratio / TOKENS_PER_SPLIT + 1;
    size_t splits =
        floats(smaller(args->n_tokens, SPLIT_TOKENS) * args->shape.n_heads * n_splits * (args->shape.head_dim + 2));
    int64_t tile_tokens = smaller(ATTEND_ROWS * args->shape.n_kv_heads / args->shape.n_heads, ATTEND_TOKENS);
    if (tile_tokens < 1) tile_tokens = 1;
    int64_t n_entries = smaller(args->cache.capacity / args->shape.ratio, (args->shape.n_select + 1) * tile_tokens);
    int64_t n_tiles = (args->n_tokens + tile_tokens - 1) / tile_tokens;
    return larger(splits,
                  args->n_tokens > SPLIT_TOKENS ? (size_t)(n_tiles * (n_entries + 1)) * 2 * sizeof(int32_t) : 0);
}

/* Of each token's experts gate and up, their product, and what each gives back. */
static size_t experts(const experts_args_t *args) {
    return halves(args->n_tokens * args->top_k * (args->hidden_size + 2 * args->intermediate));
}

static size_t shared_expert(const shared_expert_args_t *args) {
    return halves(args->n_tokens * (args->gate_up.rows + args->down.columns));
}

/* One token's activations, and the shared expert's part in FP32. */
static size_t moe(const moe_args_t *args) {
    return halves((args->top_k + 1) * args->intermediate) + floats(args->hidden_size) + 256;
}

static size_t ple_mix(const ple_mix_args_t *args) {
    return floats(args->n_tokens * args->hc_count * (args->hidden_size + 1));
}

const backend_ops_t cuda_sizes = {
    .name = "cuda",
    .activation_bytes = F16_BYTES,
    .prefill_chunk = PREFILL_CHUNK,
    .is_device = true,
    .runtime_bytes = (size_t)CUDA_RUNTIME_MIB << 20,
    .recorded_layer_bytes = (size_t)CUDA_RECORDED_LAYER_KIB << 10,
    .alloc_granule = (size_t)CUDA_ALLOC_GRANULE_MIB << 20,
    .comm_peer_bytes = PUSH_PEER_BYTES,
    .takes_dense8 = true,
    .gr_mix_workspace_bytes = gr_mix,
    .gdn_core_workspace_bytes = gdn_core,
    .qsa_select_workspace_bytes = qsa_select,
    .qsa_attend_workspace_bytes = qsa_attend,
    .experts_workspace_bytes = experts,
    .shared_expert_workspace_bytes = shared_expert,
    .moe_workspace_bytes = moe,
    .ple_mix_workspace_bytes = ple_mix,
};
