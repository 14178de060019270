#include "common/rope.h"

#include <math.h>

void rope_rotate(float *x, int64_t n_vectors, int64_t stride, int64_t rotary_dim, double theta, int64_t position) {
    int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * pow(theta, -2.0 * (double)i / (double)rotary_dim);
        float cosine = (float)cos(angle);
        float sine = (float)sin(angle);
        for (int64_t v = 0; v < n_vectors; v++) {
            float *pair = x + v * stride + i;
            float first = pair[0], second = pair[half];
            pair[0] = first * cosine - second * sine;
            pair[half] = second * cosine + first * sine;
        }
    }
}
