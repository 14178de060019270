#ifndef GALVANI_TESTS_COMPARE_H
#define GALVANI_TESTS_COMPARE_H

/* Comparing arrays of numbers: a failure names the worst place. Included behind cmocka.h. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* max |actual - expected| <= tolerance * max |expected|. A NaN on one side only is the worst difference. */
static inline void assert_close_f64(const char *what, const float *actual, const double *expected, int64_t n,
                                    double tolerance) {
    double worst = 0.0, magnitude = 0.0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(actual[i]) && isnan(expected[i])) continue;
        double difference = fabs((double)actual[i] - expected[i]);
        if (!(difference <= worst)) {
            worst = isnan(difference) ? INFINITY : difference;
            at = i;
        }
        if (isfinite(expected[i])) magnitude = fmax(magnitude, fabs(expected[i]));
    }
    if (worst <= tolerance * magnitude) return;
    fail_msg("%s: worst of %lld at %lld: %.9g, expected %.9g; off by %.3g of the largest (%.3g), allowed %.3g", what,
             (long long)n, (long long)at, (double)actual[at], expected[at], worst / magnitude, magnitude, tolerance);
}

static inline void assert_close(const char *what, const float *actual, const float *expected, int64_t n,
                                double tolerance) {
    double *wide = test_malloc((size_t)n * sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)expected[i];
    assert_close_f64(what, actual, wide, n, tolerance);
    test_free(wide);
}

/* Equal to the bit. */
static inline void assert_same_bits(const char *what, const float *actual, const float *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(actual + i, expected + i, sizeof *actual) != 0)
            fail_msg("%s: first difference of %lld at %lld: %.9g and %.9g", what, (long long)n, (long long)i,
                     (double)actual[i], (double)expected[i]);
    }
}

static inline void assert_same_ints(const char *what, const int32_t *actual, const int32_t *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (actual[i] != expected[i])
            fail_msg("%s: first difference of %lld at %lld: %d, expected %d", what, (long long)n, (long long)i,
                     actual[i], expected[i]);
    }
}

#endif
