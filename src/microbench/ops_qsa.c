/* QSA attention between its projections, on a sequence that holds pos tokens before the call. */

#include <math.h>
#include <stdlib.h>

#include "microbench/ops.h"

enum { REFERENCE_TOKENS = 4 };

static qsa_shape_t shape_of(const microbench_t *bench) {
    const model_config_t *config = bench->config;
    int64_t ratio = config->indexer_compress_ratio, n_blocks = (bench->pos + bench->n_tokens + ratio - 1) / ratio;
    int64_t n_select = config->indexer_budget / ratio;
    return (qsa_shape_t){.n_heads = bench->local.n_heads,
                         .n_kv_heads = bench->local.n_kv_heads,
                         .head_dim = config->head_dim,
                         .rotary_dim = config->rotary_dim,
                         .index_n_heads = config->indexer_n_heads,
                         .index_dim = config->indexer_head_dim,
                         .ratio = ratio,
                         .n_select = n_select < n_blocks ? n_select : n_blocks};
}

static int64_t capacity_of(const microbench_t *bench, const qsa_shape_t *shape) {
    return (bench->pos + bench->n_tokens + shape->ratio - 1) / shape->ratio * shape->ratio;
}

/* Of the caches only those that the op at hand reads or writes. */
static status_t prepare_cache(microbench_t *bench, const qsa_shape_t *shape, bool has_kv, bool has_index,
                              qsa_cache_t *cache) {
    operands_t *operands = &bench->operands;
    qsa_cache_t made = {.capacity = capacity_of(bench, shape)};
    int64_t kv = shape->n_kv_heads * made.capacity * shape->head_dim;
    if (has_kv) TRY(operands_activations(operands, OPERAND_COLD, kv, 1.5, &made.k));
    if (has_kv) TRY(operands_activations(operands, OPERAND_COLD, kv, 1.5, &made.v));
    if (has_index)
        TRY(operands_activations(operands, OPERAND_COLD, made.capacity / shape->ratio * shape->index_dim, 1.5,
                                 &made.index_keys));
    if (has_index)
        TRY(operands_activations(operands, OPERAND_COLD, shape->ratio * shape->index_dim, 1.5, &made.raw_keys));
    *cache = made;
    return STATUS_OK;
}

static status_t prepare_start(microbench_t *bench, const int64_t **start_pos) {
    void *data;
    TRY(operands_upload(&bench->operands, OPERAND_WARM, DTYPE_I64, 1, &bench->pos, &data));
    *start_pos = data;
    return STATUS_OK;
}

static status_t output_activations(microbench_t *bench, int64_t n, activation_t **data) {
    void *made;
    TRY(operands_output(&bench->operands, (size_t)n * bench->backend->ops->activation_bytes, &made));
    *data = made;
    return STATUS_OK;
}

