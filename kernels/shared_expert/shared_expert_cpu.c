/* Orders of summation: common/dot.h. Tokens go through in groups, so that the workspace does not grow with the prompt.
 */

#include "shared_expert/shared_expert.h"

#include "base/arena.h"
#include "common/activation.h"
#include "common/parallel.h"
#include "linear/linear.h"

typedef struct workspace {
    float *gate_up; /* [group, 2 * intermediate] */
    float *act;     /* [group, intermediate] */
    float *down;    /* [group, hidden_size] */
    int64_t group;  /* tokens worked on together */
} workspace_t;

static workspace_t lay_out(const shared_expert_args_t *args, arena_t *arena) {
    int64_t group = args->n_tokens < PARALLEL_TOKENS ? args->n_tokens : PARALLEL_TOKENS;
    int64_t intermediate = args->down.columns;
    return (workspace_t){
        .gate_up = arena_floats(arena, group * 2 * intermediate),
        .act = arena_floats(arena, group * intermediate),
        .down = arena_floats(arena, group * args->down.rows),
        .group = group,
    };
}

size_t shared_expert_workspace_bytes(const shared_expert_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

static status_t add_group(const shared_expert_args_t *args, const workspace_t *work, int64_t first, int64_t n_tokens) {
    int64_t n = args->down.rows, intermediate = args->down.columns;
    TRY(linear_cpu(
        &(linear_args_t){.n_tokens = n_tokens, .weight = args->gate_up, .x = args->u + first * n, .y = work->gate_up}));
    for (int64_t t = 0; t < n_tokens; t++) {
        const float *gate = work->gate_up + t * 2 * intermediate;
        silu_multiply(gate, 1.0f, gate + intermediate, 1.0f, intermediate, work->act + t * intermediate);
    }
    TRY(linear_cpu(&(linear_args_t){.n_tokens = n_tokens, .weight = args->down, .x = work->act, .y = work->down}));
    for (int64_t t = 0; t < n_tokens; t++) {
        float shared_gate = args->shared_gate[first + t];
        float *o = args->o + (first + t) * n;
        for (int64_t i = 0; i < n; i++)
            o[i] += shared_gate * work->down[t * n + i];
    }
    return STATUS_OK;
}

status_t shared_expert_cpu(const shared_expert_args_t *args) {
    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    for (int64_t first = 0; first < args->n_tokens; first += work.group) {
        int64_t left = args->n_tokens - first;
        TRY(add_group(args, &work, first, left < work.group ? left : work.group));
    }
    return STATUS_OK;
}
