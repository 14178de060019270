/* Orders of summation: norms and projections as in common/dot.h; the mean over streams from stream 0 up. Tokens go
 * through in groups, so that the workspace does not grow with the prompt. */

#include "gr/gr.h"

#include "base/arena.h"
#include "common/activation.h"
#include "common/norm.h"
#include "common/parallel.h"
#include "linear/linear.h"

typedef struct workspace {
    float *z;      /* [group, hc_count * hidden_size], normed streams */
    float *gate;   /* [group, hc_count * hidden_size] */
    float *a;      /* [group, hc_lowrank] */
    int64_t group; /* tokens worked on together */
} workspace_t;

static workspace_t lay_out(const gr_mix_args_t *args, arena_t *arena) {
    int64_t group = args->n_tokens < PARALLEL_TOKENS ? args->n_tokens : PARALLEL_TOKENS;
    int64_t wide = args->hc_count * args->hidden_size;
    return (workspace_t){
        .z = arena_floats(arena, group * wide),
        .gate = arena_floats(arena, group * wide),
        .a = arena_floats(arena, group * args->down.rows),
        .group = group,
    };
}

size_t gr_mix_workspace_bytes(const gr_mix_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

/* u[i] = mean over the streams of gate * z. */
static void mean_of_gated(const float *gate, const float *z, int64_t n_streams, int64_t n, float *u) {
    for (int64_t i = 0; i < n; i++)
        u[i] = gate[i] * z[i];
    for (int64_t s = 1; s < n_streams; s++) {
        for (int64_t i = 0; i < n; i++)
            u[i] += gate[s * n + i] * z[s * n + i];
    }
    for (int64_t i = 0; i < n; i++)
        u[i] /= (float)n_streams;
}

static status_t mix_group(const gr_mix_args_t *args, const workspace_t *work, int64_t first, int64_t n_tokens) {
    int64_t n = args->hidden_size, S = args->hc_count, wide = S * n, lowrank = args->down.rows;
#pragma omp parallel for collapse(2) if (n_tokens * wide >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t s = 0; s < S; s++)
            rmsnorm_one_plus(args->h + (first + t) * wide + s * n, args->hc_norm + s * n, n, args->rms_norm_eps,
                             work->z + t * wide + s * n);
    }

    TRY(linear_cpu(&(linear_args_t){.n_tokens = n_tokens, .weight = args->down, .x = work->z, .y = work->a}));
    for (int64_t i = 0; i < n_tokens * lowrank; i++)
        work->a[i] /= (float)S;
    silu(work->a, n_tokens * lowrank, work->a);
    TRY(linear_cpu(&(linear_args_t){.n_tokens = n_tokens, .weight = args->up, .x = work->a, .y = work->gate}));

#pragma omp parallel for if (n_tokens * wide >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < n_tokens; t++) {
        float *gate = work->gate + t * wide;
        sigmoid(gate, wide, gate);
        mean_of_gated(gate, work->z + t * wide, S, n, args->u + (first + t) * n);
    }

    if (!args->block_inject.data) return STATUS_OK;
    float *inject = args->inject + first * S;
    TRY(linear_cpu(&(linear_args_t){.n_tokens = n_tokens, .weight = args->block_inject, .x = work->z, .y = inject}));
    for (int64_t i = 0; i < n_tokens * S; i++)
        inject[i] /= (float)S;
    sigmoid(inject, n_tokens * S, inject);
    for (int64_t i = 0; i < n_tokens * S; i++)
        inject[i] *= 2.0f;
    return STATUS_OK;
}

status_t gr_mix_cpu(const gr_mix_args_t *args) {
    if (args->inject_before)
        TRY(gr_inject_cpu(&(gr_inject_args_t){.n_tokens = args->n_tokens,
                                              .hc_count = args->hc_count,
                                              .hidden_size = args->hidden_size,
                                              .inject = args->inject_before,
                                              .o = args->o,
                                              .h = args->h}));
    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    for (int64_t first = 0; first < args->n_tokens; first += work.group) {
        int64_t left = args->n_tokens - first;
        TRY(mix_group(args, &work, first, left < work.group ? left : work.group));
    }
    return STATUS_OK;
}

status_t gr_inject_cpu(const gr_inject_args_t *args) {
    int64_t n = args->hidden_size, S = args->hc_count;
#pragma omp parallel for if (args->n_tokens * S * n >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < args->n_tokens; t++) {
        const float *o = args->o + t * n;
        for (int64_t s = 0; s < S; s++) {
            float weight = args->inject[t * S + s];
            float *h = args->h + (t * S + s) * n;
            for (int64_t i = 0; i < n; i++)
                h[i] += weight * o[i];
        }
    }
    return STATUS_OK;
}