static status_t prepare_prepare(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens;
    qsa_prepare_args_t made = {.shape = shape_of(bench),
                               .n_tokens = N,
                               .rms_norm_eps = (float)config->rms_norm_eps,
                               .rope_theta = config->rope_theta,
                               .projected_stride = bench->local.qsa_projected};
    const qsa_shape_t *shape = &made.shape;
    activation_t *projected;
    float *norms[4];
    TRY(prepare_start(bench, &made.start_pos));
    TRY(operands_activations(operands, OPERAND_WARM, N * made.projected_stride, 1.5, &projected));
    for (int i = 0; i < 4; i++)
        TRY(operands_floats(operands, OPERAND_COLD, i < 2 ? shape->head_dim : shape->index_dim, 0.2, &norms[i]));
    TRY(prepare_cache(bench, shape, true, true, &made.cache));
    TRY(output_activations(bench, N * shape->n_heads * shape->head_dim, &made.q));
    TRY(output_activations(bench, N * shape->n_heads * shape->head_dim, &made.gate));
    TRY(output_activations(bench, N * shape->index_n_heads * shape->index_dim, &made.index_q));
    made.projected = projected;
    made.q_norm = norms[0];
    made.k_norm = norms[1];
    made.index_q_norm = norms[2];
    made.index_k_norm = norms[3];
    *(qsa_prepare_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_prepare(backend_t *backend, const void *args) { return backend->ops->qsa_prepare(backend, args); }

static void rotate(double *x, int64_t rotary_dim, double theta, int64_t position) {
    int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * pow(theta, -2.0 * (double)i / (double)rotary_dim);
        double a = x[i], b = x[i + half];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = b * cos(angle) + a * sin(angle);
    }
}

/* One vector normed and rotated against what the op left. */
static void compare_vector(const qsa_prepare_args_t *args, const double *in, const double *norm, int64_t n,
                           int64_t position, const double *got, double *room, microbench_error_t *error) {
    ops_norm(in, norm, n, args->rms_norm_eps, room);
    rotate(room, args->shape.rotary_dim, args->rope_theta, position);
    for (int64_t i = 0; i < n; i++)
        microbench_compare(got[i], room[i], error);
}

static void compare_copy(const double *got, const double *in, int64_t n, microbench_error_t *error) {
    for (int64_t i = 0; i < n; i++)
        error->is_wrong = error->is_wrong || got[i] != in[i];
}

static status_t reference_prepare(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const qsa_prepare_args_t *qsa = args;
    const qsa_shape_t *shape = &qsa->shape;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = qsa->n_tokens, dim = shape->head_dim, index_dim = shape->index_dim, heads = shape->n_heads;
    int64_t capacity = qsa->cache.capacity, kv = shape->n_kv_heads * capacity * dim;
    int64_t n_index = capacity / shape->ratio * index_dim, n_raw = shape->ratio * index_dim;
    int64_t width = (2 * heads + 2 * shape->n_kv_heads) * dim;
    const double *projected = ops_read(&arrays, qsa->projected, N * qsa->projected_stride);
    const double *q_norm = ops_read(&arrays, qsa->q_norm, dim), *k_norm = ops_read(&arrays, qsa->k_norm, dim);
    const double *index_q_norm = ops_read(&arrays, qsa->index_q_norm, index_dim);
    const double *index_k_norm = ops_read(&arrays, qsa->index_k_norm, index_dim);
    double *raw = ops_read(&arrays, qsa->cache.raw_keys, n_raw);
    const double *q = ops_download_activations(&arrays, qsa->q, N * heads * dim);
    const double *gate = ops_download_activations(&arrays, qsa->gate, N * heads * dim);
    const double *index_q = ops_download_activations(&arrays, qsa->index_q, N * shape->index_n_heads * index_dim);
    const double *k = ops_download_activations(&arrays, qsa->cache.k, kv);
    const double *v = ops_download_activations(&arrays, qsa->cache.v, kv);
    const double *index_keys = ops_download_activations(&arrays, qsa->cache.index_keys, n_index);
    microbench_error_t of_q = {0}, of_kv = {0}, of_index = {0};
    double *room = ops_zeros(&arrays, dim + index_dim), *mean = ops_zeros(&arrays, index_dim);
    for (int64_t t = 0; arrays.status == STATUS_OK && t < N; t++) {
        int64_t position = bench->pos + t, slot = position % shape->ratio, block = position / shape->ratio;
        const double *in = projected + t * qsa->projected_stride;
        for (int64_t head = t * heads; head < (t + 1) * heads; head++, in += 2 * dim) {
            compare_vector(qsa, in, q_norm, dim, position, q + head * dim, room, &of_q);
            compare_copy(gate + head * dim, in + dim, dim, error);
        }
        for (int64_t head = 0; head < shape->n_kv_heads; head++, in += dim)
            compare_vector(qsa, in, k_norm, dim, position, k + (head * capacity + position) * dim, room, &of_kv);
        for (int64_t head = 0; head < shape->n_kv_heads; head++, in += dim)
            compare_copy(v + (head * capacity + position) * dim, in, dim, error);
        for (int64_t head = 0; head < shape->index_n_heads; head++, in += index_dim)
            compare_vector(qsa, in, index_q_norm, index_dim, position,
                           index_q + (t * shape->index_n_heads + head) * index_dim, room, &of_index);
        for (int64_t i = 0; i < index_dim; i++)
            raw[slot * index_dim + i] =
                projected[t * qsa->projected_stride + width + shape->index_n_heads * index_dim + i];
        if (slot != shape->ratio - 1) continue;
        for (int64_t i = 0; i < index_dim; i++) {
            mean[i] = 0;
            for (int64_t j = 0; j < shape->ratio; j++)
                mean[i] += raw[j * index_dim + i] / (double)shape->ratio;
        }
        compare_vector(qsa, mean, index_k_norm, index_dim, block * shape->ratio, index_keys + block * index_dim, room,
                       &of_index);
    }
    microbench_take_worst(&of_q, error);
    microbench_take_worst(&of_kv, error);
    microbench_take_worst(&of_index, error);
    return ops_free(&arrays);
}

/* The projected row is read, and about as much written. */
static double bytes_prepare(const microbench_t *bench, const void *args) {
    const qsa_prepare_args_t *qsa = args;
    return 2.0 * (double)(qsa->n_tokens * qsa->projected_stride) * (double)bench->backend->ops->activation_bytes;
}

const microbench_op_t microbench_qsa_prepare = {.name = "qsa_prepare",
                                                .summary = "norms, rotary embedding and caches of QSA",
                                                .args_bytes = sizeof(qsa_prepare_args_t),
                                                .exists = ops_has_qsa,
                                                .prepare = prepare_prepare,
                                                .run = run_prepare,
                                                .reference = reference_prepare,
                                                .bytes = bytes_prepare};

static status_t prepare_select(microbench_t *bench, void *args) {
    qsa_select_args_t made = {.shape = shape_of(bench), .n_tokens = bench->n_tokens};
    const qsa_shape_t *shape = &made.shape;
    activation_t *index_q;
    void *blocks, *n_blocks;
    TRY(prepare_start(bench, &made.start_pos));
    TRY(operands_activations(&bench->operands, OPERAND_WARM, made.n_tokens * shape->index_n_heads * shape->index_dim,
                             1.5, &index_q));
    TRY(prepare_cache(bench, shape, false, true, &made.cache));
    TRY(operands_output(&bench->operands, (size_t)(made.n_tokens * shape->n_select) * sizeof(int32_t), &blocks));
    TRY(operands_output(&bench->operands, (size_t)made.n_tokens * sizeof(int32_t), &n_blocks));
    made.index_q = index_q;
    made.blocks = blocks;
    made.n_blocks = n_blocks;
    TRY(operands_output(&bench->operands, bench->backend->ops->qsa_select_workspace_bytes(&made), &made.workspace));
    *(qsa_select_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_select(backend_t *backend, const void *args) { return backend->ops->qsa_select(backend, args); }

static int falling(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a < b) - (a > b);
}

/* Nearly equal scores may change places: what is compared is the score of all that was selected, which must be valid.
 */
static void compare_selection(const double *scores, int64_t n, const double *blocks, int64_t n_got, int64_t n_wanted,
                              double *sorted, microbench_error_t *error) {
    double got = 0, best = 0;
    if (n_got != n_wanted) error->is_wrong = true;
    for (int64_t i = 0; i < n; i++)
        sorted[i] = scores[i];
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    for (int64_t i = 0; i < n_wanted; i++) {
        bool is_valid = blocks[i] >= 0 && blocks[i] < (double)n && (i == 0 || blocks[i] > blocks[i - 1]);
        if (!is_valid) error->is_wrong = true;
        got += is_valid ? scores[(int64_t)blocks[i]] : 0;
        best += sorted[i];
    }
    microbench_compare(got, best, error);
}

static status_t reference_select(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const qsa_select_args_t *qsa = args;
    const qsa_shape_t *shape = &qsa->shape;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = qsa->n_tokens, dim = shape->index_dim, heads = shape->index_n_heads;
    int64_t most = qsa->cache.capacity / shape->ratio;
    const double *index_q = ops_read(&arrays, qsa->index_q, N * heads * dim);
    const double *keys = ops_read(&arrays, qsa->cache.index_keys, most * dim);
    const double *blocks = ops_download(&arrays, qsa->blocks, DTYPE_I32, N * shape->n_select);
    const double *n_blocks = ops_download(&arrays, qsa->n_blocks, DTYPE_I32, N);
    double *scores = ops_zeros(&arrays, most), *sorted = ops_zeros(&arrays, most);
    for (int64_t t = 0; arrays.status == STATUS_OK && t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        int64_t n = (bench->pos + t + 1) / shape->ratio;
        for (int64_t b = 0; b < n; b++) {
            scores[b] = 0;
            for (int64_t head = 0; head < heads; head++)
                scores[b] += fmax(ops_dot(index_q + (t * heads + head) * dim, keys + b * dim, dim), 0.0);
        }
        compare_selection(scores, n, blocks + t * shape->n_select, (int64_t)n_blocks[t],
                          n < shape->n_select ? n : shape->n_select, sorted, error);
    }
    return ops_free(&arrays);
}

static double bytes_select(const microbench_t *bench, const void *args) {
    const qsa_select_args_t *qsa = args;
    const qsa_shape_t *shape = &qsa->shape;
    double keys = (double)(qsa->cache.capacity / shape->ratio * shape->index_dim);
    double queries = (double)(qsa->n_tokens * shape->index_n_heads * shape->index_dim);
    return (keys + queries) * (double)bench->backend->ops->activation_bytes +
           (double)(qsa->n_tokens * (shape->n_select + 1)) * sizeof(int32_t);
}

const microbench_op_t microbench_qsa_select = {.name = "qsa_select",
                                               .summary = "the key blocks that a query sees",
                                               .args_bytes = sizeof(qsa_select_args_t),
                                               .exists = ops_has_qsa,
                                               .prepare = prepare_select,
                                               .run = run_select,
                                               .reference = reference_select,
                                               .bytes = bytes_select};

/* As many blocks as a query may see, spread over all that are complete. */
static status_t prepare_blocks(microbench_t *bench, const qsa_shape_t *shape, qsa_attend_args_t *made) {
    int64_t N = made->n_tokens;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)(N * (shape->n_select + 1)), sizeof(int32_t), &memory));
    int32_t *blocks = memory, *n_blocks = blocks + N * shape->n_select;
    for (int64_t t = 0; t < N; t++) {
        int64_t n = (bench->pos + t + 1) / shape->ratio, n_seen = n < shape->n_select ? n : shape->n_select;
        n_blocks[t] = (int32_t)n_seen;
        for (int64_t i = 0; i < n_seen; i++)
            blocks[t * shape->n_select + i] = (int32_t)(i * n / n_seen);
    }
    void *data;
    status_t status = operands_upload(&bench->operands, OPERAND_WARM, DTYPE_I32, N * shape->n_select, blocks, &data);
    if (status == STATUS_OK) made->blocks = data;
    if (status == STATUS_OK) status = operands_upload(&bench->operands, OPERAND_WARM, DTYPE_I32, N, n_blocks, &data);
    if (status == STATUS_OK) made->n_blocks = data;
    memory_free(memory);
    return status;
}

