#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qsa/qsa.h"
#include "support/compare.h"
#include "support/op_data.h"

/* The three ops on one sequence, with their weights, caches and outputs. */
typedef struct sequence {
    qsa_shape_t shape;
    int64_t n_tokens, stride;
    double rope_theta;
    const float *projected, *q_norm, *k_norm, *index_q_norm, *index_k_norm;
    qsa_cache_t cache;
    float *q, *gate, *index_q, *y;
    int32_t *blocks, *n_blocks;
} sequence_t;

static int64_t width_of(const qsa_shape_t *s) {
    return 2 * (s->n_heads + s->n_kv_heads) * s->head_dim + (s->index_n_heads + 1) * s->index_dim;
}

/* New outputs and empty caches, with room for `capacity` tokens. */
static void empty(sequence_t *s, int64_t capacity) {
    const qsa_shape_t *shape = &s->shape;
    int64_t n = s->n_tokens, n_values = n * shape->n_heads * shape->head_dim;
    capacity = (capacity + shape->ratio - 1) / shape->ratio * shape->ratio;
    int64_t n_cache = shape->n_kv_heads * capacity * shape->head_dim;
    s->cache = (qsa_cache_t){
        .capacity = capacity,
        .k = op_workspace((size_t)n_cache * sizeof(float)),
        .v = op_workspace((size_t)n_cache * sizeof(float)),
        .index_keys = op_workspace((size_t)(capacity / shape->ratio * shape->index_dim) * sizeof(float)),
        .raw_keys = op_workspace((size_t)(shape->ratio * shape->index_dim) * sizeof(float)),
    };
    s->q = op_zeros(n_values);
    s->gate = op_zeros(n_values);
    s->y = op_zeros(n_values);
    s->index_q = op_zeros(n * shape->index_n_heads * shape->index_dim);
    s->blocks = op_alloc(n * shape->n_select, sizeof(int32_t));
    s->n_blocks = op_alloc(n, sizeof(int32_t));
}

static void prepare(sequence_t *s, int64_t start, int64_t n) {
    const qsa_shape_t *shape = &s->shape;
    int64_t heads = shape->n_heads * shape->head_dim;
    qsa_prepare_args_t args = {
        .shape = *shape,
        .n_tokens = n,
        .start_pos = &start,
        .rms_norm_eps = 1e-6f,
        .rope_theta = s->rope_theta,
        .projected = s->projected + start * s->stride,
        .projected_stride = s->stride,
        .q_norm = s->q_norm,
        .k_norm = s->k_norm,
        .index_q_norm = s->index_q_norm,
        .index_k_norm = s->index_k_norm,
        .cache = s->cache,
        .q = s->q + start * heads,
        .gate = s->gate + start * heads,
        .index_q = s->index_q + start * shape->index_n_heads * shape->index_dim,
    };
    assert_int_equal(qsa_prepare_cpu(&args), STATUS_OK);
}

static void choose(sequence_t *s, int64_t start, int64_t n) {
    const qsa_shape_t *shape = &s->shape;
    qsa_select_args_t args = {
        .shape = *shape,
        .n_tokens = n,
        .start_pos = &start,
        .index_q = s->index_q + start * shape->index_n_heads * shape->index_dim,
        .cache = s->cache,
        .blocks = s->blocks + start * shape->n_select,
        .n_blocks = s->n_blocks + start,
    };
    args.workspace = op_workspace(qsa_select_workspace_bytes(&args));
    assert_int_equal(qsa_select_cpu(&args), STATUS_OK);
}

static void attend(sequence_t *s, int64_t start, int64_t n) {
    const qsa_shape_t *shape = &s->shape;
    int64_t heads = shape->n_heads * shape->head_dim;
    qsa_attend_args_t args = {
        .shape = *shape,
        .n_tokens = n,
        .start_pos = &start,
        .q = s->q + start * heads,
        .gate = s->gate + start * heads,
        .cache = s->cache,
        .blocks = s->blocks + start * shape->n_select,
        .n_blocks = s->n_blocks + start,
        .y = s->y + start * heads,
    };
    args.workspace = op_workspace(qsa_attend_workspace_bytes(&args));
    assert_int_equal(qsa_attend_cpu(&args), STATUS_OK);
}

static void run(sequence_t *s, int64_t capacity, int64_t chunk) {
    empty(s, capacity);
    for (int64_t start = 0; start < s->n_tokens; start += chunk) {
        int64_t n = s->n_tokens - start < chunk ? s->n_tokens - start : chunk;
        prepare(s, start, n);
        choose(s, start, n);
        attend(s, start, n);
    }
}

