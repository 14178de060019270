#include <math.h>

#include "device/device.cuh"
#include "qsa/qsa.h"

namespace {

enum { THREADS = 128 };

/* Cosine and sine of position * theta^(-2 pair / rotary_dim). The angle is reduced in FP64: in FP32 it would be off by
 * 0.01 at position 262143, and sincosf of large angles needs a stack. */
__device__ __forceinline__ float2 rotation(int64_t position, int64_t pair, int64_t rotary_dim, double log2_theta) {
    double turns = (double)position * exp2(-2.0 * (double)pair / (double)rotary_dim * log2_theta) * 0.15915494309189535;
    float2 result;
    sincospif(2.0f * (float)(turns - rint(turns)), &result.y, &result.x);
    return result;
}

/* By one warp: out = rope(n(x, norm)); the first rotary_dim values turn in pairs (i, i + rotary_dim / 2). load(i) gives
 * x. */
template <typename load_t>
__device__ __forceinline__ void norm_rope(load_t load, int64_t dim, const float *norm, float eps, int64_t position,
                                          int64_t rotary_dim, double log2_theta, __half *out) {
    int lane = threadIdx.x % WARP;
    int64_t half = rotary_dim / 2;
    float sum = 0.0f;
    for (int64_t i = lane; i < dim; i += WARP)
        sum = fmaf(load(i), load(i), sum);
    float scale = rsqrtf(lanes_sum<WARP>(sum) / (float)dim + eps);
    for (int64_t i = lane; i < half; i += WARP) {
        float a = load(i) * scale * (1.0f + norm[i]), b = load(i + half) * scale * (1.0f + norm[i + half]);
        float2 turn = rotation(position, i, rotary_dim, log2_theta);
        out[i] = __float2half_rn(a * turn.x - b * turn.y);
        out[i + half] = __float2half_rn(b * turn.x + a * turn.y);
    }
    for (int64_t i = rotary_dim + lane; i < dim; i += WARP)
        out[i] = __float2half_rn(load(i) * scale * (1.0f + norm[i]));
}

struct load_f16 {
    const __half *x;
    __device__ float operator()(int64_t i) const { return __half2float(x[i]); }
};

/* Mean of a block's raw keys, those before start_pos from the cache, the others as projected. */
struct load_block_mean {
    const __half *raw_keys, *projected;
    int64_t first_position, start_pos, ratio, dim, stride;
    __device__ float operator()(int64_t i) const {
        float sum = 0.0f;
        for (int64_t j = 0; j < ratio; j++) {
            int64_t token = first_position + j - start_pos;
            sum += __half2float(token < 0 ? raw_keys[j * dim + i] : projected[token * stride + i]);
        }
        return __half2float(__float2half_rn(sum / (float)ratio)); /* the reference keeps the mean as an activation */
    }
};

/* One warp a unit. Each token has a unit for each query head (query and gate), key, value and index query; behind all
 * of them stands a unit for each block of `ratio` positions that the tokens touch. Any size. */
__global__ void __launch_bounds__(THREADS) qsa_prepare_f16_kernel(qsa_prepare_args_t args, double log2_theta) {
    const qsa_shape_t &shape = args.shape;
    int lane = threadIdx.x % WARP;
    int64_t unit = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP, dim = shape.head_dim;
    int64_t units_per_token = shape.n_heads + 2 * shape.n_kv_heads + shape.index_n_heads;
    int64_t start_pos = *args.start_pos, n_token_units = args.n_tokens * units_per_token;
    int64_t index_offset = (2 * shape.n_heads + 2 * shape.n_kv_heads) * dim;

    if (unit < n_token_units) {
        int64_t token = unit / units_per_token, position = start_pos + token;
        const __half *row = args.projected + token * args.projected_stride;
        unit %= units_per_token;
        if (unit < shape.n_heads) {
            int64_t at = (token * shape.n_heads + unit) * dim;
            row += unit * 2 * dim;
            norm_rope(load_f16{row}, dim, args.q_norm, args.rms_norm_eps, position, shape.rotary_dim, log2_theta,
                      args.q + at);
            for (int64_t i = lane; i < dim; i += WARP)
                args.gate[at + i] = row[dim + i];
            return;
        }
        unit -= shape.n_heads;
        row += 2 * shape.n_heads * dim;
        if (unit < shape.n_kv_heads) {
            __half *k = args.cache.k + (unit * args.cache.capacity + position) * dim;
            norm_rope(load_f16{row + unit * dim}, dim, args.k_norm, args.rms_norm_eps, position, shape.rotary_dim,
                      log2_theta, k);
            return;
        }
        unit -= shape.n_kv_heads;
        row += shape.n_kv_heads * dim;
        if (unit < shape.n_kv_heads) {
            __half *v = args.cache.v + (unit * args.cache.capacity + position) * dim;
            for (int64_t i = lane; i < dim; i += WARP)
                v[i] = row[unit * dim + i];
            return;
        }
        unit -= shape.n_kv_heads;
        row += shape.n_kv_heads * dim + unit * shape.index_dim;
        __half *index_q = args.index_q + (token * shape.index_n_heads + unit) * shape.index_dim;
        norm_rope(load_f16{row}, shape.index_dim, args.index_q_norm, args.rms_norm_eps, position,
                  min(shape.rotary_dim, shape.index_dim), log2_theta, index_q);
        return;
    }

    int64_t ratio = shape.ratio, end_pos = start_pos + args.n_tokens, first_block = start_pos / ratio;
    int64_t block = first_block + unit - n_token_units, n_complete = end_pos / ratio;
    const __half *raw = args.projected + index_offset + shape.index_n_heads * shape.index_dim;
    if (block < n_complete) {
        load_block_mean load = {args.cache.raw_keys,  raw, block * ratio, start_pos, ratio, shape.index_dim,
                                args.projected_stride};
        norm_rope(load, shape.index_dim, args.index_k_norm, args.rms_norm_eps, block * ratio,
                  min(shape.rotary_dim, shape.index_dim), log2_theta, args.cache.index_keys + block * shape.index_dim);
    }
    /* Only the first block may need raw keys from the cache, so the warp that has read them replaces them. */
    if (block != first_block) return;
    __syncwarp();
    for (int64_t position = max(n_complete * ratio, start_pos); position < end_pos; position++) {
        for (int64_t i = lane; i < shape.index_dim; i += WARP)
            args.cache.raw_keys[position % ratio * shape.index_dim + i] =
                raw[(position - start_pos) * args.projected_stride + i];
    }
}

} // namespace

status_t launch_qsa_prepare(const qsa_prepare_args_t *args, const device_queue_t *queue) {
    const qsa_shape_t *shape = &args->shape;
    int64_t n_blocks =
        (args->n_tokens + 2 * shape->ratio - 2) / shape->ratio; /* touched at most, wherever they start */
    int64_t n_units = args->n_tokens * (shape->n_heads + 2 * shape->n_kv_heads + shape->index_n_heads) + n_blocks;
    queue_stamp(queue);
    qsa_prepare_f16_kernel<<<blocks_for(n_units, THREADS / WARP), THREADS, 0, queue->stream>>>(*args,
                                                                                               log2(args->rope_theta));
    return queue_check_launch("qsa_prepare");
}