static status_t prepare_attend(microbench_t *bench, void *args) {
    qsa_attend_args_t made = {.shape = shape_of(bench), .n_tokens = bench->n_tokens};
    int64_t n = made.n_tokens * made.shape.n_heads * made.shape.head_dim;
    activation_t *q, *gate;
    TRY(prepare_start(bench, &made.start_pos));
    TRY(operands_activations(&bench->operands, OPERAND_WARM, n, 1.5, &q));
    TRY(operands_activations(&bench->operands, OPERAND_WARM, n, 1.5, &gate));
    TRY(prepare_cache(bench, &made.shape, true, false, &made.cache));
    TRY(prepare_blocks(bench, &made.shape, &made));
    TRY(output_activations(bench, n, &made.y));
    TRY(operands_output(&bench->operands, bench->backend->ops->qsa_attend_workspace_bytes(&made), &made.workspace));
    made.q = q;
    made.gate = gate;
    *(qsa_attend_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_attend(backend_t *backend, const void *args) { return backend->ops->qsa_attend(backend, args); }

/* The tokens that the query at `position` sees: those of its blocks, then the tail. Returns how many. */
static int64_t list_seen(const qsa_shape_t *shape, const double *blocks, int64_t n_blocks, int64_t position,
                         double *seen) {
    int64_t n = 0;
    for (int64_t i = 0; i < n_blocks * shape->ratio; i++)
        seen[n++] = blocks[i / shape->ratio] * (double)shape->ratio + (double)(i % shape->ratio);
    for (int64_t i = (position + 1) / shape->ratio * shape->ratio; i <= position; i++)
        seen[n++] = (double)i;
    return n;
}

static void attend_head(const double *q, const double *k, const double *v, const double *seen, int64_t n, int64_t dim,
                        double *weights, double *out) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        weights[i] = ops_dot(q, k + (int64_t)seen[i] * dim, dim) / sqrt((double)dim);
        largest = fmax(largest, weights[i]);
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] = 0;
    for (int64_t i = 0; i < n; i++) {
        double weight = exp(weights[i] - largest);
        sum += weight;
        for (int64_t d = 0; d < dim; d++)
            out[d] += weight * v[(int64_t)seen[i] * dim + d];
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] /= sum;
}

