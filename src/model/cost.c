#include "model/cost.h"

#include <math.h>
#include <string.h>

#include "device/launches.h"
#include "linear/dense8.h"

/* H200: measured, docs/performance.md. A chain of 97 pairs of GR launches of 6.6 MB, of which the bytes are 1.55 us,
 * took 7.7 to 8.2 us a pair without overlap and 6.1 with it; projections of 16 to 84 MB took their bytes' time. V100:
 * 830 GB/s is what the best published kernels reach. A launch is taken to cost what H200's does at its clock (1.98
 * against 1.53 GHz); a sum takes what others measured on four of them, a fused one as large a part of it as on two
 * H200. */
const cost_device_t cost_devices[] = {
    {.name = "H200",
     .bytes_per_s = 4240e9,
     .launch_us = 2.4,
     .overlap_us = 3.0,
     .sum_us = 2.0,
     .fused_sum_us = 1.4,
     .host_us = 33,
     .source = "measured"},
    {.name = "V100",
     .bytes_per_s = 830e9,
     .launch_us = 3.1,
     .sum_us = 2.8,
     .fused_sum_us = 2.0,
     .host_us = 33,
     .source = "modelled: launch and host from the H200, launch by the clocks' ratio"},
};
const int cost_n_devices = sizeof cost_devices / sizeof cost_devices[0];

const cost_device_t *cost_find_device(const char *text) {
    for (int i = 0; i < cost_n_devices; i++)
        if (strcasestr(text, cost_devices[i].name)) return &cost_devices[i];
    return NULL;
}

static double matrix_bytes(dtype_t dtype, int64_t rows, int64_t columns) {
    if (dense8_is_format(dtype)) return (double)dense8_bytes(dtype, rows, columns);
    return (double)(rows * columns) * (double)dtype_bytes(dtype);
}

static int64_t count_layers(const model_config_t *config, layer_type_t type) {
    int64_t n = 0;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++)
        n += config->layer_types[layer] == type;
    return n;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void add(const cost_args_t *args, cost_t *cost, cost_op_t op) {
    if (op.n_calls == 0) return;
    op.n_launches = op_n_launches(op.name, args->routes_taken);
    cost->ops[cost->n_ops++] = op;
}

/* The type of the matrices that are never kept in 8 bits. */
static dtype_t plain_of(const cost_args_t *args) { return dense8_is_format(args->dense) ? DTYPE_F16 : args->dense; }

static void add_ple(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    int64_t n = config->n_ple_layers, S = config->hc_count, H = config->hidden_size, e = config->ple_embed_dim;
    double conv = (double)(S * H * config->ple_conv_kernel_size) * sizeof(float);
    double state = (double)(S * H * (config->ple_conv_kernel_size - 1) * config->ngram_size) * sizeof(float);
    add(args, cost, (cost_op_t){.name = "ngram_rows", .group = OP_GROUP_PLE, .n_calls = n});
    add(args, cost,
        (cost_op_t){.name = "ple_gather",
                    .group = OP_GROUP_PLE,
                    .n_calls = n,
                    .bytes = (double)e * (double)dtype_bytes(args->ple_dtype) / args->local.tp_size});
    if (args->local.tp_size > 1)
        add(args, cost, (cost_op_t){.name = "ple_all_reduce", .group = OP_GROUP_COMM, .n_calls = n});
    add(args, cost,
        (cost_op_t){.name = "ple_kv_proj",
                    .group = OP_GROUP_PLE,
                    .n_calls = n,
                    .bytes = matrix_bytes(plain_of(args), (S + 1) * H, e)});
    add(args, cost, (cost_op_t){.name = "ple_mix", .group = OP_GROUP_PLE, .n_calls = n, .bytes = conv + state});
}

static void add_gr(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    int64_t width = args->local.stream_width, layers = config->num_hidden_layers;
    double mix =
        matrix_bytes(args->dense, config->hc_lowrank, width) + matrix_bytes(args->dense, width, config->hc_lowrank);
    double inject = matrix_bytes(plain_of(args), config->hc_count, width);
    add(args, cost, (cost_op_t){.name = "gr_mix", .group = OP_GROUP_GR, .n_calls = 2 * layers, .bytes = mix + inject});
    add(args, cost, (cost_op_t){.name = "gr_mix_final", .group = OP_GROUP_GR, .n_calls = 1, .bytes = mix});
    /* A block's output is injected by the next gr_mix, in the general form by a launch of its own; what reads the
     * streams in between needs it before. */
    int64_t n_injected = args->routes_taken[ROUTE_GR] ? 0 : 2 * layers;
    for (int64_t i = 0; i < config->n_ple_layers && args->routes_taken[ROUTE_GR]; i++)
        n_injected += config->ple_layers[i] > 0;
    add(args, cost, (cost_op_t){.name = "gr_inject", .group = OP_GROUP_GR, .n_calls = n_injected});
}

