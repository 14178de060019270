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
 *   gdn_chunk_kernel: for each chunk and head what does not depend on the state, in the order in which the next
 *   kernel's lanes take it as fragments
 *
 *   gdn_walk_kernel: for each head and 32 columns of the state the chunks one after another
 *
 *   gdn_gate_kernel: the norm over a head and the output gate
 *
 * Key and value heads of 128 or of 32, conv_kernel 4. */

#include "device/mma.cuh"
#include "gdn/gdn_chunks.cuh"
#include "linear/linear.h"

namespace {

enum {
    CHUNK = 64,
    SEGMENT = 2048, /* tokens */
    TAPS = 4,
    RUN = 16, /* tokens that a warp convolves */
    THREADS = 128,
    COLUMNS = 32,   /* of the state in one block of the walk */
    TILE = 8 * WARP /* values of a 16 x 16 tile in fragment order: eight a lane */
};

/* Between the kernels, for the tokens of one segment. `chunk_head` counts chunks * value heads, `chunk_key` chunks *
 * key heads; tiles are 16 x 16, each a warp's fragment. */
struct scratch {
    float *y;          /* [tokens, n_value_heads * D] */
    float *factors;    /* [chunk_head, 2, CHUNK]: exp(G_i), exp(G_last - G_i) */
    __half *convolved; /* [tokens, channels]: q and k normed, v */
    __half *kd;        /* [chunk_head, 4, D / 16 tiles]: - T diag(beta exp(G)) K */
    __half *vd;        /* [chunk_head, D / 32, 4, 2 tiles]: T diag(beta) V, as sums */
    __half *weights;   /* [chunk_head, 4, 4 tiles]: of d in o, lower triangle */
    __half *q;         /* [chunk_key, 4, D / 16 tiles] */
    __half *k;         /* [chunk_key, D / 16, 4 tiles]: transposed */
};

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

/* log(1 + exp(x)) without overflow */
__device__ __forceinline__ float softplusf(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/* Shared memory of gdn_chunk_kernel. */
template <int D> struct chunk_shared {
    static constexpr int STRIDE = D + 8, T_STRIDE = CHUNK + 8; /* rows start in different banks */
    float log_decay[CHUNK], beta[CHUNK];                       /* G, beta */
    float lower[CHUNK][CHUNK + 4];                             /* L; its diagonal blocks become those of T */
    __half k[CHUNK * STRIDE], v[CHUNK * STRIDE];
    union {
        struct {
            __half q[CHUNK * STRIDE];
            float product[CHUNK / 2][CHUNK / 2 + 4]; /* L21 T11 */
        };
        struct {                                                 /* once q and the product have been read */
            __half t_k[CHUNK * T_STRIDE], t_v[CHUNK * T_STRIDE]; /* - T diag(beta exp(G)), T diag(beta) */
        };
    };
};

/* Inverts the two 32 x 32 blocks on the diagonal of 1 + L in place, a warp each, a column a lane. */
template <int D> __device__ __forceinline__ void invert_blocks(chunk_shared<D> &shared) {
    constexpr int HALF = CHUNK / 2;
    int block = threadIdx.x / WARP * HALF, column = threadIdx.x % WARP;
    float x[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sum[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < i; j += 4) { /* L is zero on and above the diagonal */
            float4 row = *(const float4 *)&shared.lower[block + i][block + j];
            sum[0] = fmaf(-row.x, x[j], sum[0]);
            if (j + 1 < i) sum[1] = fmaf(-row.y, x[j + 1], sum[1]);
            if (j + 2 < i) sum[2] = fmaf(-row.z, x[j + 2], sum[2]);
            if (j + 3 < i) sum[3] = fmaf(-row.w, x[j + 3], sum[3]);
        }
        x[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i++)
        shared.lower[block + i][block + column] = x[i];
}

/* Eight values of row `row` of the 32 x 32 product a b, from `column` on. */
__device__ __forceinline__ void multiply_row(const float *a, const float *b, int stride_b, int column, float out[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = 0.0f;
#pragma unroll 4
    for (int j = 0; j < CHUNK / 2; j++) {
        float factor = a[j];
        float4 low = *(const float4 *)(b + j * stride_b + column),
               high = *(const float4 *)(b + j * stride_b + column + 4);
        out[0] = fmaf(factor, low.x, out[0]), out[1] = fmaf(factor, low.y, out[1]);
        out[2] = fmaf(factor, low.z, out[2]), out[3] = fmaf(factor, low.w, out[3]);
        out[4] = fmaf(factor, high.x, out[4]), out[5] = fmaf(factor, high.y, out[5]);
        out[6] = fmaf(factor, high.z, out[6]), out[7] = fmaf(factor, high.w, out[7]);
    }
}

__device__ __forceinline__ void store_tile(__half *tiles, int tile, const fragment_a &a) {
    *(uint4 *)(tiles + tile * TILE + threadIdx.x % WARP * 8) = make_uint4(a.x[0], a.x[1], a.x[2], a.x[3]);
}

/* Grid: (chunks, value heads), four warps, each with 16 of the chunk's tokens. Tokens past the end have zeros for q, k
 * and v, beta 0 and g 0, so that they change nothing. The last chunk's block of the last segment moves the
 * convolution's state on (`is_last`; the segment then has at least conv_kernel - 1 tokens). */
template <int D>
__global__ void __launch_bounds__(THREADS)
    gdn_chunk_kernel(gdn_core_args_t args, int64_t first, int n_tokens, scratch out) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    chunk_shared<D> &shared = *(chunk_shared<D> *)memory;
    constexpr int STRIDE = chunk_shared<D>::STRIDE, T_STRIDE = chunk_shared<D>::T_STRIDE;
    int chunk = blockIdx.x, head = blockIdx.y, n_heads = (int)args.n_value_heads, n_keys = (int)args.n_key_heads;
    int group = n_heads / n_keys, key_head = head / group, width = (2 * n_keys + n_heads) * D;
    int begin = chunk * CHUNK, n = min((int)CHUNK, n_tokens - begin), warp = threadIdx.x / WARP,
        lane = threadIdx.x % WARP;

    const __half *row = out.convolved + (int64_t)begin * width;
    for (int i = threadIdx.x; i < CHUNK * (D / 8); i += THREADS) {
        int t = i / (D / 8), column = i % (D / 8) * 8;
        const __half *from = row + (int64_t)min(t, n - 1) * width + column;
        copy_16(shared.q + t * STRIDE + column, from + key_head * D, t < n);
        copy_16(shared.k + t * STRIDE + column, from + (n_keys + key_head) * D, t < n);
        copy_16(shared.v + t * STRIDE + column, from + (2 * n_keys + head) * D, t < n);
    }
    copies_commit();
    if (warp == 0) { /* two tokens a lane */
        float rate = -expf(args.A_log[head]), bias = args.dt_bias[head], g[2];
        const __half *b = args.projected + (first + begin) * args.projected_stride + width + n_heads * D + head;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int t = 2 * lane + i;
            const __half *at = b + (int64_t)min(t, n - 1) * args.projected_stride;
            g[i] = t < n ? rate * softplusf(__half2float(at[n_heads]) + bias) : 0.0f;
            shared.beta[t] = t < n ? sigmoidf(__half2float(*at)) : 0.0f;
        }
        float sum = g[0] + g[1];
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            float before = __shfl_up_sync(0xffffffffu, sum, offset);
            if (lane >= offset) sum += before;
        }
        shared.log_decay[2 * lane] = sum - g[1];
        shared.log_decay[2 * lane + 1] = sum;
    }
    copies_wait<0>();
    __syncthreads();
    int64_t chunk_head = (int64_t)chunk * n_heads + head;
    if (threadIdx.x < CHUNK) {
        float *factors = out.factors + chunk_head * 2 * CHUNK + threadIdx.x;
        float own = shared.log_decay[threadIdx.x];
        factors[0] = expf(own);
        factors[CHUNK] = expf(shared.log_decay[CHUNK - 1] - own);
    }
    if (head % group == 0) { /* q and k for the walk, once for the heads that share them */
        int64_t chunk_key = (int64_t)chunk * n_keys + key_head;
        __half *q = out.q + chunk_key * CHUNK * D, *k = out.k + chunk_key * CHUNK * D;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            store_tile(q, warp * (D / 16) + i, load_a(shared.q, STRIDE, warp * 16, i * 16));
            store_tile(k, i * 4 + warp, load_a_transposed(shared.k, STRIDE, i * 16, warp * 16));
        }
    }

