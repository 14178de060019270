/* Orders of summation: norms as in common/dot.h; a block's mean from its first token. Nothing depends on the chunk. */

#include <string.h>

#include "common/norm.h"
#include "common/parallel.h"
#include "common/rope.h"
#include "qsa/qsa.h"

/* Queries, gates, keys, values and index queries of one token. */
static void prepare_token(const qsa_prepare_args_t *args, int64_t token) {
    const qsa_shape_t *shape = &args->shape;
    int64_t dim = shape->head_dim, index_dim = shape->index_dim, position = *args->start_pos + token;
    size_t head_bytes = (size_t)dim * sizeof(float);
    float eps = args->rms_norm_eps;
    const float *in = args->projected + token * args->projected_stride;

    float *q = args->q + token * shape->n_heads * dim;
    float *gate = args->gate + token * shape->n_heads * dim;
    for (int64_t head = 0; head < shape->n_heads; head++, in += 2 * dim) {
        rmsnorm_one_plus(in, args->q_norm, dim, eps, q + head * dim);
        memcpy(gate + head * dim, in + dim, head_bytes);
    }
    rope_rotate(q, shape->n_heads, dim, shape->rotary_dim, args->rope_theta, position);

    int64_t kv_stride = args->cache.capacity * dim;
    float *k = args->cache.k + position * dim;
    for (int64_t head = 0; head < shape->n_kv_heads; head++, in += dim)
        rmsnorm_one_plus(in, args->k_norm, dim, eps, k + head * kv_stride);
    rope_rotate(k, shape->n_kv_heads, kv_stride, shape->rotary_dim, args->rope_theta, position);
    for (int64_t head = 0; head < shape->n_kv_heads; head++, in += dim)
        memcpy(args->cache.v + position * dim + head * kv_stride, in, head_bytes);

    float *index_q = args->index_q + token * shape->index_n_heads * index_dim;
    for (int64_t head = 0; head < shape->index_n_heads; head++, in += index_dim)
        rmsnorm_one_plus(in, args->index_q_norm, index_dim, eps, index_q + head * index_dim);
    rope_rotate(index_q, shape->index_n_heads, index_dim, shape->rotary_dim, args->rope_theta, position);
}

/* The key of the block that raw_keys now hold in full. */
static void finish_block(const qsa_prepare_args_t *args, int64_t block) {
    int64_t dim = args->shape.index_dim, ratio = args->shape.ratio;
    float *key = args->cache.index_keys + block * dim;
    memcpy(key, args->cache.raw_keys, (size_t)dim * sizeof *key);
    for (int64_t i = 1; i < ratio; i++) {
        for (int64_t d = 0; d < dim; d++)
            key[d] += args->cache.raw_keys[i * dim + d];
    }
    for (int64_t d = 0; d < dim; d++)
        key[d] /= (float)ratio;
    rmsnorm_one_plus(key, args->index_k_norm, dim, args->rms_norm_eps, key);
    rope_rotate(key, 1, dim, args->shape.rotary_dim, args->rope_theta, block * ratio);
}

status_t qsa_prepare_cpu(const qsa_prepare_args_t *args) {
    const qsa_shape_t *shape = &args->shape;
    int64_t width = (2 * shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim;
    int64_t index_key_at = width + shape->index_n_heads * shape->index_dim;
#pragma omp parallel for if (args->n_tokens * width >= PARALLEL_MIN_WORK)
    for (int64_t token = 0; token < args->n_tokens; token++)
        prepare_token(args, token);

    for (int64_t token = 0; token < args->n_tokens; token++) {
        int64_t position = *args->start_pos + token, slot = position % shape->ratio;
        memcpy(args->cache.raw_keys + slot * shape->index_dim,
               args->projected + token * args->projected_stride + index_key_at,
               (size_t)shape->index_dim * sizeof(float));
        if (slot == shape->ratio - 1) finish_block(args, position / shape->ratio);
    }
    return STATUS_OK;
}