static status_t reference_attend(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const qsa_attend_args_t *qsa = args;
    const qsa_shape_t *shape = &qsa->shape;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = qsa->n_tokens, dim = shape->head_dim, heads = shape->n_heads, capacity = qsa->cache.capacity;
    int64_t kv = shape->n_kv_heads * capacity * dim, most_seen = (shape->n_select + 1) * shape->ratio;
    const double *q = ops_read(&arrays, qsa->q, N * heads * dim), *gate = ops_read(&arrays, qsa->gate, N * heads * dim);
    const double *k = ops_read(&arrays, qsa->cache.k, kv), *v = ops_read(&arrays, qsa->cache.v, kv);
    const double *blocks = ops_read(&arrays, qsa->blocks, N * shape->n_select);
    const double *n_blocks = ops_read(&arrays, qsa->n_blocks, N);
    const double *y = ops_download_activations(&arrays, qsa->y, N * heads * dim);
    double *seen = ops_zeros(&arrays, most_seen), *weights = ops_zeros(&arrays, most_seen);
    double *out = ops_zeros(&arrays, dim);
    for (int64_t t = 0; arrays.status == STATUS_OK && t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        int64_t n = list_seen(shape, blocks + t * shape->n_select, (int64_t)n_blocks[t], bench->pos + t, seen);
        for (int64_t head = 0; head < heads; head++) {
            int64_t at = (t * heads + head) * dim, kv_at = head / (heads / shape->n_kv_heads) * capacity * dim;
            attend_head(q + at, k + kv_at, v + kv_at, seen, n, dim, weights, out);
            for (int64_t d = 0; d < dim; d++)
                microbench_compare(y[at + d], out[d] * ops_sigmoid(gate[at + d]), error);
        }
    }
    return ops_free(&arrays);
}