    /* L, and the weights of d in o, 16 columns at a time up to the diagonal */
    int g = lane / 4, t2 = lane % 4 * 2, i0 = warp * 16 + g;
    float decay0 = shared.log_decay[i0], decay1 = shared.log_decay[i0 + 8];
    float beta0 = shared.beta[i0], beta1 = shared.beta[i0 + 8];
    __half *weights = out.weights + chunk_head * CHUNK * CHUNK;
    for (int tile = 0; tile < 4; tile++) {
        float kk[2][4] = {}, qk[2][4] = {};
        if (tile <= warp) {
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t b[4];
                load_b_transposed(b, shared.k, STRIDE, k, tile * 16);
                fragment_a a = load_a(shared.k, STRIDE, warp * 16, k);
                mma_16816(kk[0], a, b[0], b[1]);
                mma_16816(kk[1], a, b[2], b[3]);
                a = load_a(shared.q, STRIDE, warp * 16, k);
                mma_16816(qk[0], a, b[0], b[1]);
                mma_16816(qk[1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int j = tile * 16 + half * 8 + t2 + c;
                float factor0 = j <= i0 ? expf(decay0 - shared.log_decay[j]) : 0.0f;
                float factor1 = j <= i0 + 8 ? expf(decay1 - shared.log_decay[j]) : 0.0f;
                shared.lower[i0][j] = j < i0 ? beta0 * factor0 * kk[half][c] : 0.0f;
                shared.lower[i0 + 8][j] = j < i0 + 8 ? beta1 * factor1 * kk[half][c + 2] : 0.0f;
                qk[half][c] *= factor0;
                qk[half][c + 2] *= factor1;
            }
        }
        if (tile <= warp) store_tile(weights, warp * 4 + tile, pack_a(qk[0], qk[1]));
    }
    __syncthreads();

    /* T: the diagonal blocks, then - T22 L21 T11 */
    if (warp < 2) invert_blocks(shared);
    __syncthreads();
    int half = CHUNK / 2, r = threadIdx.x / 4, c8 = threadIdx.x % 4 * 8;
    float values[8];
    multiply_row(shared.lower[half + r], shared.lower[0], CHUNK + 4, c8, values);
#pragma unroll
    for (int i = 0; i < 8; i++)
        shared.product[r][c8 + i] = values[i];
    __syncthreads();
    multiply_row(shared.lower[half + r] + half, shared.product[0], half + 4, c8, values);
#pragma unroll
    for (int i = 0; i < 8; i++)
        shared.lower[half + r][c8 + i] = -values[i];
    __syncthreads();
    for (int i = threadIdx.x; i < CHUNK * CHUNK; i += THREADS) {
        int j = i % CHUNK;
        float value = shared.lower[i / CHUNK][j] * shared.beta[j];
        shared.t_v[i / CHUNK * T_STRIDE + j] = __float2half_rn(value);
        shared.t_k[i / CHUNK * T_STRIDE + j] = __float2half_rn(-value * expf(shared.log_decay[j]));
    }
    __syncthreads();

    /* the two products with T, whose upper triangle is zero */
    __half *kd = out.kd + chunk_head * CHUNK * D, *vd = out.vd + chunk_head * CHUNK * D;
#pragma unroll 1
    for (int column = 0; column < D; column += 32) {
        float from_k[4][4] = {}, from_v[4][4] = {};
#pragma unroll
        for (int tile = 0; tile < 4; tile++) {
            if (tile > warp) continue;
            fragment_a a_k = load_a(shared.t_k, T_STRIDE, warp * 16, tile * 16);
            fragment_a a_v = load_a(shared.t_v, T_STRIDE, warp * 16, tile * 16);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                uint32_t b[4];
                load_b(b, shared.k, STRIDE, tile * 16, column + part * 16);
                mma_16816(from_k[2 * part], a_k, b[0], b[1]);
                mma_16816(from_k[2 * part + 1], a_k, b[2], b[3]);
                load_b(b, shared.v, STRIDE, tile * 16, column + part * 16);
                mma_16816(from_v[2 * part], a_v, b[0], b[1]);
                mma_16816(from_v[2 * part + 1], a_v, b[2], b[3]);
            }
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            store_tile(kd, warp * (D / 16) + column / 16 + part, pack_a(from_k[2 * part], from_k[2 * part + 1]));
            store_tile(vd, (column / COLUMNS * 4 + warp) * 2 + part, pack_a(from_v[2 * part], from_v[2 * part + 1]));
        }
    }

