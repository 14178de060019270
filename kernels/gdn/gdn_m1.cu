/* Gated DeltaNet of one token, in one launch: convolution, recurrence, gated norm.
 *
 * Grid: value heads, 4 * DIM threads a block. The block holds its head's whole state in registers: 16 groups of threads
 * share its rows, a thread holds four neighbouring columns of its group's. So the state moves once in and once out, 128
 * KiB a head at DIM 128, in rows of 16-byte words. State, convolution state and weights are loaded before the wait for
 * the projection: they come from an earlier step.
 *
 * With the unscaled convolved q and k, c = 1 / |k| and e = 1 / (|q| sqrt(DIM)):
 *   d = (v - decay c S^T k) beta;  S = decay S + c k d^T;  o = S^T q = e (decay S^T q + c (k . q) d)
 * so S^T k and S^T q come from one pass over the state as it was, and one exchange between the groups. */

#include "device/device.cuh"
#include "device/launch.cuh"
#include "gdn/gdn_m1.h"

namespace {

enum { TAPS = 4, GROUPS = 16, MAX_KEY_HEADS = 256 };

/* How many of a key head's value heads have read its convolution state; back at 0 when the launch ends. */
__device__ unsigned int n_readers[MAX_KEY_HEADS];

/* One channel of the depthwise convolution: the inputs before and the taps. */
struct channel {
    __half before[TAPS - 1], x;
    float4 taps;

    __device__ void load_state(const gdn_core_args_t &args, int64_t n_channels, int64_t at) {
        taps = __ldg((const float4 *)args.conv + at);
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            before[i] = args.conv_state[i * n_channels + at];
    }
    __device__ float convolve(const gdn_core_args_t &args, int64_t at) {
        x = args.projected[at];
        float sum = fmaf(taps.x, __half2float(before[0]), 0.0f);
        sum = fmaf(taps.y, __half2float(before[1]), sum);
        sum = fmaf(taps.z, __half2float(before[2]), sum);
        sum = fmaf(taps.w, __half2float(x), sum);
        return siluf(sum);
    }
    __device__ void store_state(const gdn_core_args_t &args, int64_t n_channels, int64_t at) const {
        args.conv_state[at] = before[1];
        args.conv_state[n_channels + at] = before[2];
        args.conv_state[2 * n_channels + at] = x;
    }
};

/* log(1 + exp(x)) without overflow */
__device__ __forceinline__ float softplusf(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

template <int DIM> __global__ void __launch_bounds__(4 * DIM) gdn_m1_f16_kernel(stamp_t stamp, gdn_core_args_t args) {
    constexpr int LANES = DIM / 4, ROWS = DIM / GROUPS, WARPS = 4 * DIM / WARP;
    constexpr int STRIDE = DIM + 8; /* so that four groups' sums of eight columns lie in different banks */
    __shared__ float q[DIM], k[DIM], v[DIM];
    __shared__ float4 deltas[LANES];
    __shared__ float4 k_sums[GROUPS][STRIDE / 4], q_sums[GROUPS][STRIDE / 4]; /* a group's parts of S^T k and S^T q */
    __shared__ float products[3][DIM / WARP], squares[WARPS];
    __shared__ bool is_last;

    next_start();
    int64_t head = blockIdx.x, per_key_head = args.n_value_heads / args.n_key_heads, key_head = head / per_key_head;
    int64_t n_channels = (2 * args.n_key_heads + args.n_value_heads) * DIM;
    int group = threadIdx.x / LANES, own = threadIdx.x % DIM, column = threadIdx.x / 4;

    float4 *state = (float4 *)args.state + (head * DIM + group * ROWS) * LANES + threadIdx.x % LANES;
    float4 s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        s[i] = state[i * LANES];

    /* The first DIM threads convolve a channel of q and of k each, the next ones of v. */
    bool has_keys = threadIdx.x < DIM, has_value = !has_keys && threadIdx.x < 2 * DIM;
    int64_t q_at = key_head * DIM + own, k_at = q_at + args.n_key_heads * DIM;
    int64_t v_at = (2 * args.n_key_heads + head) * DIM + own;
    channel first, second;
    if (has_keys) {
        first.load_state(args, n_channels, q_at);
        second.load_state(args, n_channels, k_at);
    } else if (has_value) {
        first.load_state(args, n_channels, v_at);
    }
    float rate = -expf(args.A_log[head]), bias = args.dt_bias[head], norm = args.norm[column];

    previous_wait(stamp);
    int64_t b_at = n_channels + args.n_value_heads * DIM + head;
    float b = __half2float(args.projected[b_at]), a = __half2float(args.projected[b_at + args.n_value_heads]);
    float z = __half2float(args.projected[n_channels + head * DIM + column]);
    if (has_keys) {
        float q_own = first.convolve(args, q_at), k_own = second.convolve(args, k_at);
        q[own] = q_own;
        k[own] = k_own;
        float qq = lanes_sum<WARP>(q_own * q_own), kk = lanes_sum<WARP>(k_own * k_own),
              kq = lanes_sum<WARP>(k_own * q_own);
        if (threadIdx.x % WARP == 0) {
            products[0][threadIdx.x / WARP] = qq;
            products[1][threadIdx.x / WARP] = kk;
            products[2][threadIdx.x / WARP] = kq;
        }
    } else if (has_value) {
        v[own] = first.convolve(args, v_at);
        first.store_state(args, n_channels, v_at);
    }
    float decay = expf(rate * softplusf(a + bias)), beta = sigmoidf(b);
    __syncthreads();

    bool counts = threadIdx.x == 4 * DIM - 1;
    unsigned int n_before = 0;
    if (counts && per_key_head > 1) {
        __threadfence();
        n_before = atomicInc(&n_readers[key_head], (unsigned int)per_key_head - 1);
    }
    float4 k_sum = {0.0f, 0.0f, 0.0f, 0.0f}, q_sum = k_sum;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float key = k[group * ROWS + i], query = q[group * ROWS + i];
        k_sum.x = fmaf(s[i].x, key, k_sum.x), k_sum.y = fmaf(s[i].y, key, k_sum.y);
        k_sum.z = fmaf(s[i].z, key, k_sum.z), k_sum.w = fmaf(s[i].w, key, k_sum.w);
        q_sum.x = fmaf(s[i].x, query, q_sum.x), q_sum.y = fmaf(s[i].y, query, q_sum.y);
        q_sum.z = fmaf(s[i].z, query, q_sum.z), q_sum.w = fmaf(s[i].w, query, q_sum.w);
    }
    k_sums[group][threadIdx.x % LANES] = k_sum;
    q_sums[group][threadIdx.x % LANES] = q_sum;
    float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < DIM / WARP; i++)
        qq += products[0][i], kk += products[1][i], kq += products[2][i];
    float q_scale = rsqrtf(qq + 1e-6f) * rsqrtf((float)DIM), k_scale = rsqrtf(kk + 1e-6f);
    __syncthreads();