static void add_gdn(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    const local_shape_t *local = &args->local;
    int64_t n = count_layers(config, LAYER_GDN), H = config->hidden_size;
    double state = 2.0 * (double)(local->value_width * config->linear_key_head_dim) * sizeof(float);
    add(args, cost,
        (cost_op_t){.name = "gdn_in_proj",
                    .group = OP_GROUP_PROJECTIONS,
                    .n_calls = n,
                    .bytes = matrix_bytes(args->dense, local->gdn_projected, H)});
    add(args, cost, (cost_op_t){.name = "gdn_core", .group = OP_GROUP_GDN_CORE, .n_calls = n, .bytes = state});
    add(args, cost,
        (cost_op_t){.name = "gdn_out_proj",
                    .group = OP_GROUP_PROJECTIONS,
                    .n_calls = n,
                    .bytes = matrix_bytes(args->dense, H, local->value_width)});
}

static void add_qsa(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    const local_shape_t *local = &args->local;
    int64_t n = count_layers(config, LAYER_QSA), H = config->hidden_size;
    if (n == 0) return;
    /* Keys of all whole blocks, then keys and values of those that are taken and of the tail. */
    int64_t blocks = args->context / config->indexer_compress_ratio;
    int64_t attended = smaller(args->context, config->indexer_budget + args->context % config->indexer_compress_ratio);
    int64_t values = blocks * config->indexer_head_dim + attended * 2 * local->n_kv_heads * config->head_dim;
    add(args, cost,
        (cost_op_t){.name = "qsa_in_proj",
                    .group = OP_GROUP_PROJECTIONS,
                    .n_calls = n,
                    .bytes = matrix_bytes(args->dense, local->qsa_projected, H)});
    add(args, cost,
        (cost_op_t){.name = "qsa_core",
                    .group = OP_GROUP_QSA,
                    .n_calls = n,
                    .bytes = (double)values * (double)args->activation_bytes});
    add(args, cost,
        (cost_op_t){.name = "qsa_o_proj",
                    .group = OP_GROUP_PROJECTIONS,
                    .n_calls = n,
                    .bytes = matrix_bytes(args->dense, H, local->attention_width)});
}

/* The whole block in three ops (moe/moe.h); what its inner routes leave out has its own launches. */
static void add_joined_moe(const cost_args_t *args, double experts_bytes, cost_t *cost) {
    const model_config_t *config = args->config;
    int64_t n = config->num_hidden_layers, H = config->hidden_size;
    dtype_t plain = plain_of(args);
    double router_bytes = matrix_bytes(plain, config->num_experts + 1, H);
    double shared_bytes = matrix_bytes(plain, 3 * args->local.shared_intermediate, H), joined = 0;
    if (args->routes_taken[ROUTE_SHARED_GATE]) joined = shared_bytes / 3;
    add(args, cost,
        (cost_op_t){.name = "moe_in", .group = OP_GROUP_ROUTER, .n_calls = n, .bytes = router_bytes + 2 * joined});
    if (!args->routes_taken[ROUTE_ROUTER])
        add(args, cost, (cost_op_t){.name = "router", .group = OP_GROUP_EXPERTS, .n_calls = n});
    add(args, cost,
        (cost_op_t){
            .name = "moe_gate_up", .group = OP_GROUP_EXPERTS, .n_calls = n, .bytes = experts_bytes * 2 / 3 + joined});
    add(args, cost,
        (cost_op_t){.name = "moe_down", .group = OP_GROUP_EXPERTS, .n_calls = n, .bytes = experts_bytes / 3});
    if (!args->routes_taken[ROUTE_SHARED_GATE])
        add(args, cost,
            (cost_op_t){.name = "shared_expert", .group = OP_GROUP_EXPERTS, .n_calls = n, .bytes = shared_bytes});
}