static void check_golden(hid_t group) {
    sequence_t s = {
        .shape =
            {
                .n_heads = op_int(group, "n_heads"),
                .n_kv_heads = op_int(group, "n_kv_heads"),
                .head_dim = op_int(group, "head_dim"),
                .rotary_dim = op_int(group, "rotary_dim"),
                .index_n_heads = op_int(group, "index_n_heads"),
                .index_dim = op_int(group, "index_dim"),
                .ratio = op_int(group, "ratio"),
                .n_select = op_int(group, "n_select"),
            },
        .n_tokens = op_int(group, "n_tokens"),
        .rope_theta = op_real(group, "rope_theta"),
        .projected = op_floats(group, "projected"),
        .q_norm = op_floats(group, "q_norm"),
        .k_norm = op_floats(group, "k_norm"),
        .index_q_norm = op_floats(group, "index_q_norm"),
        .index_k_norm = op_floats(group, "index_k_norm"),
    };
    const qsa_shape_t *shape = &s.shape;
    int64_t n = s.n_tokens, dim = shape->head_dim, n_index = n * shape->index_n_heads * shape->index_dim;
    s.stride = width_of(shape);
    run(&s, n + 5, n);
    assert_close("q", s.q, op_floats(group, "q"), n * shape->n_heads * dim, 5e-6);
    assert_close("index_q", s.index_q, op_floats(group, "index_q"), n_index, 5e-6);
    assert_close("index_keys", s.cache.index_keys, op_floats(group, "index_keys"), n / shape->ratio * shape->index_dim,
                 5e-6);
    float *k = op_floats(group, "k"), *v = op_floats(group, "v");
    for (int64_t head = 0; head < shape->n_kv_heads; head++) {
        int64_t at = head * s.cache.capacity * dim;
        assert_close("k", s.cache.k + at, k + head * n * dim, n * dim, 5e-6);
        assert_close("v", s.cache.v + at, v + head * n * dim, n * dim, 0.0);
    }
    int32_t *blocks = op_ints(group, "blocks"), *n_blocks = op_ints(group, "n_blocks");
    assert_same_ints("n_blocks", s.n_blocks, n_blocks, n);
    for (int64_t t = 0; t < n; t++)
        assert_same_ints("blocks", s.blocks + t * shape->n_select, blocks + t * shape->n_select, n_blocks[t]);
    assert_close("y", s.y, op_floats(group, "y"), n * shape->n_heads * dim, 5e-6);
}

static void test_golden(void **state) {
    (void)state;
    op_cases("qsa", check_golden);
}

static sequence_t random_sequence(qsa_shape_t shape, int64_t n_tokens) {
    sequence_t s = {
        .shape = shape,
        .n_tokens = n_tokens,
        .stride = width_of(&shape) + 2,
        .rope_theta = 1e4,
        .q_norm = op_random_floats(shape.head_dim, 0.0f, 0.5f),
        .k_norm = op_random_floats(shape.head_dim, 0.0f, 0.5f),
        .index_q_norm = op_random_floats(shape.index_dim, 0.0f, 0.5f),
        .index_k_norm = op_random_floats(shape.index_dim, 0.0f, 0.5f),
    };
    s.projected = op_random_floats(n_tokens * s.stride, 0.0f, 2.0f);
    return s;
}

static const qsa_shape_t shapes[] = {
    {.n_heads = 1,
     .n_kv_heads = 1,
     .head_dim = 2,
     .rotary_dim = 2,
     .index_n_heads = 1,
     .index_dim = 2,
     .ratio = 1,
     .n_select = 1},
    {.n_heads = 5,
     .n_kv_heads = 1,
     .head_dim = 12,
     .rotary_dim = 4,
     .index_n_heads = 9,
     .index_dim = 10,
     .ratio = 4,
     .n_select = 3},
    {.n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 40,
     .rotary_dim = 10,
     .index_n_heads = 4,
     .index_dim = 24,
     .ratio = 3,
     .n_select = 5},
    {.n_heads = 12,
     .n_kv_heads = 1,
     .head_dim = 24,
     .rotary_dim = 24,
     .index_n_heads = 2,
     .index_dim = 24,
     .ratio = 2,
     .n_select = 40},
};
#define N_SHAPES 4

static void norm_and_rotate(const sequence_t *s, const double *x, const float *weight, int64_t dim, int64_t position,
                            double *y) {
    op_norm(x, weight, dim, 1e-6, y);
    int64_t half = s->shape.rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * pow(s->rope_theta, -(double)i / (double)half), a = y[i], b = y[i + half];
        y[i] = a * cos(angle) - b * sin(angle);
        y[i + half] = b * cos(angle) + a * sin(angle);
    }
}

