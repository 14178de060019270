#ifndef GALVANI_KERNELS_GDN_CHUNKS_SCRATCH_CUH
#define GALVANI_KERNELS_GDN_CHUNKS_SCRATCH_CUH

/* What the kernels of route `gdn_chunk` hand to each other. */

#include "device/device.cuh"

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

} // namespace

#endif
