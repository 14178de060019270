#include "common/dot.h"

#include <stdbool.h>

#include "common/vector.h"

/* Tiles of rows x tokens, as many accumulators as the registers hold: each weight widened once for several tokens, each
 * activation read once for several rows. One token alone takes more rows, to have enough sums under way. */
#if VECTOR_WIDTH == 16
#define TILE_ROWS 4
#define TILE_TOKENS 4
#else
#define TILE_ROWS 2
#define TILE_TOKENS 2
#endif
#define TILE_ROWS_ALONE 8
#define MAX_ROWS 8
#define MAX_TOKENS 4

typedef struct row {
    const uint8_t *data;
    const uint8_t *scales;
} row_t;

/* VECTOR_WIDTH weights of a row from `column` on. */
typedef vector_t (*load_t)(row_t row, int64_t column);

VECTOR_INLINE vector_t load_f32(row_t row, int64_t column) {
    vector_t v;
    memcpy(&v, row.data + column * 4, sizeof v);
    return v;
}

VECTOR_INLINE vector_u32_t load_u16(row_t row, int64_t column) {
    vector_u16_t half;
    memcpy(&half, row.data + column * 2, sizeof half);
    return __builtin_convertvector(half, vector_u32_t);
}

VECTOR_INLINE vector_t load_bf16(row_t row, int64_t column) { return vector_from_bits(load_u16(row, column) << 16); }

/* Exponents move from bias 15 to 127. A subnormal takes the exponent of the smallest normal number, which is then 2^-14
 * too much; an exponent of all ones must stay all ones. All exact, and no step makes an FP32 subnormal. */
VECTOR_INLINE vector_t load_f16(row_t row, int64_t column) {
    vector_u32_t half = load_u16(row, column);
    vector_u32_t subnormal = (vector_u32_t)((half & 0x7C00) == 0);
    vector_u32_t special = (vector_u32_t)((half & 0x7C00) == 0x7C00);
    vector_u32_t bits = ((half & 0x7FFF) << 13) + (112u << 23) + (subnormal & 1u << 23) + (special & 112u << 23);
    vector_t magnitude = (vector_t)bits - (vector_t)(subnormal & 113u << 23);
    return (vector_t)((vector_u32_t)magnitude | (half & 0x8000) << 16);
}

/* Eight codes fill a word, so each place shifts its own code down. The magnitudes times two, 0 1 2 3 4 6 8 12, stand as
 * hexadecimal digits in one constant that the code shifts likewise. */
