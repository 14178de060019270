/* Orders of summation: products as in common/dot.h; the softmax's sum has its 16 partial sums over visible tokens by
 * rising position; values are added by rising position. All depend on what the query sees alone. */

#include <math.h>

#include "base/arena.h"
#include "common/activation.h"
#include "common/dot.h"
#include "common/parallel.h"
#include "common/vector.h"
#include "qsa/qsa.h"

/* Queries in work at once; each has room for its scores. */
#define GROUP_TOKENS 16

/* Query heads that share one read of a key or value. */
#define GROUP_HEADS 4

/* The tokens that a query sees, as runs of consecutive positions. */
typedef struct run {
    int64_t first, n;
} run_t;

/* Most tokens that one query sees: the selected blocks and an incomplete one. */
static int64_t most_visible(const qsa_attend_args_t *args) {
    int64_t most = args->shape.n_select * args->shape.ratio + args->shape.ratio - 1;
    return most < args->cache.capacity ? most : args->cache.capacity;
}

typedef struct workspace {
    float *scores; /* [GROUP_TOKENS, n_heads, most_visible] */
    run_t *runs;   /* [GROUP_TOKENS, n_select + 1] */
} workspace_t;

static workspace_t lay_out(const qsa_attend_args_t *args, arena_t *arena) {
    int64_t n_tokens = args->n_tokens < GROUP_TOKENS ? args->n_tokens : GROUP_TOKENS;
    return (workspace_t){
        .scores = arena_floats(arena, n_tokens * args->shape.n_heads * most_visible(args)),
        .runs = arena_take(arena, n_tokens * (args->shape.n_select + 1), sizeof(run_t)),
    };
}

size_t qsa_attend_workspace_bytes(const qsa_attend_args_t *args) {
    arena_t arena = {0};
    lay_out(args, &arena);
    return arena.used;
}

/* Selected blocks, then the tail; neighbours are joined. Returns the number of runs. */
static int64_t list_runs(const qsa_attend_args_t *args, int64_t token, run_t *runs) {
    int64_t ratio = args->shape.ratio, n_seen = *args->start_pos + token + 1;
    const int32_t *blocks = args->blocks + token * args->shape.n_select;
    int64_t n_runs = 0, n_blocks = args->n_blocks[token];
    for (int64_t i = 0; i <= n_blocks; i++) {
        run_t run = {.first = n_seen / ratio * ratio, .n = n_seen % ratio};
        if (i < n_blocks) run = (run_t){.first = blocks[i] * ratio, .n = ratio};
        if (n_runs > 0 && runs[n_runs - 1].first + runs[n_runs - 1].n == run.first)
            runs[n_runs - 1].n += run.n;
        else if (run.n > 0)
            runs[n_runs++] = run;
    }
    return n_runs;
}

/* y[h] = sum over the visible tokens of e[h] * value, for n_heads <= GROUP_HEADS heads and n <= VECTOR_WIDTH dimensions
 * from `values` on. */
VECTOR_INLINE void sum_values(const run_t *runs, int64_t n_runs, const float *values, int64_t dim, const float *e,
                              int64_t e_stride, int n_heads, int64_t n, float *y) {
    vector_t sums[GROUP_HEADS] = {{0}};
    for (int64_t r = 0; r < n_runs; r++) {
        for (int64_t i = 0; i < runs[r].n; i++, e++) {
            vector_t value = vector_load_first(values + (runs[r].first + i) * dim, n);
            for (int h = 0; h < n_heads; h++)
                sums[h] += value * e[h * e_stride];
        }
    }
    for (int h = 0; h < n_heads; h++)
        vector_store_first(y + h * dim, sums[h], n);
}