static void add_moe(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    const local_shape_t *local = &args->local;
    int64_t n = config->num_hidden_layers, H = config->hidden_size;
    /* NVFP4: half a byte and a sixteenth of an E4M3 scale. */
    double weight = args->expert_format == EXPERTS_NVFP4 ? 0.5 + 1.0 / 16 : 2.0;
    double experts_bytes = (double)(config->num_experts_per_tok * 3 * local->moe_intermediate * H) * weight;
    dtype_t plain = plain_of(args);
    if (args->routes_taken[ROUTE_NVFP4_M1] && args->expert_format == EXPERTS_NVFP4) {
        add_joined_moe(args, experts_bytes, cost);
        return;
    }
    add(args, cost,
        (cost_op_t){.name = "router_proj",
                    .group = OP_GROUP_ROUTER,
                    .n_calls = n,
                    .bytes = matrix_bytes(plain, config->num_experts + 1, H)});
    add(args, cost, (cost_op_t){.name = "router", .group = OP_GROUP_ROUTER, .n_calls = n});
    add(args, cost, (cost_op_t){.name = "experts", .group = OP_GROUP_EXPERTS, .n_calls = n, .bytes = experts_bytes});
    add(args, cost,
        (cost_op_t){.name = "shared_expert",
                    .group = OP_GROUP_SHARED_EXPERT,
                    .n_calls = n,
                    .bytes = matrix_bytes(plain, 3 * local->shared_intermediate, H)});
}

/* Sums over ranks of what mixers and MoE blocks put out. One in front of a PLE layer is never deferred. */
static void add_sums(const cost_args_t *args, cost_t *cost) {
    int64_t layers = args->config->num_hidden_layers, n_sums[2] = {layers, layers};
    if (args->routes_taken[ROUTE_FUSED_ALLREDUCE]) {
        n_sums[0] = n_sums[1] = 0;
        for (int64_t i = 0; i < args->config->n_ple_layers; i++)
            n_sums[1] += args->config->ple_layers[i] > 0;
        cost->n_fused_sums = 2 * layers - n_sums[1];
    }
    for (int i = 0; i < 2; i++)
        add(args, cost,
            (cost_op_t){
                .name = i ? "moe_all_reduce" : "attention_all_reduce", .group = OP_GROUP_COMM, .n_calls = n_sums[i]});
}

void cost_build(const cost_args_t *args, cost_t *cost) {
    const model_config_t *config = args->config;
    *cost = (cost_t){.runs_ahead = args->runs_ahead};
    add(args, cost,
        (cost_op_t){.name = "embed",
                    .group = OP_GROUP_OTHER,
                    .n_calls = 1,
                    .bytes = matrix_bytes(plain_of(args), 1, config->hidden_size)});
    add_ple(args, cost);
    add_gr(args, cost);
    add_gdn(args, cost);
    add_qsa(args, cost);
    add_moe(args, cost);
    if (args->local.tp_size > 1) add_sums(args, cost);
    add(args, cost,
        (cost_op_t){.name = "lm_head",
                    .group = OP_GROUP_LM_HEAD,
                    .n_calls = 1,
                    .bytes = matrix_bytes(plain_of(args), args->local.vocab, config->hidden_size)});
    if (args->runs_ahead) add(args, cost, (cost_op_t){.name = "advance", .group = OP_GROUP_SAMPLING, .n_calls = 1});
}

double cost_group_bytes(const cost_t *cost, op_group_t group) {
    double sum = 0;
    for (int i = 0; i < cost->n_ops; i++)
        if (cost->ops[i].group == group) sum += (double)cost->ops[i].n_calls * cost->ops[i].bytes;
    return sum;
}

double cost_bytes(const cost_t *cost) {
    double sum = 0;
    for (int group = 0; group < OP_N_GROUPS; group++)
        sum += cost_group_bytes(cost, (op_group_t)group);
    return sum;
}

int64_t cost_group_launches(const cost_t *cost, op_group_t group) {
    int64_t sum = 0;
    for (int i = 0; i < cost->n_ops; i++)
        if (cost->ops[i].group == group) sum += cost->ops[i].n_calls * cost->ops[i].n_launches;
    return sum;
}

int64_t cost_launches(const cost_t *cost) {
    int64_t sum = 0;
    for (int group = 0; group < OP_N_GROUPS; group++)
        sum += cost_group_launches(cost, (op_group_t)group);
    return sum;
}

double cost_group_ms(const cost_t *cost, const cost_device_t *device, bool overlaps, op_group_t group) {
    if (group == OP_GROUP_HOST_GAP) return cost->runs_ahead ? 0 : device->host_us / 1e3;
    double us = group == OP_GROUP_GR ? (double)cost->n_fused_sums * device->fused_sum_us : 0;
    for (int i = 0; i < cost->n_ops; i++) {
        const cost_op_t *op = &cost->ops[i];
        if (op->group != group || op->n_launches == 0) continue;
        double bytes_us = op->bytes / op->n_launches / device->bytes_per_s * 1e6, launch_us;
        if (group == OP_GROUP_COMM)
            launch_us = device->sum_us;
        else if (overlaps && device->overlap_us > 0)
            launch_us = fmax(bytes_us, device->overlap_us);
        else
            launch_us = bytes_us + device->launch_us;
        us += (double)(op->n_calls * op->n_launches) * launch_us;
    }
    return us / 1e3;
}