    if (first + n_tokens < args.n_tokens || begin + n < n_tokens) return;
    for (int i = threadIdx.x; i < (TAPS - 1) * D; i += THREADS) {
        const __half *from = args.projected + (args.n_tokens - (TAPS - 1) + i / D) * args.projected_stride;
        __half *to = args.conv_state + (int64_t)(i / D) * width;
        int channel = (2 * n_keys + head) * D + i % D;
        to[channel] = from[channel];
        if (head % group) continue;
        to[key_head * D + i % D] = from[key_head * D + i % D];
        to[(n_keys + key_head) * D + i % D] = from[(n_keys + key_head) * D + i % D];
    }
}

/* Shared memory of gdn_walk_kernel. A lane copies into `stage` what it alone takes out of it, so that no barrier stands
 * between. */
template <int D> struct walk_shared {
    static constexpr int STRIDE = COLUMNS + 8;
    __half state[D * STRIDE];                            /* rounded */
    __half d[CHUNK * STRIDE], d_decayed[CHUNK * STRIDE]; /* d, exp(G_last - G_i) d */
    __half early[4][2 * (D / 16) + 2][TILE];             /* of a warp: kd, q, vd */
    __half late[4][4 + (D / 16 + 3) / 4 * 4][TILE];      /* weights, k */
};

