#include "device/route.h"
#include "qsa/qsa_m1.h"

static bool is_aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

const char *qsa_m1_refusal(const qsa_core_args_t *args) {
    const qsa_shape_t *shape = &args->prepare.shape;
    const qsa_cache_t *cache = &args->prepare.cache;
    int64_t heads = shape->n_heads / shape->n_kv_heads;
    bool is_full = shape->head_dim == 256 && shape->index_dim == 128 && shape->rotary_dim == 64 &&
                   (heads == 12 || heads == 6 || heads == 3);
    bool is_nano =
        shape->head_dim == 32 && shape->index_dim == 32 && shape->rotary_dim == 16 && (heads == 4 || heads == 2);
    if (!is_full && !is_nano) return "heads, their widths or rotary_dim are not the full model's or nano's";
    if (shape->index_n_heads != 4 || shape->ratio != 4) return "not 4 index heads and blocks of 4 tokens";
    if (shape->n_select > 512) return "more than 512 blocks are selected";
    if (!is_aligned(args->prepare.projected) || !is_aligned(args->prepare.q) || !is_aligned(cache->k) ||
        !is_aligned(cache->v) || !is_aligned(cache->index_keys) || !is_aligned(cache->raw_keys) ||
        !is_aligned(args->select.workspace) || !is_aligned(args->attend.workspace))
        return "activations, caches or workspaces are not aligned to 16 bytes";
    return NULL;
}

status_t launch_qsa_m1(const qsa_core_args_t *args, const device_queue_t *queue) {
    float *scores = (float *)args->select.workspace;
    TRY(launch_qsa_m1_prepare(&args->prepare, scores, queue));
    TRY(launch_qsa_m1_select(&args->select, scores, queue));
    TRY(launch_qsa_m1_attend(&args->attend, queue));
    return launch_qsa_m1_merge(&args->attend, args->prepare.projected, queue);
}

status_t launch_qsa_core(const qsa_core_args_t *args, const device_queue_t *queue) {
    if (args->prepare.n_tokens == 1 && route_take(queue, ROUTE_QSA, qsa_m1_refusal(args)))
        return launch_qsa_m1(args, queue);
    TRY(launch_qsa_prepare(&args->prepare, queue));
    TRY(launch_qsa_select(&args->select, queue));
    return launch_qsa_attend(&args->attend, queue);
}
