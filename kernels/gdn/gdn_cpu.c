/* Orders of summation: convolution taps from the oldest; norms as in common/dot.h; S^T k and S^T q have four partial
 * sums, i % 4 over key dimensions i, added in pairs. None depends on the chunk.
 *
 * Columns of S (value dimensions) never mix, so each vector of columns runs through the tokens on its own: it stays in
 * the nearest cache, and threads share nothing. S *= exp(g) is not a pass of its own: S^T k is scaled instead, and S as
 * it is written back. */

#include "gdn/gdn.h"

#include <math.h>

#include "base/arena.h"
#include "common/activation.h"
#include "common/conv.h"
#include "common/dot.h"
#include "common/norm.h"
#include "common/parallel.h"
#include "common/vector.h"

typedef struct workspace {
    conv_t conv;
    float *taps;   /* [conv_kernel, n_channels] */
    float *mixed;  /* [group, n_channels]: q | k | v after convolution, q and k normalised */
    float *decay;  /* [group, n_value_heads]: exp(g) */
    float *beta;   /* [group, n_value_heads] */
    int64_t group; /* tokens worked on together */
} workspace_t;

static int64_t n_channels(const gdn_core_args_t *args) {
    return 2 * args->n_key_heads * args->key_dim + args->n_value_heads * args->value_dim;
}

static workspace_t lay_out(const gdn_core_args_t *args, arena_t *arena) {
    int64_t channels = n_channels(args);
    int64_t group = args->n_tokens < PARALLEL_TOKENS ? args->n_tokens : PARALLEL_TOKENS;
    workspace_t work = {.group = group};
    work.taps = arena_floats(arena, args->conv_kernel * channels);
    work.conv = (conv_t){.n_channels = channels, .kernel = args->conv_kernel, .dilation = 1, .taps = work.taps};
    work.conv.window = arena_floats(arena, (conv_state_rows(&work.conv) + group) * channels);
    work.mixed = arena_floats(arena, group * channels);
    work.decay = arena_floats(arena, group * args->n_value_heads);
    work.beta = arena_floats(arena, group * args->n_value_heads);
    return work;
}

size_t gdn_core_workspace_bytes(const gdn_core_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

/* From the projected rows to what the recurrence takes. */
static void prepare(const gdn_core_args_t *args, const workspace_t *work, int64_t first, int64_t n_tokens) {
    int64_t channels = n_channels(args), n_heads = args->n_value_heads;
    int64_t keys = args->n_key_heads * args->key_dim;
    const float *projected = args->projected + first * args->projected_stride;

    conv_load_state(&work->conv, args->conv_state);
    float *inputs = work->conv.window + conv_state_rows(&work->conv) * channels;
    for (int64_t t = 0; t < n_tokens; t++)
        memcpy(inputs + t * channels, projected + t * args->projected_stride, (size_t)channels * sizeof *inputs);
    conv_silu(&work->conv, n_tokens, work->mixed);
    conv_save_state(&work->conv, n_tokens, args->conv_state);

#pragma omp parallel for if (n_tokens * keys >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        float *q = work->mixed + t * channels;
        for (int64_t head = 0; head < args->n_key_heads; head++) {
            l2norm(q + head * args->key_dim, args->key_dim, 1.0f / sqrtf((float)args->key_dim));
            l2norm(q + keys + head * args->key_dim, args->key_dim, 1.0f);
        }
        const float *b = projected + t * args->projected_stride + channels + n_heads * args->value_dim;
        const float *a = b + n_heads;
        sigmoid(b, n_heads, work->beta + t * n_heads);
        for (int64_t head = 0; head < n_heads; head++) {
            float g = -expf(args->A_log[head]) * softplus(a[head] + args->dt_bias[head]);
            work->decay[t * n_heads + head] = expf(g);
        }
    }
}

