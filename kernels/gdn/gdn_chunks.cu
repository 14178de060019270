/* The gated delta rule in chunks of 64 tokens (the WY form of the DeltaNet and Gated DeltaNet papers). With S0 the
 * state before a chunk, G_i the sum of its g up to token i, and T = (1 + L)^-1, where for j < i
 *
 *   L_ij = beta_i exp(G_i - G_j) k_i.k_j
 *
 *   d = T diag(beta) V - T diag(beta exp(G)) K S0
 *
 *   o_i = exp(G_i) S0^T q_i + sum over j <= i of exp(G_i - G_j) (q_i.k_j) d_j
 *
 *   S = exp(G_last) S0 + sum over j of exp(G_last - G_j) k_j d_j^T
 *
 * No exponent is positive. T is made in FP32, the state stays FP32; factors of products are rounded to FP16, sums are
 * FP32. Tokens come in segments, so that what passes between the kernels stays in the L2:
 *
 *   gdn_prepare_kernel: convolution, SiLU and norms
 *
 *   gdn_chunk_kernel (gdn_chunks_local.cuh): for each chunk and head what does not depend on the state, in the order in
 *   which the next kernel's lanes take it as fragments
 *
 *   gdn_walk_kernel (gdn_chunks_walk.cuh): for each head and 32 columns of the state the chunks one after another
 *
 *   gdn_gate_kernel: the norm over a head and the output gate
 *
 * Key and value heads of 128 or of 32, conv_kernel 4. */

#include "gdn/gdn_chunks.cuh"
#include "gdn/gdn_chunks_local.cuh"
#include "gdn/gdn_chunks_walk.cuh"
#include "linear/linear.h"