/* Grid: (D / 32, value heads), four warps. Of a chunk's tokens a warp has 16, of the state's rows every warp a quarter,
 * as sums of products, in registers over all chunks. Moves the state in and out once, and for each chunk 57 KiB that
 * the blocks of a head share in the L2. */
template <int D>
__global__ void __launch_bounds__(THREADS) gdn_walk_kernel(gdn_core_args_t args, int n_tokens, scratch in) {
    if (!GALVANI_HAS_MMA) return;
    extern __shared__ __align__(16) char memory[];
    walk_shared<D> &shared = *(walk_shared<D> *)memory;
    constexpr int STRIDE = walk_shared<D>::STRIDE, K_TILES = D / 16, ROW_TILES = (K_TILES + 3) / 4;
    int head = blockIdx.y, n_heads = (int)args.n_value_heads, n_keys = (int)args.n_key_heads;
    int key_head = head / (n_heads / n_keys), n_chunks = (n_tokens + CHUNK - 1) / CHUNK;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t2 = lane % 4 * 2;
    bool has_rows = warp * ROW_TILES < K_TILES; /* of the state */
    float q_scale = rsqrtf((float)D);

    /* what is copied ahead: before a chunk's first products, and before those with d */
    auto copy_early = [&](int chunk) {
        if (chunk < n_chunks) {
            int64_t chunk_head = (int64_t)chunk * n_heads + head, chunk_key = (int64_t)chunk * n_keys + key_head;
            const __half *kd = in.kd + (chunk_head * 4 + warp) * K_TILES * TILE + lane * 8;
            const __half *q = in.q + (chunk_key * 4 + warp) * K_TILES * TILE + lane * 8;
            const __half *vd = in.vd + ((chunk_head * (D / COLUMNS) + blockIdx.x) * 4 + warp) * 2 * TILE + lane * 8;
#pragma unroll
            for (int i = 0; i < K_TILES; i++) {
                copy_16(&shared.early[warp][i][lane * 8], kd + i * TILE, true);
                copy_16(&shared.early[warp][K_TILES + i][lane * 8], q + i * TILE, true);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
                copy_16(&shared.early[warp][2 * K_TILES + i][lane * 8], vd + i * TILE, true);
        }
        copies_commit();
    };
    auto copy_late = [&](int chunk) {
        if (chunk < n_chunks) {
            int64_t chunk_head = (int64_t)chunk * n_heads + head, chunk_key = (int64_t)chunk * n_keys + key_head;
            const __half *weights = in.weights + (chunk_head * 4 + warp) * 4 * TILE + lane * 8;
            const __half *k = in.k + (chunk_key * K_TILES + warp * ROW_TILES) * 4 * TILE + lane * 8;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i <= warp) copy_16(&shared.late[warp][i][lane * 8], weights + i * TILE, true);
            if (has_rows) {
#pragma unroll
                for (int i = 0; i < ROW_TILES * 4; i++)
                    copy_16(&shared.late[warp][4 + i][lane * 8], k + i * TILE, true);
            }
        }
        copies_commit();
    };
    auto taken = [&](const __half *tile) {
        uint4 word = *(const uint4 *)(tile + lane * 8);
        return fragment_a{{word.x, word.y, word.z, word.w}};
    };

    copy_early(0);
    copy_late(0);
    float s[ROW_TILES][4][4];
    float *state = args.state + (int64_t)head * D * D + (warp * ROW_TILES * 16 + g) * D + blockIdx.x * COLUMNS + t2;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 low = {}, high = {};
            if (has_rows) {
                low = *(const float2 *)(state + m * 16 * D + j * 8);
                high = *(const float2 *)(state + (m * 16 + 8) * D + j * 8);
            }
            s[m][j][0] = low.x, s[m][j][1] = low.y, s[m][j][2] = high.x, s[m][j][3] = high.y;
        }
    }

    for (int chunk = 0; chunk < n_chunks; chunk++) {
        if (has_rows) {
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    __half *at = shared.state + ((warp * ROW_TILES + m) * 16 + g) * STRIDE + j * 8 + t2;
                    *(uint32_t *)at = pack_halves(s[m][j][0], s[m][j][1]);
                    *(uint32_t *)(at + 8 * STRIDE) = pack_halves(s[m][j][2], s[m][j][3]);
                }
            }
        }
        const float *factors = in.factors + ((int64_t)chunk * n_heads + head) * 2 * CHUNK + warp * 16 + g;
        float grown0 = factors[0], grown1 = factors[8], left0 = factors[CHUNK], left1 = factors[CHUNK + 8];
        float whole = factors[CHUNK - 1 - warp * 16 - g];
        copies_wait<1>();
        __syncthreads(); /* the state is there */

        /* d = vd + kd S0, o = S0^T q */
        float d[4][4], o[4][4] = {};