/* Keys and values that a query sees; what several queries see is read once where the cache is that small. */
static double bytes_attend(const microbench_t *bench, const void *args) {
    const qsa_attend_args_t *qsa = args;
    const qsa_shape_t *shape = &qsa->shape;
    double seen = (double)((shape->n_select + 1) * shape->ratio * qsa->n_tokens);
    double tokens = fmin(seen, (double)qsa->cache.capacity);
    double activations = 2 * tokens * (double)(shape->n_kv_heads * shape->head_dim) +
                         3 * (double)(qsa->n_tokens * shape->n_heads * shape->head_dim);
    return activations * (double)bench->backend->ops->activation_bytes;
}

const microbench_op_t microbench_qsa_attend = {.name = "qsa_attend",
                                               .summary = "attention over them",
                                               .args_bytes = sizeof(qsa_attend_args_t),
                                               .exists = ops_has_qsa,
                                               .prepare = prepare_attend,
                                               .run = run_attend,
                                               .reference = reference_attend,
                                               .bytes = bytes_attend};

/* The three in turn, which one token may have in fewer launches. */
static status_t prepare_core(microbench_t *bench, void *args) {
    backend_t *backend = bench->backend;
    operands_t *operands = &bench->operands;
    qsa_core_args_t made;
    void *blocks, *n_blocks, *workspace;
    TRY(prepare_prepare(bench, &made.prepare));
    const qsa_prepare_args_t *prepare = &made.prepare;
    const qsa_shape_t *shape = &prepare->shape;
    int64_t N = bench->n_tokens;
    TRY(operands_output(operands, (size_t)(N * shape->n_select) * sizeof(int32_t), &blocks));
    TRY(operands_output(operands, (size_t)N * sizeof(int32_t), &n_blocks));
    made.select = (qsa_select_args_t){.shape = *shape,
                                      .n_tokens = N,
                                      .start_pos = prepare->start_pos,
                                      .index_q = prepare->index_q,
                                      .cache = prepare->cache,
                                      .blocks = blocks,
                                      .n_blocks = n_blocks};
    made.attend = (qsa_attend_args_t){.shape = *shape,
                                      .n_tokens = N,
                                      .start_pos = prepare->start_pos,
                                      .q = prepare->q,
                                      .gate = prepare->gate,
                                      .cache = prepare->cache,
                                      .blocks = blocks,
                                      .n_blocks = n_blocks};
    TRY(output_activations(bench, N * shape->n_heads * shape->head_dim, &made.attend.y));
    size_t select_bytes = backend->ops->qsa_select_workspace_bytes(&made.select);
    size_t attend_bytes = backend->ops->qsa_attend_workspace_bytes(&made.attend);
    TRY(operands_output(operands, select_bytes > attend_bytes ? select_bytes : attend_bytes, &workspace));
    made.select.workspace = made.attend.workspace = workspace;
    *(qsa_core_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_core(backend_t *backend, const void *args) { return backend->ops->qsa_core(backend, args); }

/* The highest `n_wanted` scores, in rising order of blocks; the lower block first among equals. */
static void choose_blocks(const double *scores, int64_t n, int64_t n_wanted, double *sorted, double *blocks) {
    for (int64_t i = 0; i < n; i++)
        sorted[i] = scores[i];
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    double cut = n_wanted > 0 ? sorted[n_wanted - 1] : INFINITY;
    int64_t n_above = 0, n_chosen = 0;
    while (n_above < n_wanted && sorted[n_above] > cut)
        n_above++;
    for (int64_t b = 0, n_equal = n_wanted - n_above; b < n; b++) {
        if (scores[b] > cut || (scores[b] == cut && n_equal-- > 0)) blocks[n_chosen++] = (double)b;
    }
}

/* What the op appended to the caches is taken from there: qsa_prepare's own row tells how far off that is. */
static status_t reference_core(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const qsa_core_args_t *core = args;
    const qsa_prepare_args_t *qsa = &core->prepare;
    const qsa_shape_t *shape = &qsa->shape;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t N = qsa->n_tokens, dim = shape->head_dim, index_dim = shape->index_dim, heads = shape->n_heads;
    int64_t capacity = qsa->cache.capacity, kv = shape->n_kv_heads * capacity * dim, most = capacity / shape->ratio;
    int64_t index_at = (2 * heads + 2 * shape->n_kv_heads) * dim, most_seen = (shape->n_select + 1) * shape->ratio;
    const double *projected = ops_read(&arrays, qsa->projected, N * qsa->projected_stride);
    const double *q_norm = ops_read(&arrays, qsa->q_norm, dim);
    const double *index_q_norm = ops_read(&arrays, qsa->index_q_norm, index_dim);
    const double *k = ops_download_activations(&arrays, qsa->cache.k, kv);
    const double *v = ops_download_activations(&arrays, qsa->cache.v, kv);
    const double *keys = ops_download_activations(&arrays, qsa->cache.index_keys, most * index_dim);
    const double *y = ops_download_activations(&arrays, core->attend.y, N * heads * dim);
    double *scores = ops_zeros(&arrays, most), *sorted = ops_zeros(&arrays, most), *blocks = ops_zeros(&arrays, most);
    double *seen = ops_zeros(&arrays, most_seen), *weights = ops_zeros(&arrays, most_seen);
    double *q = ops_zeros(&arrays, dim + index_dim), *out = ops_zeros(&arrays, dim);
    for (int64_t t = 0; arrays.status == STATUS_OK && t >= 0; t = ops_next_token(t, N, REFERENCE_TOKENS)) {
        int64_t position = bench->pos + t, n = (position + 1) / shape->ratio;
        int64_t n_wanted = n < shape->n_select ? n : shape->n_select;
        const double *in = projected + t * qsa->projected_stride;
        for (int64_t b = 0; b < n; b++)
            scores[b] = 0;
        for (int64_t head = 0; head < shape->index_n_heads; head++) {
            ops_norm(in + index_at + head * index_dim, index_q_norm, index_dim, qsa->rms_norm_eps, q);
            rotate(q, shape->rotary_dim, qsa->rope_theta, position);
            for (int64_t b = 0; b < n; b++)
                scores[b] += fmax(ops_dot(q, keys + b * index_dim, index_dim), 0.0);
        }
        choose_blocks(scores, n, n_wanted, sorted, blocks);
        int64_t n_seen = list_seen(shape, blocks, n_wanted, position, seen);
        for (int64_t head = 0; head < heads; head++) {
            const double *query = in + 2 * head * dim, *got = y + (t * heads + head) * dim;
            int64_t kv_at = head / (heads / shape->n_kv_heads) * capacity * dim;
            ops_norm(query, q_norm, dim, qsa->rms_norm_eps, q);
            rotate(q, shape->rotary_dim, qsa->rope_theta, position);
            attend_head(q, k + kv_at, v + kv_at, seen, n_seen, dim, weights, out);
            for (int64_t d = 0; d < dim; d++)
                microbench_compare(got[d], out[d] * ops_sigmoid(query[dim + d]), error);
        }
    }
    return ops_free(&arrays);
}

static double bytes_core(const microbench_t *bench, const void *args) {
    const qsa_core_args_t *core = args;
    const qsa_shape_t *shape = &core->prepare.shape;
    double keys = (double)(core->prepare.cache.capacity / shape->ratio * shape->index_dim);
    return bytes_prepare(bench, &core->prepare) + keys * (double)bench->backend->ops->activation_bytes +
           bytes_attend(bench, &core->attend);
}

const microbench_op_t microbench_qsa_core = {.name = "qsa_core",
                                             .summary = "the three in turn, as decode has them",
                                             .args_bytes = sizeof(qsa_core_args_t),
                                             .exists = ops_has_qsa,
                                             .prepare = prepare_core,
                                             .run = run_core,
                                             .reference = reference_core,
                                             .bytes = bytes_core};