namespace {

int64_t n_channels(const gdn_core_args_t *args) {
    return 2 * args->n_key_heads * args->key_dim + args->n_value_heads * args->value_dim;
}

/* For the longest segment of these tokens. */
size_t lay_out(const gdn_core_args_t *args, scratch *scratch) {
    size_t chunks = blocks_for(args->n_tokens < SEGMENT ? args->n_tokens : (int64_t)SEGMENT, CHUNK);
    size_t tokens = chunks * CHUNK, dim = (size_t)args->key_dim;
    size_t heads = (size_t)args->n_value_heads, keys = (size_t)args->n_key_heads, used = 0;
    char *base = (char *)args->workspace;
    auto take = [&](size_t n, size_t bytes) {
        char *at = base + used;
        used += n * bytes;
        return at;
    };
    scratch->y = (float *)take(tokens * heads * dim, sizeof(float));
    scratch->factors = (float *)take(chunks * heads * 2 * CHUNK, sizeof(float));
    scratch->convolved = (__half *)take(tokens * (size_t)n_channels(args), sizeof(__half));
    scratch->kd = (__half *)take(chunks * heads * CHUNK * dim, sizeof(__half));
    scratch->vd = (__half *)take(chunks * heads * CHUNK * dim, sizeof(__half));
    scratch->weights = (__half *)take(chunks * heads * CHUNK * CHUNK, sizeof(__half));
    scratch->q = (__half *)take(chunks * keys * CHUNK * dim, sizeof(__half));
    scratch->k = (__half *)take(chunks * keys * CHUNK * dim, sizeof(__half));
    return used;
}

/* N neighbouring values of a lane: four or one. */
template <int N> __device__ __forceinline__ void load_values(const __half *from, float values[N]) {
    if (N == 4) {
        uint2 word = __ldg((const uint2 *)from);
        float2 low = __half22float2(*(__half2 *)&word.x), high = __half22float2(*(__half2 *)&word.y);
        values[0] = low.x, values[1 % N] = low.y, values[2 % N] = high.x, values[3 % N] = high.y;
    } else {
        values[0] = __half2float(__ldg(from));
    }
}

template <int N> __device__ __forceinline__ void store_values(__half *to, const float values[N]) {
    if (N == 4)
        *(uint2 *)to = make_uint2(pack_halves(values[0], values[1 % N]), pack_halves(values[2 % N], values[3 % N]));
    else
        *to = __float2half_rn(values[0]);
}

/* Grid: (heads of q, k and v / 4, tokens / 16), a warp a head and a run of tokens; a lane holds D / 32 neighbouring
 * channels and their last inputs. Reads the segment's q | k | v once and writes them once. The segment begins at token
 * `first`; inputs before token 0 are the state's. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    gdn_prepare_kernel(gdn_core_args_t args, int64_t first, int n_tokens, __half *convolved) {
    constexpr int N = D / WARP;
    int head = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int n_normed = 2 * (int)args.n_key_heads, width = (n_normed + (int)args.n_value_heads) * D;
    if (head * D >= width) return;
    int channel = head * D + threadIdx.x % WARP * N, begin = blockIdx.y * RUN, end = min(begin + RUN, n_tokens);
    const __half *x = args.projected + channel;
    float taps[N][TAPS], last[N][TAPS - 1];
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            taps[i][tap] = args.conv[(channel + i) * TAPS + tap];
    }
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) {
        int64_t token = first + begin + j - (TAPS - 1);
        const __half *from =
            token >= 0 ? x + token * args.projected_stride : args.conv_state + (token + TAPS - 1) * width + channel;
        float values[N];
        load_values<N>(from, values);
#pragma unroll
        for (int i = 0; i < N; i++)
            last[i][j] = values[i];
    }
#pragma unroll 4
    for (int t = begin; t < end; t++) {
        float now[N], y[N], sum = 0.0f;
        load_values<N>(x + (first + t) * args.projected_stride, now);
#pragma unroll
        for (int i = 0; i < N; i++) {
            y[i] = taps[i][0] * last[i][0];
            y[i] = fmaf(taps[i][1], last[i][1], y[i]);
            y[i] = fmaf(taps[i][2], last[i][2], y[i]);
            y[i] = siluf(fmaf(taps[i][3], now[i], y[i]));
            last[i][0] = last[i][1];
            last[i][1] = last[i][2];
            last[i][2] = now[i];
            sum = fmaf(y[i], y[i], sum);
        }
        float scale = head < n_normed ? rsqrtf(lanes_sum<WARP>(sum) + 1e-6f) : 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] *= scale;
        store_values<N>(convolved + (int64_t)t * width + channel, y);
    }
}

/* One warp a (token, value head): out = rmsnorm(y) * norm * gate(z), FP16. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    gdn_gate_kernel(gdn_core_args_t args, int64_t first, int n_tokens, const float *y) {
    constexpr int N = D / WARP;
    int index = (int)((blockIdx.x * THREADS + threadIdx.x) / WARP), n_heads = (int)args.n_value_heads;
    int token = index / n_heads, head = index % n_heads, column = threadIdx.x % WARP * N;
    if (token >= n_tokens) return;
    float values[N], sum = 0.0f;
    const float *own = y + (int64_t)index * D + column;
#pragma unroll
    for (int i = 0; i < N; i++) {
        values[i] = own[i];
        sum = fmaf(values[i], values[i], sum);
    }
    float scale = rsqrtf(lanes_sum<WARP>(sum) / (float)D + args.rms_norm_eps);
    int64_t z_offset = (2 * args.n_key_heads + args.n_value_heads + head) * D + column;
    float z[N];
    load_values<N>(args.projected + (first + token) * args.projected_stride + z_offset, z);
#pragma unroll
    for (int i = 0; i < N; i++)
        values[i] *= scale * args.norm[column + i] * (args.silu_gate ? siluf(z[i]) : sigmoidf(z[i]));
    store_values<N>(args.y + ((first + token) * n_heads + head) * D + column, values);
}

template <int D> status_t launch_segments(const gdn_core_args_t *args, const device_queue_t *queue) {
    scratch scratch;
    lay_out(args, &scratch);
    unsigned int n_heads = (unsigned int)args->n_value_heads;
    unsigned int n_all = 2 * (unsigned int)args->n_key_heads + n_heads;
    cudaFuncSetAttribute(gdn_chunk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(chunk_shared<D>));
    cudaFuncSetAttribute(gdn_walk_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(walk_shared<D>));
    for (int64_t first = 0; first < args->n_tokens;) {
        int64_t left = args->n_tokens - first;
        int n = (int)(left < SEGMENT ? left : (int64_t)SEGMENT);
        unsigned int n_chunks = blocks_for(n, CHUNK);
        gdn_prepare_kernel<D>
            <<<dim3(blocks_for(n_all, THREADS / WARP), blocks_for(n, RUN)), THREADS, 0, queue->stream>>>(
                *args, first, n, scratch.convolved);
        gdn_chunk_kernel<D>
            <<<dim3(n_chunks, n_heads), THREADS, sizeof(chunk_shared<D>), queue->stream>>>(*args, first, n, scratch);
        gdn_walk_kernel<D>
            <<<dim3(D / COLUMNS, n_heads), THREADS, sizeof(walk_shared<D>), queue->stream>>>(*args, n, scratch);
        gdn_gate_kernel<D>
            <<<blocks_for(n * n_heads, THREADS / WARP), THREADS, 0, queue->stream>>>(*args, first, n, scratch.y);
        first += n;
    }
    return queue_check_launch("gdn_core");
}

const char *shape_refusal(const gdn_core_args_t *args) {
    if (args->key_dim != args->value_dim || (args->key_dim != 128 && args->key_dim != 32))
        return "linear_key_head_dim and linear_value_head_dim are not both 128 or both 32";
    return args->conv_kernel == TAPS ? NULL : "linear_conv_kernel_dim is not 4";
}

} // namespace

const char *gdn_chunk_refusal(const gdn_core_args_t *args, const device_queue_t *queue) {
    if (queue->mma_refusal) return queue->mma_refusal;
    const char *refusal = shape_refusal(args);
    if (refusal) return refusal;
    bool aligned = args->projected_stride % 4 == 0 && (uintptr_t)args->projected % 8 == 0 &&
                   (uintptr_t)args->conv_state % 8 == 0 && (uintptr_t)args->y % 8 == 0 &&
                   (uintptr_t)args->state % 8 == 0 && (uintptr_t)args->workspace % 16 == 0;
    return aligned ? NULL : "rows of the projection, the states or the output are not aligned to 8 bytes";
}

size_t gdn_chunk_workspace_bytes(const gdn_core_args_t *args) {
    if (args->n_tokens <= LINEAR_MAX_GEMV_TOKENS || shape_refusal(args)) return 0;
    gdn_core_args_t counted = *args;
    counted.workspace = NULL;
    scratch scratch;
    return lay_out(&counted, &scratch);
}

status_t launch_gdn_chunk(const gdn_core_args_t *args, const device_queue_t *queue) {
    queue_stamp(queue);
    return args->key_dim == 128 ? launch_segments<128>(args, queue) : launch_segments<32>(args, queue);
}
