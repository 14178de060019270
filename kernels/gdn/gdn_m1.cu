/* Gated DeltaNet of one token, in one launch: convolution, recurrence, gated norm.
 *
 * Grid: value heads, 2 * DIM threads a block. The block holds its head's whole state in registers: eight groups of
 * threads share its rows, a thread holds four neighbouring columns of its group's. So the state moves once in and once
 * out, 128 KiB a head at DIM 128, in rows of 16-byte words. State, convolution state and weights are loaded before the
 * wait for the projection: they come from an earlier step.
 *
 * With the unscaled convolved q and k, c = 1 / |k| and e = 1 / (|q| sqrt(DIM)):
 *   d = (v - decay c S^T k) beta;  S = decay S + c k d^T;  o = S^T q = e (decay S^T q + c (k . q) d)
 * so S^T k and S^T q come from one pass over the state as it was, and one exchange between the groups. */

#include "device/device.cuh"
#include "device/launch.cuh"
#include "gdn/gdn_m1.h"

namespace {

enum { TAPS = 4, GROUPS = 8, MAX_KEY_HEADS = 256 };

/* How many of a key head's value heads have read its convolution state; back at 0 when the launch ends. */
__device__ unsigned int n_readers[MAX_KEY_HEADS];

/* One channel of the depthwise convolution: the inputs before and the taps. */
struct channel {
    __half before[TAPS - 1], x;
    float4 taps;

