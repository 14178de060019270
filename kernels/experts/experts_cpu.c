/* Pairs (token, chosen expert) are sorted by expert, so that each expert's weights are read once for all its tokens.
 * Order of summation: rows as in common/dot.h, scale_2 applied to the finished sum; experts of a token in the order k.
 */

#include "experts/experts.h"

#include <string.h>

#include "base/arena.h"
#include "common/activation.h"
#include "common/dot.h"
#include "common/parallel.h"

typedef struct workspace {
    float *gate_up;   /* [n_pairs, 2 * intermediate]; silu(gate) * up comes to stand in the gate half */
    float *down;      /* [n_pairs, hidden_size] */
    const float **x;  /* [n_pairs], sorted: inputs of the running projection */
    float **y;        /* [n_pairs], sorted: its outputs */
    int64_t *first;   /* [n_experts + 1]: expert e has sorted places first[e] ... first[e + 1] - 1 */
    int32_t *pairs;   /* [n_pairs], sorted: pair = token * top_k + k */
    int32_t *active;  /* [n_experts]: experts that have pairs */
    int32_t n_active; /* how many */
} workspace_t;

static workspace_t lay_out(const experts_args_t *args, arena_t *arena) {
    int64_t n_pairs = args->n_tokens * args->top_k;
    return (workspace_t){
        .gate_up = arena_floats(arena, n_pairs * 2 * args->intermediate),
        .down = arena_floats(arena, n_pairs * args->hidden_size),
        .x = arena_take(arena, n_pairs, sizeof(float *)),
        .y = arena_take(arena, n_pairs, sizeof(float *)),
        .first = arena_take(arena, args->n_experts + 1, sizeof(int64_t)),
        .pairs = arena_take(arena, n_pairs, sizeof(int32_t)),
        .active = arena_take(arena, args->n_experts, sizeof(int32_t)),
    };
}

size_t experts_workspace_bytes(const experts_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

/* Counting sort; within an expert by rising pair. */
static void sort_pairs(const experts_args_t *args, workspace_t *work) {
    int64_t n_pairs = args->n_tokens * args->top_k;
    int64_t *first = work->first;
    memset(first, 0, (size_t)(args->n_experts + 1) * sizeof *first);
    for (int64_t p = 0; p < n_pairs; p++)
        first[args->experts[p] + 1]++;
    work->n_active = 0;
    for (int64_t e = 0; e < args->n_experts; e++) {
        if (first[e + 1] > 0) work->active[work->n_active++] = (int32_t)e;
        first[e + 1] += first[e];
    }
    /* Placing moves each first[e] up to the next expert's; moving them back by one place restores them. */
    for (int64_t p = 0; p < n_pairs; p++)
        work->pairs[first[args->experts[p]]++] = (int32_t)p;
    memmove(first + 1, first, (size_t)args->n_experts * sizeof *first);
    first[0] = 0;
}

/* y = weights of its expert times x, for all pairs; an expert has n_rows rows. */
static void project(const experts_args_t *args, const workspace_t *work, const dot_weights_t *weights, int64_t n_rows) {
    int64_t n_tasks = (n_rows + PARALLEL_ROWS - 1) / PARALLEL_ROWS;
    int64_t n_pairs = args->n_tokens * args->top_k;
#pragma omp parallel for collapse(2) schedule(dynamic) if (n_pairs * n_rows * weights->columns >= PARALLEL_MIN_WORK)
    for (int32_t i = 0; i < work->n_active; i++) {
        for (int64_t task = 0; task < n_tasks; task++) {
            int64_t expert = work->active[i], row = task * PARALLEL_ROWS;
            int64_t n = row + PARALLEL_ROWS <= n_rows ? PARALLEL_ROWS : n_rows - row;
            int64_t end = work->first[expert + 1];
            for (int64_t p = work->first[expert]; p < end; p += PARALLEL_TOKENS) {
                float *y[PARALLEL_TOKENS];
                int64_t n_x = p + PARALLEL_TOKENS <= end ? PARALLEL_TOKENS : end - p;
                for (int64_t t = 0; t < n_x; t++)
                    y[t] = work->y[p + t] + row;
                dot_rows(weights, expert * n_rows + row, n, work->x + p, n_x, y);
            }
        }
    }
}

static void activate(const experts_args_t *args, const workspace_t *work) {
    int64_t n_pairs = args->n_tokens * args->top_k, n = args->intermediate;
    const float *scale_2 = args->expert_weights.gate_up_scale_2;
#pragma omp parallel for if (n_pairs * n >= PARALLEL_MIN_WORK)
    for (int64_t p = 0; p < n_pairs; p++) {
        int64_t expert = args->experts[p];
        float *gate = work->gate_up + p * 2 * n;
        silu_multiply(gate, scale_2 ? scale_2[2 * expert] : 1.0f, gate + n, scale_2 ? scale_2[2 * expert + 1] : 1.0f, n,
                      gate);
    }
}

static void add_up(const experts_args_t *args, const workspace_t *work) {
    int64_t n = args->hidden_size, top_k = args->top_k;
    const float *scale_2 = args->expert_weights.down_scale_2;
#pragma omp parallel for if (args->n_tokens * top_k * n >= PARALLEL_MIN_WORK)
    for (int64_t t = 0; t < args->n_tokens; t++) {
        float *o = args->o + t * n;
        memset(o, 0, (size_t)n * sizeof *o);
        for (int64_t k = 0; k < top_k; k++) {
            int64_t pair = t * top_k + k;
            const float *down = work->down + pair * n;
            float weight = args->weights[pair], scale = scale_2 ? scale_2[args->experts[pair]] : 1.0f;
            for (int64_t i = 0; i < n; i++)
                o[i] += weight * (scale * down[i]);
        }
    }
}

status_t experts_cpu(const experts_args_t *args) {
    const expert_weights_t *w = &args->expert_weights;
    int64_t n_pairs = args->n_tokens * args->top_k, hidden = args->hidden_size, intermediate = args->intermediate;
    dot_weights_t gate_up = {w->gate_up_codes, w->gate_up_scales, DTYPE_U8, hidden};
    dot_weights_t down = {w->down_codes, w->down_scales, DTYPE_U8, intermediate};
    if (!w->gate_up_codes) {
        gate_up = (dot_weights_t){w->gate_up_f16, NULL, DTYPE_F16, hidden};
        down = (dot_weights_t){w->down_f16, NULL, DTYPE_F16, intermediate};
    }

    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    sort_pairs(args, &work);
    for (int64_t p = 0; p < n_pairs; p++) {
        work.x[p] = args->u + work.pairs[p] / args->top_k * hidden;
        work.y[p] = work.gate_up + (int64_t)work.pairs[p] * 2 * intermediate;
    }
    project(args, &work, &gate_up, 2 * intermediate);
    activate(args, &work);
    for (int64_t p = 0; p < n_pairs; p++) {
        work.x[p] = work.gate_up + (int64_t)work.pairs[p] * 2 * intermediate;
        work.y[p] = work.down + (int64_t)work.pairs[p] * hidden;
    }
    project(args, &work, &down, hidden);
    add_up(args, &work);
    return STATUS_OK;
}
