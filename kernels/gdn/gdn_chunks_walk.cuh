#ifndef GALVANI_KERNELS_GDN_CHUNKS_WALK_CUH
#define GALVANI_KERNELS_GDN_CHUNKS_WALK_CUH

/* The walk from chunk to chunk: d, o and the state (the formulas are in gdn_chunks.cu). */

#include "device/mma.cuh"
#include "gdn/gdn.h"
#include "gdn/gdn_chunks_scratch.cuh"

namespace {

/* Shared memory of gdn_walk_kernel. A lane copies into `early` and `late` what it alone takes out of it, so that no
 * barrier stands between. */
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

} // namespace

#endif
