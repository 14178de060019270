/* Orders of summation: products as in common/dot.h; index heads from the first. */

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "common/dot.h"
#include "common/parallel.h"
#include "qsa/qsa.h"

/* Queries scored together: each key is read once for all of them. */
#define GROUP_TOKENS 16

/* Blocks that one thread scores at once. */
#define GROUP_BLOCKS 64

/* Index heads scored in one go; more of them take more goes. */
#define GROUP_HEADS 8

static int64_t n_complete(const qsa_select_args_t *args, int64_t token) {
    return (*args->start_pos + token + 1) / args->shape.ratio;
}

/* scores[b] for the blocks first ... first + n_blocks - 1 of one query. */
static void score_blocks(const qsa_select_args_t *args, int64_t token, int64_t first, int64_t n_blocks, float *scores) {
    int64_t dim = args->shape.index_dim, n_heads = args->shape.index_n_heads;
    const float *query = args->index_q + token * n_heads * dim;
    dot_weights_t keys = {.data = args->cache.index_keys, .dtype = DTYPE_F32, .columns = dim};
    float products[GROUP_HEADS][GROUP_BLOCKS];
    memset(scores + first, 0, (size_t)n_blocks * sizeof *scores);
    for (int64_t head = 0; head < n_heads; head += GROUP_HEADS) {
        const float *x[GROUP_HEADS];
        float *y[GROUP_HEADS];
        int64_t n = 0;
        for (; n < GROUP_HEADS && head + n < n_heads; n++) {
            x[n] = query + (head + n) * dim;
            y[n] = products[n];
        }
        dot_rows(&keys, first, n_blocks, x, n, y);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t b = 0; b < n_blocks; b++)
                scores[first + b] += products[i][b] > 0.0f ? products[i][b] : 0.0f;
        }
    }
    float scale = 1.0f / sqrtf((float)dim);
    for (int64_t b = 0; b < n_blocks; b++)
        scores[first + b] *= scale;
}

/* Scores are not negative, so their words rise with them. */
static uint32_t word_of(float score) {
    uint32_t word;
    memcpy(&word, &score, sizeof word);
    return word;
}

/* The word of the rank-th largest score, byte by byte from the top: of the scores that share the bytes found so far,
 * count how many have each next byte. `*n_equal` is how many of that score are among the `rank` largest. */
static uint32_t threshold(const float *scores, int64_t n, int64_t rank, int64_t *n_equal) {
    uint32_t found = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t word = word_of(scores[i]);
            counts[word >> shift & 0xFF] += (word & mask) == found;
        }
        uint32_t byte = 0xFF;
        while (counts[byte] < rank)
            rank -= counts[byte--];
        found |= byte << shift;
        mask |= 0xFFu << shift;
    }
    *n_equal = rank;
    return found;
}

static void select_blocks(const qsa_select_args_t *args, int64_t token, const float *scores) {
    int64_t n = n_complete(args, token), n_select = args->shape.n_select;
    int32_t *blocks = args->blocks + token * n_select;
    if (n <= n_select) {
        for (int64_t b = 0; b < n; b++)
            blocks[b] = (int32_t)b;
        args->n_blocks[token] = (int32_t)n;
        return;
    }
    int64_t n_equal, n_taken = 0;
    uint32_t cut = threshold(scores, n, n_select, &n_equal);
    for (int64_t b = 0; b < n; b++) {
        uint32_t word = word_of(scores[b]);
        if (word > cut || (word == cut && n_equal-- > 0)) blocks[n_taken++] = (int32_t)b;
    }
    args->n_blocks[token] = (int32_t)n_taken;
}

size_t qsa_select_workspace_bytes(const qsa_select_args_t *args) {
    int64_t n_tokens = args->n_tokens < GROUP_TOKENS ? args->n_tokens : GROUP_TOKENS;
    arena_t arena = {0};
    arena_floats(&arena, n_tokens * (args->cache.capacity / args->shape.ratio));
    return arena.used;
}

status_t qsa_select_cpu(const qsa_select_args_t *args) {
    int64_t n_scores = args->cache.capacity / args->shape.ratio; /* per query */
    float *scores = (float *)args->workspace;
    int64_t work = args->shape.index_n_heads * args->shape.index_dim;
    for (int64_t first = 0; first < args->n_tokens; first += GROUP_TOKENS) {
        int64_t end = first + GROUP_TOKENS < args->n_tokens ? first + GROUP_TOKENS : args->n_tokens;
        int64_t most = n_complete(args, end - 1);
        /* Where every complete block is taken there is nothing to compare. */
        int64_t n_scored = most > args->shape.n_select ? most : 0;
#pragma omp parallel for if ((end - first) * n_scored * work >= PARALLEL_MIN_WORK)
        for (int64_t block = 0; block < n_scored; block += GROUP_BLOCKS) {
            for (int64_t token = first; token < end; token++) {
                int64_t n = n_complete(args, token) - block;
                if (n > GROUP_BLOCKS) n = GROUP_BLOCKS;
                if (n > 0) score_blocks(args, token, block, n, scores + (token - first) * n_scores);
            }
        }
#pragma omp parallel for if ((end - first) * n_scored >= PARALLEL_MIN_WORK)
        for (int64_t token = first; token < end; token++)
            select_blocks(args, token, scores + (token - first) * n_scores);
    }
    return STATUS_OK;
}
