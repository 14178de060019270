#ifndef GALVANI_TESTS_GOLDEN_MODEL_H
#define GALVANI_TESTS_GOLDEN_MODEL_H

/* Reading golden.h5 of tests/golden, and comparing with it; included behind cmocka.h. */

#include <hdf5.h>
#include <math.h>
#include <stdlib.h>

#include "base/h5.h"

#define GOLDEN_DIRECTORY "tests/golden"

typedef struct golden {
    hid_t file;
    size_t n_prompt, n_greedy, n_vocab;
    int32_t *prompt, *greedy;
    float *logits;        /* [n_prompt, n_vocab] */
    float *greedy_logits; /* [n_greedy, n_vocab] */
    double tolerance;
} golden_t;

/* Number of items of a dataset. */
static inline size_t golden_length(hid_t file, const char *path) {
    hid_t dataset = H5Dopen2(file, path, H5P_DEFAULT);
    if (dataset < 0) fail_msg("golden has no %s", path);
    hid_t space = H5Dget_space(dataset);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    H5Dclose(dataset);
    return (size_t)n;
}

/* A whole dataset in memory; freed with free(). */
static inline void *golden_array(hid_t file, const char *path, hid_t type, size_t *n) {
    *n = golden_length(file, path);
    void *data = malloc(*n * H5Tget_size(type) + 1);
    assert_non_null(data);
    hid_t dataset = H5Dopen2(file, path, H5P_DEFAULT);
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) fail_msg("cannot read %s", path);
    H5Dclose(dataset);
    return data;
}

static inline float *golden_floats(hid_t file, const char *path, size_t *n) {
    return golden_array(file, path, H5T_NATIVE_FLOAT, n);
}

static inline int32_t *golden_ints(hid_t file, const char *path, size_t *n) {
    return golden_array(file, path, H5T_NATIVE_INT32, n);
}

static inline golden_t golden_open(const char *path) {
    h5_init();
    golden_t golden = {.file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT)};
    if (golden.file < 0) fail_msg("cannot open %s", path);
    size_t n;
    golden.prompt = golden_ints(golden.file, "/prompt", &golden.n_prompt);
    golden.greedy = golden_ints(golden.file, "/greedy", &golden.n_greedy);
    golden.logits = golden_floats(golden.file, "/logits", &n);
    golden.n_vocab = n / golden.n_prompt;
    golden.greedy_logits = golden_floats(golden.file, "/greedy_logits", &n);
    hid_t attribute = H5Aopen(golden.file, "tolerance", H5P_DEFAULT);
    assert_true(H5Aread(attribute, H5T_NATIVE_DOUBLE, &golden.tolerance) >= 0);
    H5Aclose(attribute);
    return golden;
}

/* Whether the golden is meant for this number of ranks. */
static inline bool golden_has_tp(const golden_t *golden, int tp_size) {
    int32_t sizes[16];
    hid_t attribute = H5Aopen(golden->file, "tp_sizes", H5P_DEFAULT);
    hid_t space = H5Aget_space(attribute);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    assert_in_range(n, 1, 16);
    assert_true(H5Aread(attribute, H5T_NATIVE_INT32, sizes) >= 0);
    H5Sclose(space);
    H5Aclose(attribute);
    for (hssize_t i = 0; i < n; i++) {
        if (sizes[i] == tp_size) return true;
    }
    return false;
}

static inline void golden_close(golden_t *golden) {
    H5Fclose(golden->file);
    free(golden->prompt);
    free(golden->greedy);
    free(golden->logits);
    free(golden->greedy_logits);
}

/* max |x - y| over one token's values, relative to max |y|; NaN counts as infinitely far. */
static inline double golden_difference(const float *x, const float *y, size_t n) {
    double difference = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < n; i++) {
        double distance = fabs((double)x[i] - (double)y[i]);
        if (!(distance <= difference)) difference = isnan(distance) ? INFINITY : distance;
        magnitude = fmax(magnitude, fabs((double)y[i]));
    }
    return magnitude > 0.0 ? difference / magnitude : difference;
}

#endif