#pragma unroll
        for (int part = 0; part < 2; part++) {
            fragment_a sums = taken(shared.early[warp][2 * K_TILES + part]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 pair = __half22float2(*(__half2 *)&sums.x[i]);
                d[2 * part + i / 2][i % 2 * 2] = pair.x;
                d[2 * part + i / 2][i % 2 * 2 + 1] = pair.y;
            }
        }
#pragma unroll
        for (int k = 0; k < K_TILES; k++) {
            fragment_a kd = taken(shared.early[warp][k]), q = taken(shared.early[warp][K_TILES + k]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                uint32_t b[4];
                load_b(b, shared.state, STRIDE, k * 16, part * 16);
                mma_16816(d[2 * part], kd, b[0], b[1]);
                mma_16816(d[2 * part + 1], kd, b[2], b[3]);
                mma_16816(o[2 * part], q, b[0], b[1]);
                mma_16816(o[2 * part + 1], q, b[2], b[3]);
            }
        }
        copy_early(chunk + 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = (warp * 16 + g) * STRIDE + j * 8 + t2;
            *(uint32_t *)(shared.d + at) = pack_halves(d[j][0], d[j][1]);
            *(uint32_t *)(shared.d + at + 8 * STRIDE) = pack_halves(d[j][2], d[j][3]);
            *(uint32_t *)(shared.d_decayed + at) = pack_halves(d[j][0] * left0, d[j][1] * left0);
            *(uint32_t *)(shared.d_decayed + at + 8 * STRIDE) = pack_halves(d[j][2] * left1, d[j][3] * left1);
            o[j][0] *= grown0, o[j][1] *= grown0, o[j][2] *= grown1, o[j][3] *= grown1;
        }
        copies_wait<1>();
        __syncthreads(); /* d is there */

#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k > warp) continue;
            fragment_a weights = taken(shared.late[warp][k]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                uint32_t b[4];
                load_b(b, shared.d, STRIDE, k * 16, part * 16);
                mma_16816(o[2 * part], weights, b[0], b[1]);
                mma_16816(o[2 * part + 1], weights, b[2], b[3]);
            }
        }
        if (has_rows) {
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        s[m][j][i] *= whole;
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    uint32_t b[4];
                    load_b(b, shared.d_decayed, STRIDE, k * 16, part * 16);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; m++) {
                        fragment_a a = taken(shared.late[warp][4 + m * 4 + k]);
                        mma_16816(s[m][2 * part], a, b[0], b[1]);
                        mma_16816(s[m][2 * part + 1], a, b[2], b[3]);
                    }
                }
            }
        }
        copy_late(chunk + 1);
        int token = chunk * CHUNK + warp * 16 + g;
        float *y = in.y + ((int64_t)token * n_heads + head) * D + blockIdx.x * COLUMNS + t2;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (token < n_tokens) *(float2 *)(y + j * 8) = make_float2(o[j][0] * q_scale, o[j][1] * q_scale);
            if (token + 8 < n_tokens)
                *(float2 *)(y + (int64_t)8 * n_heads * D + j * 8) = make_float2(o[j][2] * q_scale, o[j][3] * q_scale);
        }
    }

    if (!has_rows) return;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            *(float2 *)(state + m * 16 * D + j * 8) = make_float2(s[m][j][0], s[m][j][1]);
            *(float2 *)(state + (m * 16 + 8) * D + j * 8) = make_float2(s[m][j][2], s[m][j][3]);
        }
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