/* What prepare leaves, by the formulas of the contract. */
static void check_prepared(const sequence_t *s) {
    const qsa_shape_t *shape = &s->shape;
    int64_t dim = shape->head_dim, index_dim = shape->index_dim;
    int64_t index_key_at = width_of(shape) - index_dim;
    double *out = op_alloc(dim + index_dim, sizeof *out);
    for (int64_t t = 0; t < s->n_tokens; t++) {
        const double *row = op_widen(s->projected + t * s->stride, s->stride);
        for (int64_t head = 0; head < shape->n_heads; head++, row += 2 * dim) {
            int64_t at = (t * shape->n_heads + head) * dim;
            norm_and_rotate(s, row, s->q_norm, dim, t, out);
            assert_close_f64("q", s->q + at, out, dim, 2e-6);
            assert_close_f64("gate", s->gate + at, row + dim, dim, 0.0);
        }
        for (int64_t head = 0; head < shape->n_kv_heads; head++, row += dim) {
            norm_and_rotate(s, row, s->k_norm, dim, t, out);
            assert_close_f64("k", s->cache.k + (head * s->cache.capacity + t) * dim, out, dim, 2e-6);
        }
        for (int64_t head = 0; head < shape->n_kv_heads; head++, row += dim)
            assert_close_f64("v", s->cache.v + (head * s->cache.capacity + t) * dim, row, dim, 0.0);
        for (int64_t head = 0; head < shape->index_n_heads; head++, row += index_dim) {
            norm_and_rotate(s, row, s->index_q_norm, index_dim, t, out);
            assert_close_f64("index_q", s->index_q + (t * shape->index_n_heads + head) * index_dim, out, index_dim,
                             2e-6);
        }
    }
    double *mean = op_alloc(index_dim, sizeof *mean);
    for (int64_t block = 0; block < s->n_tokens / shape->ratio; block++) {
        for (int64_t d = 0; d < index_dim; d++) {
            mean[d] = 0.0;
            for (int64_t i = 0; i < shape->ratio; i++)
                mean[d] += (double)s->projected[(block * shape->ratio + i) * s->stride + index_key_at + d];
            mean[d] /= (double)shape->ratio;
        }
        norm_and_rotate(s, mean, s->index_k_norm, index_dim, block * shape->ratio, out);
        /* A mean that nearly cancels is enlarged by its norm, with its rounding errors. */
        assert_close_f64("index_keys", s->cache.index_keys + block * index_dim, out, index_dim, 2e-5);
    }
}

static double score(const sequence_t *s, int64_t token, int64_t block) {
    double sum = 0.0;
    int64_t dim = s->shape.index_dim;
    for (int64_t head = 0; head < s->shape.index_n_heads; head++) {
        const float *q = s->index_q + (token * s->shape.index_n_heads + head) * dim,
                    *k = s->cache.index_keys + block * dim;
        double product = 0.0;
        for (int64_t d = 0; d < dim; d++)
            product += (double)q[d] * (double)k[d];
        sum += fmax(product, 0.0);
    }
    return sum / sqrt((double)dim);
}

/* The selection is rising, of the right size, and nothing left out is better than anything taken, but for what FP32
 * cannot tell apart. Exact ties are tests of their own. */
static void check_selected(const sequence_t *s) {
    int64_t n_select = s->shape.n_select;
    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t n = (t + 1) / s->shape.ratio, at = 0;
        assert_int_equal(s->n_blocks[t], n < n_select ? n : n_select);
        double worst_in = INFINITY, best_out = -INFINITY, largest = 0.0;
        for (int64_t block = 0; block < n; block++) {
            double value = score(s, t, block);
            largest = fmax(largest, value);
            if (at < s->n_blocks[t] && s->blocks[t * n_select + at] == block) {
                at++;
                worst_in = fmin(worst_in, value);
            } else {
                best_out = fmax(best_out, value);
            }
        }
        assert_int_equal(at, s->n_blocks[t]);
        if (best_out > worst_in + 1e-5 * largest) fail_msg("token %d leaves out a better block", (int)t);
    }
}

static bool sees(const sequence_t *s, int64_t token, int64_t other) {
    int64_t ratio = s->shape.ratio;
    if (other / ratio == (token + 1) / ratio) return other <= token;
    for (int64_t i = 0; i < s->n_blocks[token]; i++) {
        if (s->blocks[token * s->shape.n_select + i] == other / ratio) return true;
    }
    return false;
}

static void check_attended(const sequence_t *s) {
    const qsa_shape_t *shape = &s->shape;
    int64_t dim = shape->head_dim;
    double *y = op_alloc(dim, sizeof *y);
    for (int64_t i = 0; i < s->n_tokens * shape->n_heads; i++) {
        int64_t t = i / shape->n_heads, kv_head = i % shape->n_heads * shape->n_kv_heads / shape->n_heads;
        double sum = 0.0;
        memset(y, 0, (size_t)dim * sizeof *y);
        for (int64_t other = 0; other <= t; other++) {
            if (!sees(s, t, other)) continue;
            int64_t at = (kv_head * s->cache.capacity + other) * dim;
            double product = 0.0;
            for (int64_t d = 0; d < dim; d++)
                product += (double)s->q[i * dim + d] * (double)s->cache.k[at + d];
            double weight = exp(product / sqrt((double)dim));
            sum += weight;
            for (int64_t d = 0; d < dim; d++)
                y[d] += weight * (double)s->cache.v[at + d];
        }
        for (int64_t d = 0; d < dim; d++)
            y[d] *= op_sigmoid((double)s->gate[i * dim + d]) / sum;
        assert_close_f64("y", s->y + i * dim, y, dim, 1e-5);
    }
}