/* One token on n columns of one head's S. */
VECTOR_INLINE void step(float *S, int64_t row_stride, int64_t n, int64_t key_dim, const float *q, const float *k,
                        const float *v, float decay, float beta, float *o) {
    vector_t sums[4] = {{0}};
    int64_t whole = key_dim / 4 * 4;
    for (int64_t i = 0; i < whole; i += 4) {
        for (int j = 0; j < 4; j++)
            sums[j] += vector_load_first(S + (i + j) * row_stride, n) * k[i + j];
    }
    for (int64_t i = whole; i < key_dim; i++)
        sums[i - whole] += vector_load_first(S + i * row_stride, n) * k[i];
    vector_t remembered = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * decay;
    vector_t d = (vector_load_first(v, n) - remembered) * beta;

    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < whole; i += 4) {
        for (int j = 0; j < 4; j++) {
            float *row = S + (i + j) * row_stride;
            vector_t updated = vector_load_first(row, n) * decay + d * k[i + j];
            vector_store_first(row, updated, n);
            sums[j] += updated * q[i + j];
        }
    }
    for (int64_t i = whole; i < key_dim; i++) {
        float *row = S + i * row_stride;
        vector_t updated = vector_load_first(row, n) * decay + d * k[i];
        vector_store_first(row, updated, n);
        sums[i - whole] += updated * q[i];
    }
    vector_store_first(o, (sums[0] + sums[1]) + (sums[2] + sums[3]), n);
}

/* All tokens of the group on the columns from `column` on, as many as a vector holds or are left. */
static void recur(const gdn_core_args_t *args, const workspace_t *work, int64_t first, int64_t n_tokens, int64_t head,
                  int64_t column) {
    int64_t channels = n_channels(args), key_dim = args->key_dim, value_dim = args->value_dim;
    int64_t keys = args->n_key_heads * key_dim, n_heads = args->n_value_heads;
    int64_t key_head = head / (n_heads / args->n_key_heads);
    float *S = args->state + head * key_dim * value_dim + column;
    int64_t n = value_dim - column;
    for (int64_t t = 0; t < n_tokens; t++) {
        const float *q = work->mixed + t * channels + key_head * key_dim;
        const float *v = work->mixed + t * channels + 2 * keys + head * value_dim + column;
        float *o = args->y + ((first + t) * n_heads + head) * value_dim + column;
        float decay = work->decay[t * n_heads + head], beta = work->beta[t * n_heads + head];
        if (n >= VECTOR_WIDTH)
            step(S, value_dim, VECTOR_WIDTH, key_dim, q, q + keys, v, decay, beta, o);
        else
            step(S, value_dim, n, key_dim, q, q + keys, v, decay, beta, o);
    }
}

/* y = o / rms(o) * norm * gate(z), in place. */
static void norm_and_gate(const gdn_core_args_t *args, int64_t token, float *gate_buffer) {
    int64_t n_heads = args->n_value_heads, n = args->value_dim;
    const float *z = args->projected + token * args->projected_stride + n_channels(args);
    (args->silu_gate ? silu : sigmoid)(z, n_heads * n, gate_buffer);
    for (int64_t head = 0; head < n_heads; head++) {
        float *y = args->y + (token * n_heads + head) * n;
        const float *gate = gate_buffer + head * n;
        float scale = 1.0f / sqrtf(dot_f32(y, y, n) / (float)n + args->rms_norm_eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = y[i] * scale * args->norm[i] * gate[i];
    }
}

status_t gdn_core_cpu(const gdn_core_args_t *args) {
    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    conv_transpose(args->conv, n_channels(args), args->conv_kernel, work.taps);
    for (int64_t first = 0; first < args->n_tokens; first += work.group) {
        int64_t left = args->n_tokens - first;
        int64_t n_tokens = left < work.group ? left : work.group;
        prepare(args, &work, first, n_tokens);

        int64_t state_items = args->n_value_heads * args->key_dim * args->value_dim;
#pragma omp parallel for collapse(2) if (n_tokens * state_items * 4 >= PARALLEL_MIN_WORK)
        for (int64_t head = 0; head < args->n_value_heads; head++) {
            for (int64_t column = 0; column < args->value_dim; column += VECTOR_WIDTH)
                recur(args, &work, first, n_tokens, head, column);
        }

        int64_t n_values = args->n_value_heads * args->value_dim;
#pragma omp parallel for if (n_tokens * n_values >= PARALLEL_MIN_WORK)
        for (int64_t t = 0; t < n_tokens; t++)
            norm_and_gate(args, first + t, work.mixed + t * n_channels(args));
    }
    return STATUS_OK;
}
