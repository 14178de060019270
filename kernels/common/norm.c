#include "common/norm.h"

#include <math.h>

#include "common/dot.h"

void rmsnorm_one_plus(const float *x, const float *weight, int64_t n, float eps, float *y) {
    float scale = 1.0f / sqrtf(dot_f32(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * (1.0f + weight[i]);
}

void l2norm(float *x, int64_t n, float factor) {
    float scale = factor / sqrtf(dot_f32(x, x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}
