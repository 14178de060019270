#include "backend/cuda_sizes.h"
#include "push/push.h"

enum {
    F16_BYTES = 2,
    PREFILL_CHUNK = 2048,
    SCORED_TOKENS = 64, /* queries scored against all blocks at a time */
    SPLIT_TOKENS = 8,   /* queries whose keys are split over the device */
    TOKENS_PER_SPLIT = 32
};

static size_t halves(int64_t n) { return (size_t)n * F16_BYTES; }
static size_t floats(int64_t n) { return (size_t)n * sizeof(float); }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* z and a, each before and behind its nonlinearity. */
static size_t gr_mix(const gr_mix_args_t *args) {
    return halves(2 * args->n_tokens * (args->up.rows + args->down.rows));
}

/* Convolved q, k and v; y in FP32. */
static size_t gdn_core(const gdn_core_args_t *args) {
    int64_t values = args->n_value_heads * args->value_dim;
    return halves(args->n_tokens * (2 * args->n_key_heads * args->key_dim + values)) + floats(args->n_tokens * values);
}

static size_t qsa_select(const qsa_select_args_t *args) {
    return floats(smaller(args->n_tokens, SCORED_TOKENS) * (args->cache.capacity / args->shape.ratio));
}

static size_t qsa_attend(const qsa_attend_args_t *args) {
    int64_t n_splits = (args->shape.n_select + 1) * args->shape.ratio / TOKENS_PER_SPLIT + 1;
    return floats(smaller(args->n_tokens, SPLIT_TOKENS) * args->shape.n_heads * n_splits * (args->shape.head_dim + 2));
}

/* Of each token's experts gate and up, their product, and what each gives back. */
static size_t experts(const experts_args_t *args) {
    return halves(args->n_tokens * args->top_k * (args->hidden_size + 2 * args->intermediate));
}

static size_t shared_expert(const shared_expert_args_t *args) {
    return halves(args->n_tokens * (args->gate_up.rows + args->down.columns));
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
    .comm_peer_bytes = PUSH_PEER_BYTES,
    .takes_dense8 = true,
    .gr_mix_workspace_bytes = gr_mix,
    .gdn_core_workspace_bytes = gdn_core,
    .qsa_select_workspace_bytes = qsa_select,
    .qsa_attend_workspace_bytes = qsa_attend,
    .experts_workspace_bytes = experts,
    .shared_expert_workspace_bytes = shared_expert,
    .ple_mix_workspace_bytes = ple_mix,
};