/* The query heads `head` ... `head` + n_heads - 1 of one token; they read one KV head. */
static void attend(const qsa_attend_args_t *args, int64_t token, int64_t head, int n_heads, const run_t *runs,
                   int64_t n_runs, float *scores) {
    int64_t dim = args->shape.head_dim, most = most_visible(args);
    int64_t kv_head = head / (args->shape.n_heads / args->shape.n_kv_heads);
    const float *values = args->cache.v + kv_head * args->cache.capacity * dim;
    dot_weights_t keys = {
        .data = args->cache.k + kv_head * args->cache.capacity * dim, .dtype = DTYPE_F32, .columns = dim};
    int64_t at = (token * args->shape.n_heads + head) * dim;
    float scale = 1.0f / sqrtf((float)dim), sums[GROUP_HEADS];

    int64_t n_visible = 0;
    for (int64_t r = 0; r < n_runs; r++) {
        const float *x[GROUP_HEADS];
        float *y[GROUP_HEADS];
        for (int h = 0; h < n_heads; h++) {
            x[h] = args->q + at + h * dim;
            y[h] = scores + h * most + n_visible;
        }
        dot_rows(&keys, runs[r].first, runs[r].n, x, n_heads, y);
        n_visible += runs[r].n;
    }
    for (int h = 0; h < n_heads; h++) {
        float *s = scores + h * most;
        for (int64_t i = 0; i < n_visible; i++)
            s[i] *= scale;
        sums[h] = softmax_exp(s, n_visible, s);
    }

    float *y = args->y + at;
    for (int64_t d = 0; d < dim; d += VECTOR_WIDTH) {
        if (n_heads == GROUP_HEADS && d + VECTOR_WIDTH <= dim)
            sum_values(runs, n_runs, values + d, dim, scores, most, GROUP_HEADS, VECTOR_WIDTH, y + d);
        else
            sum_values(runs, n_runs, values + d, dim, scores, most, n_heads, dim - d, y + d);
    }
    for (int h = 0; h < n_heads; h++) {
        float gates[VECTOR_WIDTH];
        for (int64_t d = 0; d < dim; d += VECTOR_WIDTH) {
            int64_t n = dim - d < VECTOR_WIDTH ? dim - d : VECTOR_WIDTH;
            sigmoid(args->gate + at + h * dim + d, n, gates);
            for (int64_t i = 0; i < n; i++)
                y[h * dim + d + i] = y[h * dim + d + i] / sums[h] * gates[i];
        }
    }
}

status_t qsa_attend_cpu(const qsa_attend_args_t *args) {
    workspace_t work = lay_out(args, &(arena_t){.base = args->workspace});
    int64_t n_heads = args->shape.n_heads, most = most_visible(args), max_runs = args->shape.n_select + 1;
    int64_t shared = n_heads / args->shape.n_kv_heads; /* query heads of one KV head */
    int64_t per_kv_head = (shared + GROUP_HEADS - 1) / GROUP_HEADS;
    int64_t n_tasks = args->shape.n_kv_heads * per_kv_head;
    for (int64_t first = 0; first < args->n_tokens; first += GROUP_TOKENS) {
        int64_t left = args->n_tokens - first, n_tokens = left < GROUP_TOKENS ? left : GROUP_TOKENS;
        int64_t n_runs[GROUP_TOKENS];
        for (int64_t t = 0; t < n_tokens; t++)
            n_runs[t] = list_runs(args, first + t, work.runs + t * max_runs);

        int64_t n_seen = *args->start_pos + first + n_tokens;
        int64_t n_work = n_tokens * n_heads * args->shape.head_dim * (n_seen < most ? n_seen : most);
#pragma omp parallel for collapse(2) if (n_work >= PARALLEL_MIN_WORK)
        for (int64_t t = 0; t < n_tokens; t++) {
            for (int64_t task = 0; task < n_tasks; task++) {
                int64_t in_group = task % per_kv_head * GROUP_HEADS;
                int64_t head = task / per_kv_head * shared + in_group;
                int64_t n = shared - in_group < GROUP_HEADS ? shared - in_group : GROUP_HEADS;
                attend(args, first + t, head, (int)n, work.runs + t * max_runs, n_runs[t],
                       work.scores + (t * n_heads + head) * most);
            }
        }
    }
    return STATUS_OK;
}
