/* Hashed n-gram embeddings: row ids, the gather from host memory, and the block behind its projection. */

#include <math.h>

#include "checkpoint/ngram.h"
#include "microbench/ops.h"

enum {
    TABLE_ROWS = 1 << 20, /* of the measured table at most: the model's own may take 50 GB of pinned memory */
    REFERENCE_TOKENS = 64
};

static const float table_scale = 0.43f;

static status_t prepare_ngram_rows(microbench_t *bench, void *args) {
    operands_t *operands = &bench->operands;
    ngram_constants_t ngram;
    ngram_derive(bench->config, 0, &ngram);
    ngram_rows_args_t made = {.n_tokens = bench->n_tokens,
                              .n_heads = ngram.n_heads,
                              .ngram_size = ngram.ngram_size,
                              .heads_per_ngram = ngram.heads_per_ngram,
                              .eos_token_id = ngram.eos_token_id};
    void *multipliers, *sizes, *offsets, *context, *tokens, *rows;
    TRY(operands_upload(operands, OPERAND_WARM, DTYPE_I64, ngram.ngram_size, ngram.multipliers, &multipliers));
    TRY(operands_upload(operands, OPERAND_WARM, DTYPE_I64, ngram.n_heads, ngram.head_sizes, &sizes));
    TRY(operands_upload(operands, OPERAND_WARM, DTYPE_I64, ngram.n_heads, ngram.head_offsets, &offsets));
    TRY(operands_ids(operands, OPERAND_WARM, DTYPE_I32, ngram.ngram_size - 1, bench->config->vocab_size, &context));
    TRY(operands_ids(operands, OPERAND_WARM, DTYPE_I32, bench->n_tokens, bench->config->vocab_size, &tokens));
    TRY(operands_output(operands, (size_t)(bench->n_tokens * ngram.n_heads) * sizeof(int64_t), &rows));
    made.multipliers = multipliers;
    made.head_sizes = sizes;
    made.head_offsets = offsets;
    made.context = context;
    made.tokens = tokens;
    made.rows = rows;
    *(ngram_rows_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_ngram_rows(backend_t *backend, const void *args) { return backend->ops->ngram_rows(backend, args); }

/* Whole numbers have no FP64 form: the ids must be those of the CPU reference. */
static status_t reference_ngram_rows(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const ngram_rows_args_t *ngram = args;
    const operands_t *operands = &bench->operands;
    ops_arrays_t arrays = {.operands = operands};
    int64_t n = ngram->n_tokens * ngram->n_heads;
    const double *rows = ops_download(&arrays, ngram->rows, DTYPE_I64, n);
    void *expected = ops_zeros(&arrays, n);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    ngram_rows_args_t host = *ngram;
    host.multipliers = operand_host(operands_find(operands, ngram->multipliers));
    host.head_sizes = operand_host(operands_find(operands, ngram->head_sizes));
    host.head_offsets = operand_host(operands_find(operands, ngram->head_offsets));
    host.context = operand_host(operands_find(operands, ngram->context));
    host.tokens = operand_host(operands_find(operands, ngram->tokens));
    host.rows = expected;
    arrays.status = ngram_rows_cpu(&host);
    for (int64_t i = 0; i < n; i++) {
        microbench_compare(rows[i], (double)host.rows[i], error);
        if (rows[i] != (double)host.rows[i]) error->is_wrong = true;
    }
    return ops_free(&arrays);
}

static double bytes_ngram_rows(const microbench_t *bench, const void *args) {
    const ngram_rows_args_t *ngram = args;
    (void)bench;
    return (double)ngram->n_tokens * (sizeof(int32_t) + (double)ngram->n_heads * sizeof(int64_t));
}

const microbench_op_t microbench_ngram_rows = {.name = "ngram_rows",
                                               .summary = "row ids of hashed n-grams",
                                               .args_bytes = sizeof(ngram_rows_args_t),
                                               .exists = ops_has_ple,
                                               .prepare = prepare_ngram_rows,
                                               .run = run_ngram_rows,
                                               .reference = reference_ngram_rows,
                                               .bytes = bytes_ngram_rows};

/* Every copy reads other rows of one table. */
static status_t prepare_ple_gather(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    ngram_constants_t ngram;
    ngram_derive(config, 0, &ngram);
    int64_t n_rows = ngram.n_rows / bench->local.tp_size, width = config->ple_embed_dim / ngram.n_heads;
    if (n_rows > TABLE_ROWS) n_rows = TABLE_ROWS;
    ple_gather_args_t made = {.n_tokens = bench->n_tokens,
                              .n_heads = ngram.n_heads,
                              .table = {.dtype = DTYPE_F8_E4M3, .rows = n_rows, .columns = width},
                              .table_scale = table_scale,
                              .first_row = n_rows * bench->local.tp_rank};
    void *rows, *table, *e;
    operands->label = MEMORY_PLE_TABLE;
    TRY(operands_bytes(operands, OPERAND_WARM, DTYPE_F8_E4M3, n_rows * width, 0x8F, 0x38, &table));
    operands->label = MEMORY_OTHER;
    /* Of the rows asked for, this rank has its share. */
    TRY(operands_ids(operands, OPERAND_COLD, DTYPE_I64, made.n_tokens * made.n_heads, n_rows * bench->local.tp_size,
                     &rows));
    TRY(operands_output(operands,
                        (size_t)(made.n_tokens * config->ple_embed_dim) * bench->backend->ops->activation_bytes, &e));
    made.rows = rows;
    made.table.data = table;
    made.e = e;
    *(ple_gather_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_ple_gather(backend_t *backend, const void *args) { return backend->ops->ple_gather(backend, args); }

static status_t reference_ple_gather(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const ple_gather_args_t *gather = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t n_ids = gather->n_tokens * gather->n_heads, width = gather->table.columns;
    const double *rows = ops_read(&arrays, gather->rows, n_ids);
    const double *e = ops_download_activations(&arrays, gather->e, n_ids * width);
    if (arrays.status != STATUS_OK) return ops_free(&arrays);
    const operand_t *table = operands_find(&bench->operands, gather->table.data);
    for (int64_t i = 0; i < n_ids * width; i++) {
        int64_t row = (int64_t)rows[i / width] - gather->first_row;
        bool is_here = row >= 0 && row < gather->table.rows;
        double expected = is_here ? operand_value(table, row * width + i % width) * (double)gather->table_scale : 0.0;
        microbench_compare(e[i], expected, error);
    }
    return ops_free(&arrays);
}

static double bytes_ple_gather(const microbench_t *bench, const void *args) {
    const ple_gather_args_t *gather = args;
    double width = (double)gather->table.columns, share = 1.0 / bench->local.tp_size;
    return (double)(gather->n_tokens * gather->n_heads) *
           (sizeof(int64_t) + width * (share + (double)bench->backend->ops->activation_bytes));
}

const microbench_op_t microbench_ple_gather = {.name = "ple_gather",
                                               .summary = "their rows, from host memory",
                                               .args_bytes = sizeof(ple_gather_args_t),
                                               .exists = ops_has_ple,
                                               .prepare = prepare_ple_gather,
                                               .run = run_ple_gather,
                                               .reference = reference_ple_gather,
                                               .bytes = bytes_ple_gather};

static int64_t conv_rows(const ple_mix_args_t *mix) { return (mix->conv_kernel - 1) * mix->dilation; }

static status_t prepare_ple_mix(microbench_t *bench, void *args) {
    const model_config_t *config = bench->config;
    operands_t *operands = &bench->operands;
    int64_t N = bench->n_tokens, width = bench->local.stream_width;
    ple_mix_args_t made = {.n_tokens = N,
                           .hc_count = config->hc_count,
                           .hidden_size = config->hidden_size,
                           .conv_kernel = config->ple_conv_kernel_size,
                           .dilation = config->ngram_size,
                           .rms_norm_eps = (float)config->rms_norm_eps};
    activation_t *projected;
    float *norm_key, *norm_query, *norm_conv, *conv;
    TRY(operands_activations(operands, OPERAND_WARM, N * (width + config->hidden_size), 1.0, &projected));
    TRY(operands_floats(operands, OPERAND_COLD, width, 0.2, &norm_key));
    TRY(operands_floats(operands, OPERAND_COLD, width, 0.2, &norm_query));
    TRY(operands_floats(operands, OPERAND_COLD, width, 0.2, &norm_conv));
    TRY(operands_floats(operands, OPERAND_COLD, width * made.conv_kernel, 0.8, &conv));
    TRY(operands_floats(operands, OPERAND_COLD, conv_rows(&made) * width, 1.0, &made.conv_state));
    TRY(operands_floats(operands, OPERAND_WARM, N * width, 2.0, &made.h));
    TRY(operands_output(operands, bench->backend->ops->ple_mix_workspace_bytes(&made), &made.workspace));
    made.projected = projected;
    made.norm_key = norm_key;
    made.norm_query = norm_query;
    made.norm_conv = norm_conv;
    made.conv = conv;
    *(ple_mix_args_t *)args = made;
    return STATUS_OK;
}

static status_t run_ple_mix(backend_t *backend, const void *args) { return backend->ops->ple_mix(backend, args); }

/* A stream's gate; its normed row of the convolution goes to `row`. */
static double mix_stream(const ple_mix_args_t *mix, const double *key, const double *value, const double *h,
                         const double *const norms[3], int64_t s, double *room, double *row) {
    int64_t H = mix->hidden_size;
    ops_norm(key + s * H, norms[0] + s * H, H, mix->rms_norm_eps, row);
    ops_norm(h + s * H, norms[1] + s * H, H, mix->rms_norm_eps, room);
    double c = ops_dot(row, room, H) / sqrt((double)H);
    double gate = ops_sigmoid(copysign(sqrt(fmax(fabs(c), 1e-6)), c));
    for (int64_t i = 0; i < H; i++)
        row[i] = gate * value[i];
    ops_norm(row, norms[2] + s * H, H, mix->rms_norm_eps, row);
    return gate;
}

static status_t reference_ple_mix(const microbench_t *bench, const void *args, microbench_error_t *error) {
    const ple_mix_args_t *mix = args;
    ops_arrays_t arrays = {.operands = &bench->operands};
    int64_t H = mix->hidden_size, S = mix->hc_count, width = S * H, rows = conv_rows(mix), kernel = mix->conv_kernel;
    int64_t N = mix->n_tokens < REFERENCE_TOKENS ? mix->n_tokens : REFERENCE_TOKENS;
    const double *projected = ops_read(&arrays, mix->projected, N * (width + H));
    const double *norms[3] = {ops_read(&arrays, mix->norm_key, width), ops_read(&arrays, mix->norm_query, width),
                              ops_read(&arrays, mix->norm_conv, width)};
    const double *conv = ops_read(&arrays, mix->conv, width * kernel), *h = ops_read(&arrays, mix->h, N * width);
    const double *state = ops_read(&arrays, mix->conv_state, rows * width);
    const double *h_after = ops_download(&arrays, mix->h, DTYPE_F32, N * width);
    double *window = ops_zeros(&arrays, (rows + N) * width), *room = ops_zeros(&arrays, H);
    for (int64_t i = 0; arrays.status == STATUS_OK && i < rows * width; i++)
        window[i] = state[i];
    for (int64_t t = 0; arrays.status == STATUS_OK && t < N; t++) {
        const double *key = projected + t * (width + H), *value = key + width;
        for (int64_t s = 0; s < S; s++) {
            double gate =
                mix_stream(mix, key, value, h + t * width, norms, s, room, window + (rows + t) * width + s * H);
            for (int64_t c = s * H; c < (s + 1) * H; c++) {
                double sum = 0;
                for (int64_t j = 0; j < kernel; j++)
                    sum += conv[c * kernel + j] * window[(t + j * mix->dilation) * width + c];
                microbench_compare(h_after[t * width + c], h[t * width + c] + gate * value[c - s * H] + ops_silu(sum),
                                   error);
            }
        }
    }
    return ops_free(&arrays);
}

static double bytes_ple_mix(const microbench_t *bench, const void *args) {
    const ple_mix_args_t *mix = args;
    double width = (double)bench->local.stream_width, H = (double)mix->hidden_size;
    double weights = (3 + (double)mix->conv_kernel) * width, state = 2 * (double)conv_rows(mix) * width;
    return (weights + state + 2 * (double)mix->n_tokens * width) * sizeof(float) +
           (double)mix->n_tokens * (width + H) * (double)bench->backend->ops->activation_bytes;
}

const microbench_op_t microbench_ple_mix = {.name = "ple_mix",
                                            .summary = "the n-gram block behind its projection",
                                            .args_bytes = sizeof(ple_mix_args_t),
                                            .exists = ops_has_ple,
                                            .prepare = prepare_ple_mix,
                                            .run = run_ple_mix,
                                            .reference = reference_ple_mix,
                                            .bytes = bytes_ple_mix};
