#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "embed/embed.h"
#include "support/compare.h"
#include "support/op_data.h"

/* Every stream of a token is its row, exactly. */
static void test_streams(void **state) {
    (void)state;
    static const dtype_t dtypes[] = {DTYPE_BF16, DTYPE_F16};
    for (int d = 0; d < 2; d++) {
        const int32_t tokens[5] = {10, 0, 7, 7, 3};
        int64_t n = 19, n_streams = 4;
        matrix_t embed = op_random_matrix(11, n, dtypes[d]);
        float *h = op_zeros(5 * n_streams * n);
        embed_args_t args = {.n_tokens = 5, .hc_count = n_streams, .tokens = tokens, .embed = embed, .h = h};
        assert_int_equal(embed_cpu(&args), STATUS_OK);
        for (int64_t i = 0; i < 5 * n_streams * n; i++) {
            float expected = (float)op_item(&embed, tokens[i / n / n_streams], i % n);
            assert_same_bits("h", h + i, &expected, 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_streams, op_data_free)};
    return cmocka_run_group_tests(tests, op_data_seed, NULL);
}