VECTOR_INLINE vector_t load_nvfp4(row_t row, int64_t column) {
    static const uint32_t shifts[16] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
    uint32_t words[2] = {0};
    memcpy(words, row.data + column / 2, VECTOR_WIDTH / 2);
    vector_u32_t codes = (vector_u32_t){0} + words[0];
#if VECTOR_WIDTH == 16
    static const uint32_t second_word[16] = {[8] = ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
    vector_u32_t second;
    memcpy(&second, second_word, sizeof second);
    codes ^= second & (words[0] ^ words[1]);
#endif
    vector_u32_t shift;
    memcpy(&shift, shifts, sizeof shift);
    codes >>= shift;
    vector_u32_t twice = (((vector_u32_t){0} + 0xC8643210u) >> ((codes & 7) << 2)) & 15;
    vector_t magnitude = __builtin_convertvector((vector_i32_t)twice, vector_t);
    float scale = 0.5f * e4m3_values[row.scales[column / 16]];
    return (vector_t)((vector_u32_t)magnitude | (codes & 8) << 28) * scale;
}

/* Adds the products of `columns` columns, a multiple of LANES. */
VECTOR_INLINE void add_products(load_t load, int n_rows, int n_x, const row_t *rows, const float *const *x,
                                int64_t columns, vector_t sums[MAX_ROWS][MAX_TOKENS][VECTORS_PER_LANES]) {
    for (int64_t column = 0; column < columns; column += LANES) {
        for (int v = 0; v < VECTORS_PER_LANES; v++) {
            int64_t at = column + v * VECTOR_WIDTH;
            vector_t weights[MAX_ROWS];
            for (int r = 0; r < n_rows; r++)
                weights[r] = load(rows[r], at);
            for (int t = 0; t < n_x; t++) {
                vector_t values = vector_load(x[t] + at);
                for (int r = 0; r < n_rows; r++)
                    sums[r][t][v] += weights[r] * values;
            }
        }
    }
}

VECTOR_INLINE void tile(load_t load, size_t item_bytes, int n_rows, int n_x, const row_t *rows, const float *const *x,
                        int64_t columns, float *const *y, int64_t y_offset) {
    vector_t sums[MAX_ROWS][MAX_TOKENS][VECTORS_PER_LANES];
    for (int r = 0; r < n_rows; r++) {
        for (int t = 0; t < n_x; t++)
            memset(sums[r][t], 0, sizeof sums[r][t]);
    }
    int64_t whole = columns / LANES * LANES;
    add_products(load, n_rows, n_x, rows, x, whole, sums);
    if (whole < columns) {
        /* The last columns, filled up with zeros. NVFP4 never comes here: its columns are a multiple of 16. */
        uint8_t last_weights[MAX_ROWS][LANES * sizeof(float)] = {{0}};
        float last_values[MAX_TOKENS][LANES] = {{0}};
        row_t last_rows[MAX_ROWS];
        const float *last_x[MAX_TOKENS];
        size_t n_last = (size_t)(columns - whole);
        for (int r = 0; r < n_rows; r++) {
            memcpy(last_weights[r], rows[r].data + (size_t)whole * item_bytes, n_last * item_bytes);
            last_rows[r] = (row_t){last_weights[r], NULL};
        }
        for (int t = 0; t < n_x; t++) {
            memcpy(last_values[t], x[t] + whole, n_last * sizeof(float));
            last_x[t] = last_values[t];
        }
        add_products(load, n_rows, n_x, last_rows, last_x, LANES, sums);
    }
    for (int t = 0; t < n_x; t++) {
        for (int r = 0; r < n_rows; r++)
            y[t][y_offset + r] = lanes_sum(sums[r][t]);
    }
}

/* One weight format's dot_rows: whole tiles, then what is left row by row and token by token. */
VECTOR_INLINE void all_tiles(load_t load, size_t item_bytes, const dot_weights_t *weights, int64_t first_row,
                             int64_t n_rows, const float *const *x, int64_t n_x, float *const *y) {
    int64_t columns = weights->columns;
    size_t row_bytes = weights->scales ? (size_t)columns / 2 : (size_t)columns * item_bytes;
    size_t scale_bytes = (size_t)columns / 16;
    int64_t tile_rows = n_x == 1 ? TILE_ROWS_ALONE : TILE_ROWS;
    for (int64_t r = 0; r < n_rows;) {
        bool whole_rows = r + tile_rows <= n_rows;
        row_t rows[MAX_ROWS];
        for (int64_t i = 0; i < (whole_rows ? tile_rows : 1); i++) {
            size_t row = (size_t)(first_row + r + i);
            rows[i].data = (const uint8_t *)weights->data + row * row_bytes;
            rows[i].scales = weights->scales ? weights->scales + row * scale_bytes : NULL;
        }
        if (n_x == 1 && whole_rows) {
            tile(load, item_bytes, TILE_ROWS_ALONE, 1, rows, x, columns, y, r);
            r += TILE_ROWS_ALONE;
            continue;
        }
        int64_t t = 0;
        for (; t + TILE_TOKENS <= n_x; t += TILE_TOKENS) {
            if (whole_rows)
                tile(load, item_bytes, TILE_ROWS, TILE_TOKENS, rows, x + t, columns, y + t, r);
            else
                tile(load, item_bytes, 1, TILE_TOKENS, rows, x + t, columns, y + t, r);
        }
        for (; t < n_x; t++) {
            if (whole_rows)
                tile(load, item_bytes, TILE_ROWS, 1, rows, x + t, columns, y + t, r);
            else
                tile(load, item_bytes, 1, 1, rows, x + t, columns, y + t, r);
        }
        r += whole_rows ? TILE_ROWS : 1;
    }
}

void dot_rows(const dot_weights_t *weights, int64_t first_row, int64_t n_rows, const float *const *x, int64_t n_x,
              float *const *y) {
    switch (weights->dtype) {
    case DTYPE_F32:
        all_tiles(load_f32, 4, weights, first_row, n_rows, x, n_x, y);
        break;
    case DTYPE_BF16:
        all_tiles(load_bf16, 2, weights, first_row, n_rows, x, n_x, y);
        break;
    case DTYPE_F16:
        all_tiles(load_f16, 2, weights, first_row, n_rows, x, n_x, y);
        break;
    default:
        all_tiles(load_nvfp4, 1, weights, first_row, n_rows, x, n_x, y);
        break;
    }
}

float dot_f32(const float *a, const float *b, int64_t n) {
    float sum;
    float *y[1] = {&sum};
    const float *x[1] = {b};
    row_t row = {(const uint8_t *)a, NULL};
    tile(load_f32, sizeof(float), 1, 1, &row, x, n, y, 0);
    return sum;
}
