#include "checkpoint/nvfp4.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

static const float E2M1_MAX = 6.0f, E4M3_MAX = 448.0f;

float nvfp4_amax(const uint16_t *values, size_t n) {
    /* Without their sign bit BF16 words rise with the magnitude, NaN above infinity. */
    uint16_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = values[i] & 0x7FFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    return bf16_to_float(largest);
}

float nvfp4_scale_2(float amax) { return amax > 0 ? amax / (E2M1_MAX * E4M3_MAX) : 1.0f; }

static void quantize_block(const uint16_t *values, float scale_2, uint8_t *codes, uint8_t *scale) {
    float ratio = nvfp4_amax(values, NVFP4_BLOCK) / (E2M1_MAX * scale_2);
    *scale = e4m3_from_float(ratio > 0 ? ratio : 1.0f);
    float divisor = e4m3_values[*scale] * scale_2;
    if (divisor == 0) {
        memset(codes, 0, NVFP4_BLOCK / 2);
        return;
    }
    uint8_t wide[NVFP4_BLOCK];
    for (int i = 0; i < NVFP4_BLOCK; i++) {
        /* ModelOpt keeps the sign of what rounds to zero. */
        float quotient = bf16_to_float(values[i]) / divisor;
        wide[i] = (uint8_t)(e2m1_from_float(fabsf(quotient)) | (quotient < 0 ? 8 : 0));
    }
    for (int i = 0; i < NVFP4_BLOCK / 2; i++)
        codes[i] = (uint8_t)(wide[2 * i] | wide[2 * i + 1] << 4);
}

void nvfp4_quantize(const uint16_t *values, size_t n, float scale_2, uint8_t *codes, uint8_t *scales) {
    for (size_t block = 0; block < n / NVFP4_BLOCK; block++)
        quantize_block(values + block * NVFP4_BLOCK, scale_2, codes + block * NVFP4_BLOCK / 2, scales + block);
}

void nvfp4_dequantize(const uint8_t *codes, const uint8_t *scales, float scale_2, size_t n, float *values) {
    for (size_t i = 0; i < n; i++) {
        uint8_t code = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        values[i] = e2m1_values[code] * e4m3_values[scales[i / NVFP4_BLOCK]] * scale_2;
    }
}