    /* Four neighbouring threads join a column. */
    float kS = 0.0f, qS = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUPS; i += 4) {
        kS += ((const float *)k_sums[i + threadIdx.x % 4])[column];
        qS += ((const float *)q_sums[i + threadIdx.x % 4])[column];
    }
    kS = lanes_sum<4>(kS) * decay * k_scale;
    qS = lanes_sum<4>(qS) * decay;
    float delta = (v[column] - kS) * beta * k_scale, out = fmaf(delta, kq, qS) * q_scale;
    float square = lanes_sum<WARP>(threadIdx.x % 4 == 0 ? out * out : 0.0f);
    if (threadIdx.x % 4 == 0) ((float *)deltas)[column] = delta;
    if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
    __syncthreads();

    if (threadIdx.x % 4 == 0) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            sum += squares[i];
        float gate = args.silu_gate ? siluf(z) : sigmoidf(z);
        float scale = rsqrtf(sum / (float)DIM + args.rms_norm_eps);
        args.y[head * DIM + column] = __float2half_rn(out * scale * norm * gate);
    }
    float4 d = deltas[threadIdx.x % LANES];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float key = k[group * ROWS + i];
        state[i * LANES] = {fmaf(key, d.x, s[i].x * decay), fmaf(key, d.y, s[i].y * decay),
                            fmaf(key, d.z, s[i].z * decay), fmaf(key, d.w, s[i].w * decay)};
    }

    /* The last of the key head's blocks to have read the inputs of q and k moves them on. */
    if (counts) is_last = n_before == per_key_head - 1;
    __syncthreads();
    if (has_keys && is_last) {
        first.store_state(args, n_channels, q_at);
        second.store_state(args, n_channels, k_at);
    }
}

bool is_aligned(const void *pointer) { return (uintptr_t)pointer % 16 == 0; }

} // namespace

const char *gdn_m1_refusal(const gdn_core_args_t *args) {
    if (args->key_dim != args->value_dim || (args->key_dim != 128 && args->key_dim != 32))
        return "key and value heads are not both 128 or both 32 wide";
    if (args->conv_kernel != TAPS) return "the convolution has not 4 taps";
    if (args->n_key_heads > MAX_KEY_HEADS) return "more than 256 key heads";
    if (!is_aligned(args->state) || !is_aligned(args->conv)) return "state or taps are not aligned to 16 bytes";
    return NULL;
}

status_t launch_gdn_m1(const gdn_core_args_t *args, const device_queue_t *queue) {
    unsigned int n_heads = (unsigned int)args->n_value_heads;
    if (args->key_dim == 128)
        launch_kernel(queue, gdn_m1_f16_kernel<128>, n_heads, 4 * 128, 0, *args);
    else
        launch_kernel(queue, gdn_m1_f16_kernel<32>, n_heads, 4 * 32, 0, *args);
    return queue_check_launch("gdn_core");
}
