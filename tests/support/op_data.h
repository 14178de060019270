#ifndef GALVANI_TESTS_OP_DATA_H
#define GALVANI_TESTS_OP_DATA_H

/* Data for operator tests: random arrays, and the cases of tests/golden/ops.h5. All arrays belong to the test and end
 * with op_data_free, which is its teardown. Included behind cmocka.h. */

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/matrix.h"
#include "support/golden_model.h"

#define N_ARRAYS 65536
static void *op_arrays[N_ARRAYS];
static int n_op_arrays;

static inline void *op_keep(void *array) {
    assert_non_null(array);
    assert_in_range(n_op_arrays, 0, N_ARRAYS - 1);
    return op_arrays[n_op_arrays++] = array;
}

/* Zeroed. */
static inline void *op_alloc(int64_t n, size_t item_bytes) { return op_keep(calloc((size_t)n + 1, item_bytes)); }
static inline float *op_zeros(int64_t n) { return (float *)op_alloc(n, sizeof(float)); }
static inline void *op_workspace(size_t bytes) {
    void *workspace = op_alloc((int64_t)bytes, 1);
    memset(workspace, 0xFF, bytes); /* all NaN: what an op does not write must not count */
    return workspace;
}

static inline float *op_copy(const float *x, int64_t n) {
    float *copy = op_zeros(n);
    memcpy(copy, x, (size_t)n * sizeof *x);
    return copy;
}

static inline int op_data_free(void **state) {
    (void)state;
    while (n_op_arrays > 0)
        free(op_arrays[--n_op_arrays]);
    return 0;
}

/* Fresh numbers in every run; GALVANI_SEED repeats one. */
static uint64_t op_random_state;

static inline int op_data_seed(void **state) {
    (void)state;
    const char *seed = getenv("GALVANI_SEED");
    op_random_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
    printf("random data: GALVANI_SEED=%llu repeats this run\n", (unsigned long long)op_random_state);
    return 0;
}

static inline uint64_t op_random(void) { /* splitmix64 */
    uint64_t x = op_random_state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline int64_t op_random_below(int64_t n) { return (int64_t)(op_random() % (uint64_t)n); }
static inline float op_random_float(void) { return (float)(op_random() >> 40) * 0x1p-23f - 1.0f; } /* [-1, 1) */

static inline float *op_random_floats(int64_t n, float middle, float spread) {
    float *x = op_zeros(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = middle + spread * op_random_float();
    return x;
}

/* The nearest matrix of another dtype; goldens' values are exact in BF16. */
static inline matrix_t op_matrix(const float *values, int64_t rows, int64_t columns, dtype_t dtype) {
    uint16_t *data = op_alloc(rows * columns, sizeof(uint16_t));
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = dtype == DTYPE_BF16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
    return (matrix_t){.data = data, .dtype = dtype, .rows = rows, .columns = columns};
}

static inline matrix_t op_random_matrix(int64_t rows, int64_t columns, dtype_t dtype) {
    return op_matrix(op_random_floats(rows * columns, 0.0f, 1.0f), rows, columns, dtype);
}

/* weight[row, column] of a BF16 or FP16 matrix. */
static inline double op_item(const matrix_t *weight, int64_t row, int64_t column) {
    uint16_t bits = ((const uint16_t *)weight->data)[row * weight->columns + column];
    return (double)(weight->dtype == DTYPE_BF16 ? bf16_to_float(bits) : f16_to_float(bits));
}

/* y = weight x in FP64. */
static inline void op_multiply(const matrix_t *weight, const double *x, double *y) {
    for (int64_t r = 0; r < weight->rows; r++) {
        y[r] = 0.0;
        for (int64_t c = 0; c < weight->columns; c++)
            y[r] += op_item(weight, r, c) * x[c];
    }
}

static inline double op_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* One-plus RMSNorm in FP64. */
static inline void op_norm(const double *x, const float *weight, int64_t n, double eps, double *y) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / (double)n + eps) * (1.0 + (double)weight[i]);
}

static inline double *op_widen(const float *x, int64_t n) {
    double *wide = op_alloc(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    return wide;
}

/* Cases of ops.h5. */
static inline int64_t op_int(hid_t group, const char *name) {
    int64_t value;
    hid_t attribute = H5Aopen(group, name, H5P_DEFAULT);
    if (attribute < 0 || H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) fail_msg("golden has no attribute %s", name);
    H5Aclose(attribute);
    return value;
}

static inline double op_real(hid_t group, const char *name) {
    double value;
    hid_t attribute = H5Aopen(group, name, H5P_DEFAULT);
    if (attribute < 0 || H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0)
        fail_msg("golden has no attribute %s", name);
    H5Aclose(attribute);
    return value;
}

static inline bool op_has(hid_t group, const char *name) { return H5Lexists(group, name, H5P_DEFAULT) > 0; }

static inline void *op_array(hid_t group, const char *name, hid_t type) {
    size_t n;
    return op_keep(golden_array(group, name, type, &n));
}

static inline float *op_floats(hid_t group, const char *name) { return op_array(group, name, H5T_NATIVE_FLOAT); }
static inline int32_t *op_ints(hid_t group, const char *name) { return op_array(group, name, H5T_NATIVE_INT32); }
static inline uint8_t *op_bytes(hid_t group, const char *name) { return op_array(group, name, H5T_NATIVE_UINT8); }

/* Calls `check` for every case of an op. */
static inline void op_cases(const char *op, void (*check)(hid_t group)) {
    h5_init();
    hid_t file = H5Fopen(GOLDEN_DIRECTORY "/ops.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t cases = file < 0 ? -1 : H5Gopen2(file, op, H5P_DEFAULT);
    H5G_info_t info;
    if (cases < 0 || H5Gget_info(cases, &info) < 0 || info.nlinks == 0) fail_msg("no golden for %s", op);
    for (hsize_t i = 0; i < info.nlinks; i++) {
        char name[64];
        H5Lget_name_by_idx(cases, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
        printf("%s/%s\n", op, name);
        hid_t group = H5Gopen2(cases, name, H5P_DEFAULT);
        check(group);
        H5Gclose(group);
    }
    H5Gclose(cases);
    H5Fclose(file);
}

#endif