    __device__ void load_state(const gdn_core_args_t &args, int n_channels, int at) {
        taps = ((const float4 *)args.conv)[at];
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            before[i] = args.conv_state[i * n_channels + at];
    }
    __device__ float convolve() const {
        float sum = fmaf(taps.x, __half2float(before[0]), 0.0f);
        sum = fmaf(taps.y, __half2float(before[1]), sum);
        sum = fmaf(taps.z, __half2float(before[2]), sum);
        return siluf(fmaf(taps.w, __half2float(x), sum));
    }
    __device__ void store_state(const gdn_core_args_t &args, int n_channels, int at) const {
        args.conv_state[at] = before[1];
        args.conv_state[n_channels + at] = before[2];
        args.conv_state[2 * n_channels + at] = x;
    }
};

/* A load that stays where it stands, beside the others, and not in the branch that uses it. */
__device__ __forceinline__ float load_now(const __half *x) {
    return __half2float(__ushort_as_half(*(const volatile unsigned short *)x));
}

/* log(1 + exp(x)) without overflow */
__device__ __forceinline__ float softplusf(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float4 axpy(float a, float4 x, float4 y) {
    return {fmaf(a, x.x, y.x), fmaf(a, x.y, y.y), fmaf(a, x.z, y.z), fmaf(a, x.w, y.w)};
}

template <int DIM>
__global__ void __launch_bounds__(2 * DIM, 1)
    gdn_m1_f16_kernel(stamp_t stamp, gdn_core_args_t args, int heads_per_key_head) {
    constexpr int LANES = DIM / 4, ROWS = DIM / GROUPS, THREADS = 2 * DIM, WARPS = THREADS / WARP;
    constexpr int STRIDE = DIM + 16; /* so that two groups' sums of sixteen columns lie in different banks */
    __shared__ float4 q[DIM / 4], k[DIM / 4], deltas[LANES];
    __shared__ float v[DIM], decay_beta[2];
    __shared__ float4 k_sums[GROUPS][STRIDE / 4], q_sums[GROUPS][STRIDE / 4]; /* a group's parts of S^T k and S^T q */
    __shared__ float products[GROUPS][3];                                     /* and of q.q, k.k and k.q */
    __shared__ float squares[WARPS];
    __shared__ bool is_last;

    next_start();
    int head = blockIdx.x, key_head = head / heads_per_key_head, n_heads = (int)args.n_value_heads;
    int n_keys = (int)args.n_key_heads * DIM, n_channels = 2 * n_keys + n_heads * DIM;
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, column = threadIdx.x / 2;

    float4 *state = (float4 *)args.state + ((int64_t)head * DIM + group * ROWS) * LANES + lane;
    float4 s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        s[i] = state[i * LANES];

    /* The lower half of the threads convolves q and v, the upper one k; the last warp knows decay and beta. */
    bool is_lower = threadIdx.x < DIM, is_last_warp = threadIdx.x >= THREADS - WARP;
    int own = threadIdx.x % DIM, first_at = (is_lower ? 0 : n_keys) + key_head * DIM + own;
    int v_at = 2 * n_keys + head * DIM + own;
    channel first, second;
    first.load_state(args, n_channels, first_at);
    if (is_lower) second.load_state(args, n_channels, v_at);
    float norm = args.norm[column], rate = 0.0f, bias = 0.0f;
    if (is_last_warp) {
        rate = -expf(args.A_log[head]);
        bias = args.dt_bias[head];
    }

    previous_wait(stamp);
    first.x = args.projected[first_at];
    if (is_lower) second.x = args.projected[v_at];
    const __half *z_at = args.projected + n_channels, *b_at = z_at + n_heads * DIM;
    float z = __half2float(z_at[head * DIM + column]);
    float b = load_now(b_at + head), a = load_now(b_at + n_heads + head);
    if (is_last_warp) {
        float decay = expf(rate * softplusf(a + bias)), beta = sigmoidf(b);
        if (threadIdx.x == THREADS - 1) {
            decay_beta[0] = decay;
            decay_beta[1] = beta;
        }
    }
    ((float *)(is_lower ? q : k))[own] = first.convolve();
    if (is_lower) {
        v[own] = second.convolve();
        second.store_state(args, n_channels, v_at);
    }
    __syncthreads();

    float4 k_sum = {0.0f, 0.0f, 0.0f, 0.0f}, q_sum = k_sum;
    float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float key = ((const float *)k)[group * ROWS + i], query = ((const float *)q)[group * ROWS + i];
        k_sum = axpy(key, s[i], k_sum);
        q_sum = axpy(query, s[i], q_sum);
        qq = fmaf(query, query, qq), kk = fmaf(key, key, kk), kq = fmaf(key, query, kq);
    }
    k_sums[group][lane] = k_sum;
    q_sums[group][lane] = q_sum;
    if (lane == 0) products[group][0] = qq, products[group][1] = kk, products[group][2] = kq;
    __syncthreads();

    /* Two neighbouring threads join a column. */
    float kS = 0.0f, qS = 0.0f, decay = decay_beta[0], beta = decay_beta[1];
#pragma unroll
    for (int i = 0; i < GROUPS; i += 2) {
        kS += ((const float *)k_sums[i + threadIdx.x % 2])[column];
        qS += ((const float *)q_sums[i + threadIdx.x % 2])[column];
    }
    qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        qq += products[i][0], kk += products[i][1], kq += products[i][2];
    float q_scale = rsqrtf(qq + 1e-6f) * rsqrtf((float)DIM), k_scale = rsqrtf(kk + 1e-6f);
    kS = lanes_sum<2>(kS) * decay * k_scale;
    qS = lanes_sum<2>(qS) * decay;
    float delta = (v[column] - kS) * beta * k_scale, out = fmaf(delta, kq, qS) * q_scale;
    if (threadIdx.x % 2 == 0) ((float *)deltas)[column] = delta;
    float square = lanes_sum<WARP>(threadIdx.x % 2 == 0 ? out * out : 0.0f);
    if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
    __syncthreads();

    /* All of the block's threads have read the convolution state. */
    unsigned int n_before = 0, n_others = (unsigned int)heads_per_key_head - 1;
    if (threadIdx.x == THREADS - 1) {
        __threadfence();
        n_before = atomicInc(&n_readers[key_head], n_others);
    }
    if (threadIdx.x % 2 == 0) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            sum += squares[i];
        float gate = args.silu_gate ? siluf(z) : sigmoidf(z);
        float scale = rsqrtf(sum / (float)DIM + args.rms_norm_eps);
        args.y[head * DIM + column] = __float2half_rn(out * scale * norm * gate);
    }
    float4 d = deltas[lane];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float key = ((const float *)k)[group * ROWS + i];
        state[i * LANES] = axpy(key, d, {s[i].x * decay, s[i].y * decay, s[i].z * decay, s[i].w * decay});
    }

    /* The last of the key head's blocks to have read the inputs of q and k moves them on. */
    if (threadIdx.x == THREADS - 1) is_last = n_before == n_others;
    __syncthreads();
    if (is_last) first.store_state(args, n_channels, first_at);
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
    int heads_per_key_head = (int)(args->n_value_heads / args->n_key_heads);
    if (args->key_dim == 128)
        launch_kernel(queue, gdn_m1_f16_kernel<128>, n_heads, 2 * 128, 0, *args, heads_per_key_head);
    else
        launch_kernel(queue, gdn_m1_f16_kernel<32>, n_heads, 2 * 32, 0, *args, heads_per_key_head);
    return queue_check_launch("gdn_core");
}