static void test_formula(void **state) {
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        sequence_t s = random_sequence(shapes[i], 71);
        run(&s, 71 + 6 * i, 71);
        check_prepared(&s);
        check_selected(&s);
        check_attended(&s);
    }
}

static void test_one_result(void **state) {
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        int64_t n = 150;
        sequence_t whole = random_sequence(shapes[i], n);
        omp_set_num_threads(1);
        run(&whole, n, n);
        for (int64_t chunk = 1; chunk < n; chunk += chunk < 12 ? 1 : 37) {
            sequence_t parts = whole;
            omp_set_num_threads(1 + (int)(chunk % 3));
            run(&parts, n + 40, chunk); /* with another capacity */
            assert_same_bits("y in chunks", parts.y, whole.y, n * shapes[i].n_heads * shapes[i].head_dim);
            assert_same_ints("n_blocks in chunks", parts.n_blocks, whole.n_blocks, n);
            for (int64_t t = 0; t < n; t++)
                assert_same_ints("blocks in chunks", parts.blocks + t * shapes[i].n_select,
                                 whole.blocks + t * shapes[i].n_select, whole.n_blocks[t]);
        }
    }
}

/* Index keys that hold whole numbers give exact scores: one index head whose query is the first unit vector. */
static void check_exact(const float *scores, int64_t n, int64_t n_select, const int32_t *expected) {
    qsa_shape_t shape = {.index_n_heads = 1, .index_dim = 4, .ratio = 2, .n_select = n_select};
    float *keys = op_zeros(n * 4);
    const float query[4] = {1, 0, 0, 0};
    for (int64_t b = 0; b < n; b++)
        keys[4 * b] = scores[b];
    int32_t *blocks = op_alloc(n_select, sizeof *blocks), n_blocks;
    qsa_select_args_t args = {
        .shape = shape,
        .n_tokens = 1,
        .start_pos = &(int64_t){2 * n - 1},
        .index_q = query,
        .cache = {.capacity = 2 * n, .index_keys = keys},
        .blocks = blocks,
        .n_blocks = &n_blocks,
    };
    args.workspace = op_workspace(qsa_select_workspace_bytes(&args));
    assert_int_equal(qsa_select_cpu(&args), STATUS_OK);
    assert_int_equal(n_blocks, n_select);
    assert_same_ints("blocks", blocks, expected, n_select);
}

static void test_ties(void **state) {
    (void)state;
    const float equal[7] = {2, 2, 2, 2, 2, 2, 2}, negative[6] = {-1, -2, 0, -3, -0.0f, -1};
    check_exact(equal, 7, 3, (const int32_t[]){0, 1, 2});
    check_exact(negative, 6, 4, (const int32_t[]){0, 1, 2, 3}); /* relu makes them all zero */
    const float mixed[8] = {1, 5, 3, 0, 3, 7, 3, 3};
    check_exact(mixed, 8, 4, (const int32_t[]){1, 2, 4, 5});
    const float last[5] = {0, 0, 0, 0, 1};
    check_exact(last, 5, 2, (const int32_t[]){0, 4});
    float *many = op_zeros(70000); /* more than the context length of the real model has */
    many[69999] = 1e-30f;
    check_exact(many, 70000, 3, (const int32_t[]){0, 1, 69999});
}

/* NaN, infinities and the smallest numbers: always n_select different blocks, NaN counting as 0. */
static void test_special_scores(void **state) {
    (void)state;
    const float scores[9] = {NAN, 1, INFINITY, -INFINITY, NAN, 1e-44f, 3e38f, INFINITY, 0};
    check_exact(scores, 9, 3, (const int32_t[]){2, 6, 7});
    check_exact(scores, 9, 5, (const int32_t[]){1, 2, 5, 6, 7});
    const float nan[4] = {NAN, NAN, NAN, NAN};
    check_exact(nan, 4, 2, (const int32_t[]){0, 1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, op_data_free),
        cmocka_unit_test_teardown(test_formula, op_data_free),
        cmocka_unit_test_teardown(test_one_result, op_data_free),
        cmocka_unit_test_teardown(test_ties, op_data_free),
        cmocka_unit_test_teardown(test_special_scores, op_data_free),
    };
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
