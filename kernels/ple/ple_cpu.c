/* Orders of summation: norms and key . query as in common/dot.h; convolution taps from the oldest. Tokens go through in
 * groups, so that the workspace does not grow with the prompt. */

#include "ple/ple.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "common/activation.h"
#include "common/conv.h"
#include "common/dot.h"
#include "common/norm.h"
#include "common/parallel.h"
#include "common/widen.h"

status_t ple_gather_cpu(const ple_gather_args_t *args) {
    int64_t width = args->table.columns;
    for (int64_t i = 0; i < args->n_tokens * args->n_heads; i++) {
        float *e = args->e + i * width;
        int64_t row = args->rows[i] - args->first_row;
        if (row < 0 || row >= args->table.rows) {
            memset(e, 0, (size_t)width * sizeof *e);
            continue;
        }
        widen_row(&args->table, row, e);
        for (int64_t c = 0; c < width; c++)
            e[c] *= args->table_scale;
    }
    return STATUS_OK;
}

typedef struct workspace {
    conv_t conv;
    float *taps;       /* [conv_kernel, hc_count * hidden_size] */
    float *convolved;  /* [group, hc_count * hidden_size] */
    float *value_gate; /* [group, hc_count]: sigmoid(c) */
    int64_t group;     /* tokens worked on together */
} workspace_t;

static workspace_t lay_out(const ple_mix_args_t *args, arena_t *arena) {
    int64_t channels = args->hc_count * args->hidden_size;
    int64_t group = args->n_tokens < PARALLEL_TOKENS ? args->n_tokens : PARALLEL_TOKENS;
    workspace_t work = {.group = group};
    work.taps = arena_floats(arena, args->conv_kernel * channels);
    work.conv =
        (conv_t){.n_channels = channels, .kernel = args->conv_kernel, .dilation = args->dilation, .taps = work.taps};
    work.conv.window = arena_floats(arena, (conv_state_rows(&work.conv) + group) * channels);
    work.convolved = arena_floats(arena, group * channels);
    work.value_gate = arena_floats(arena, group * args->hc_count);
    return work;
}

size_t ple_mix_workspace_bytes(const ple_mix_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

/* sigmoid(sign(c) sqrt(max(|c|, 1e-6))), c = key . query / sqrt(n); key and query are normed already. */
static float gate_of(const float *key, const float *query, int64_t n) {
    float c = dot_f32(key, query, n) / sqrtf((float)n);
    float root = sqrtf(fmaxf(fabsf(c), 1e-6f));
    float signed_root = c > 0 ? root : c < 0 ? -root : c; /* sign(0) is 0, and a NaN stays one */
    sigmoid(&signed_root, 1, &signed_root);
    return signed_root;
}

/* One stream of one token: its gate, and its row of the convolution's window. The row serves as room for the normed
 * key, and `room` for the normed query. */
static float gate_stream(const ple_mix_args_t *args, int64_t token, int64_t s, float *row, float *room) {
    int64_t n = args->hidden_size, S = args->hc_count;
    const float *key = args->projected + token * (S + 1) * n + s * n;
    const float *value = args->projected + token * (S + 1) * n + S * n;
    rmsnorm_one_plus(key, args->norm_key + s * n, n, args->rms_norm_eps, row);
    rmsnorm_one_plus(args->h + (token * S + s) * n, args->norm_query + s * n, n, args->rms_norm_eps, room);
    float gate = gate_of(row, room, n);
    for (int64_t i = 0; i < n; i++)
        row[i] = gate * value[i];
    rmsnorm_one_plus(row, args->norm_conv + s * n, n, args->rms_norm_eps, row);
    return gate;
}

static void mix_group(const ple_mix_args_t *args, const workspace_t *work, int64_t first, int64_t n_tokens) {
    int64_t n = args->hidden_size, S = args->hc_count, channels = S * n;
    conv_load_state(&work->conv, args->conv_state);
    float *inputs = work->conv.window + conv_state_rows(&work->conv) * channels;
#pragma omp parallel for collapse(2) if (n_tokens * channels >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t s = 0; s < S; s++) {
            int64_t at = t * channels + s * n;
            work->value_gate[t * S + s] = gate_stream(args, first + t, s, inputs + at, work->convolved + at);
        }
    }

    conv_silu(&work->conv, n_tokens, work->convolved);
    conv_save_state(&work->conv, n_tokens, args->conv_state);

#pragma omp parallel for collapse(2) if (n_tokens * channels >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t s = 0; s < S; s++) {
            const float *value = args->projected + (first + t) * (S + 1) * n + S * n;
            const float *convolved = work->convolved + t * channels + s * n;
            float *h = args->h + ((first + t) * S + s) * n;
            float gate = work->value_gate[t * S + s];
            for (int64_t i = 0; i < n; i++)
                h[i] += gate * value[i] + convolved[i];
        }
    }
}

status_t ple_mix_cpu(const ple_mix_args_t *args) {
    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    conv_transpose(args->conv, args->hc_count * args->hidden_size, args->conv_kernel, work.taps);
    for (int64_t first = 0; first < args->n_tokens; first += work.group) {
        int64_t left = args->n_tokens - first;
        mix_group(args, &work, first, left < work.group ? left : work.group);
    }
    return STATUS_OK;
}
