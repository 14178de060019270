#include "common/activation.h"

#include <math.h>

#include "common/vector.h"

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2. The Taylor series up to r^7 / 7! leaves 5e-9 of the value.
 * ln 2 is taken in two parts, the first with few enough bits that n times it is exact. */
VECTOR_INLINE vector_t vector_exp(vector_t x) {
    /* Beyond these the result is 0 or infinity; a NaN passes both comparisons by. */
    x = vector_select(x < -104.0f, vector_set(-104.0f), x);
    x = vector_select(x > 89.0f, vector_set(89.0f), x);
    /* Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the word. */
    const vector_t shift = vector_set(0x1.8p23f);
    vector_t shifted = x * 0x1.715476p0f + shift;
    vector_t n = shifted - shift;
    vector_t r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vector_t p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r * r + r) + 1.0f;
    /* 2^n in two factors, since n reaches from below the smallest exponent to above the largest. */
    vector_i32_t power = (vector_i32_t)shifted - (vector_i32_t)shift;
    vector_i32_t half = power >> 1;
    vector_t low = (vector_t)((half + 127) << 23);
    vector_t high = (vector_t)((power - half + 127) << 23);
    return p * low * high;
}

VECTOR_INLINE vector_t vector_sigmoid(vector_t x) { return 1.0f / (1.0f + vector_exp(-x)); }

void sigmoid(const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += VECTOR_WIDTH)
        vector_store_first(y + i, vector_sigmoid(vector_load_first(x + i, n - i)), n - i);
}

void silu(const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += VECTOR_WIDTH) {
        vector_t v = vector_load_first(x + i, n - i);
        vector_store_first(y + i, v * vector_sigmoid(v), n - i);
    }
}

void silu_multiply(const float *gate, float gate_scale, const float *up, float up_scale, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += VECTOR_WIDTH) {
        vector_t g = vector_load_first(gate + i, n - i) * gate_scale;
        vector_t u = vector_load_first(up + i, n - i) * up_scale;
        vector_store_first(y + i, g * vector_sigmoid(g) * u, n - i);
    }
}

float softmax_exp(const float *x, int64_t n, float *y) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    vector_t sums[VECTORS_PER_LANES] = {{0}};
    for (int64_t i = 0; i < n; i += LANES) {
        for (int v = 0; v < VECTORS_PER_LANES && i + v * VECTOR_WIDTH < n; v++) {
            int64_t at = i + v * VECTOR_WIDTH;
            vector_t e = vector_exp(vector_load_first(x + at, n - at) - max);
            vector_store_first(y + at, e, n - at);
            /* Places behind the end must not count: read them back as zeros. */
            sums[v] += vector_load_first(y + at, n - at);
        }
    }
    return lanes_sum(sums);
}

float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
