/* QSA of one token, third and fourth launch: attention over the selected blocks of tokens and the tail, in splits, and
 * their merge.
 *
 * Attend: grid (splits of 8 blocks of tokens, KV heads), DIM threads; on tensor cores where they multiply 16 x 8 x 16
 * (sm_80), else without. Reads keys and values once for all query heads of the KV head: (n_select * 4 + 3) * DIM * 4
 * bytes a KV head; writes a partial result of HEADS * DIM floats a split. A split without tokens leaves at once.
 *
 * Merge: grid (query heads, DIM / 64 columns). Sixteen groups of threads share the splits; sums have a fixed order. */

#include "qsa/qsa_m1.h"
#include "qsa/qsa_m1_attend_fma.cuh"
#include "qsa/qsa_m1_attend_mma.cuh"

namespace {

enum { MERGE_GROUPS = 16, MERGE_SPLITS = (MAX_SPLITS + MERGE_GROUPS - 1) / MERGE_GROUPS };

template <int DIM, int HEADS>
__global__ void __launch_bounds__(DIM, 1)
    qsa_m1_attend_f16_kernel(stamp_t stamp, qsa_attend_args_t args, partials out) {
    next_start();
    visible seen(*args.start_pos, (int)args.shape.n_select);
    if ((int)blockIdx.x >= seen.n_splits()) return;
    previous_wait(stamp);
#if GALVANI_HAS_MMA
    attend_mma<DIM, HEADS>(args, seen, out);
#else
    attend_fma<DIM, HEADS>(args, seen, out);
#endif
}

template <int DIM>
__global__ void __launch_bounds__((DIM < 64 ? DIM : 64) / 4 * MERGE_GROUPS, 1)
    qsa_m1_merge_f32_kernel(stamp_t stamp, qsa_attend_args_t args, const __half *projected, partials in) {
    constexpr int COLUMNS = DIM < 64 ? DIM : 64, LANES = COLUMNS / 4;
    __shared__ float factors[MERGE_SPLITS * MERGE_GROUPS];
    __shared__ float4 sums[MERGE_GROUPS][LANES];
    next_start();
    int n_splits = visible(*args.start_pos, (int)args.shape.n_select).n_splits();
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t head = blockIdx.x, column = (int64_t)blockIdx.y * COLUMNS + threadIdx.x;

    previous_wait(stamp);
    float4 values[MERGE_SPLITS];
#pragma unroll
    for (int i = 0; i < MERGE_SPLITS; i++) {
        int split = i * MERGE_GROUPS + group;
        const float4 *from = (const float4 *)(in.values + (head * in.n_splits + split) * DIM) + blockIdx.y * LANES;
        values[i] = split < n_splits ? from[lane] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float gate = threadIdx.x < COLUMNS ? __half2float(projected[(2 * head + 1) * DIM + column]) : 0.0f;
    if (threadIdx.x < WARP) {
        constexpr int PER_LANE = (MAX_SPLITS + WARP - 1) / WARP;
        float largest[PER_LANE], parts[PER_LANE], most = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            int split = i * WARP + threadIdx.x;
            bool is_there = split < n_splits;
            largest[i] = is_there ? in.largest[head * in.n_splits + split] : -INFINITY;
            parts[i] = is_there ? in.sum[head * in.n_splits + split] : 0.0f;
            most = fmaxf(most, largest[i]);
        }
#pragma unroll
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            largest[i] = __expf(largest[i] - most);
            sum = fmaf(parts[i], largest[i], sum);
        }
        sum = 1.0f / lanes_sum<WARP>(sum);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            int split = i * WARP + threadIdx.x;
            if (split < MERGE_SPLITS * MERGE_GROUPS) factors[split] = largest[i] * sum;
        }
    }
    __syncthreads();
    float4 part = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < MERGE_SPLITS; i++) {
        float factor = factors[i * MERGE_GROUPS + group];
        part.x = fmaf(values[i].x, factor, part.x), part.y = fmaf(values[i].y, factor, part.y);
        part.z = fmaf(values[i].z, factor, part.z), part.w = fmaf(values[i].w, factor, part.w);
    }
    sums[group][lane] = part;
    __syncthreads();
    if (threadIdx.x >= COLUMNS) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MERGE_GROUPS; i++)
        sum += ((const float *)sums[i])[threadIdx.x];
    args.y[head * DIM + column] = __float2half_rn(sum * sigmoidf(gate));
}

template <int DIM, int HEADS>
void launch_splits(const qsa_attend_args_t *args, partials out, const device_queue_t *queue) {
    dim3 grid((unsigned int)out.n_splits, (unsigned int)args->shape.n_kv_heads);
    launch_kernel(queue, qsa_m1_attend_f16_kernel<DIM, HEADS>, grid, DIM, 0, *args, out);
}

partials partials_of(const qsa_attend_args_t *args) {
    int n_splits = (int)args->shape.n_select / SPLIT_BLOCKS + 1;
    int64_t n = args->shape.n_heads * n_splits, dim = args->shape.head_dim;
    float *workspace = (float *)args->workspace;
    return {workspace + n * dim, workspace + n * (dim + 1), workspace, n_splits};
}

} // namespace

status_t launch_qsa_m1_attend(const qsa_attend_args_t *args, const device_queue_t *queue) {
    int64_t dim = args->shape.head_dim, heads = args->shape.n_heads / args->shape.n_kv_heads;
    partials out = partials_of(args);
    if (dim == 256 && heads == 12)
        launch_splits<256, 12>(args, out, queue);
    else if (dim == 256 && heads == 6)
        launch_splits<256, 6>(args, out, queue);
    else if (dim == 256)
        launch_splits<256, 3>(args, out, queue);
    else if (heads == 4)
        launch_splits<32, 4>(args, out, queue);
    else
        launch_splits<32, 2>(args, out, queue);
    return queue_check_launch("qsa_attend");
}

status_t launch_qsa_m1_merge(const qsa_attend_args_t *args, const activation_t *projected,
                             const device_queue_t *queue) {
    unsigned int n_heads = (unsigned int)args->shape.n_heads;
    partials in = partials_of(args);
    if (args->shape.head_dim == 256)
        launch_kernel(queue, qsa_m1_merge_f32_kernel<256>, dim3(n_heads, 4), 64 / 4 * MERGE_GROUPS, 0, *args, projected,
                      in);
    else
        launch_kernel(queue, qsa_m1_merge_f32_kernel<32>, n_heads, 32 / 4 * MERGE_GROUPS, 0, *args, projected, in);
    return queue_check_launch("qsa_merge");
}
