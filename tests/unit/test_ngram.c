#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/ngram.h"
#include "ngram/ngram_rows.h"

static void rows_of(const ngram_constants_t *constants, const int32_t *context, const int32_t *tokens, size_t n_tokens,
                    int64_t *rows) {
    const ngram_rows_args_t args = {.n_tokens = (int64_t)n_tokens,
                                    .n_heads = constants->n_heads,
                                    .ngram_size = constants->ngram_size,
                                    .heads_per_ngram = constants->heads_per_ngram,
                                    .eos_token_id = constants->eos_token_id,
                                    .multipliers = constants->multipliers,
                                    .head_sizes = constants->head_sizes,
                                    .head_offsets = constants->head_offsets,
                                    .context = context,
                                    .tokens = tokens,
                                    .rows = rows};
    assert_int_equal(ngram_rows_cpu(&args), 0);
}

static model_config_t real_config(void) {
    return (model_config_t){
        .vocab_size = 248320,
        .eos_token_id = 248044,
        .ngram_size = 3,
        .heads_per_ngram = 8,
        .ngram_vocab_size_base = 20000000,
        .make_ngram_vocab_size_divisible_by = 128,
        .seed = 1234,
    };
}

/* The real model's constants: transformers' qwen4_exp and three public tables agree on them. */
static void test_constants_of_the_real_model(void **state) {
    (void)state;
    static const int64_t multipliers[3] = {23703573157769, 20109073645365, 8052911324071};
    static const int64_t sizes[16] = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                                      20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171};
    model_config_t config = real_config();
    ngram_constants_t constants;
    ngram_derive(&config, 0, &constants);
    assert_int_equal(constants.n_heads, 16);
    assert_memory_equal(constants.multipliers, multipliers, sizeof multipliers);
    assert_memory_equal(constants.head_sizes, sizes, sizeof sizes);
    assert_int_equal(constants.head_offsets[1], 20000003);
    assert_int_equal(constants.head_offsets[15], 300001275);
    assert_int_equal(constants.n_rows, 320001536);
}

/* A second PLE layer goes on with the 17th prime and has multipliers of its own; its first prime is the next after
 * 20000171. Values: transformers' _find_nth_prime_after(19999999, 17) and _build_layer_multipliers(248320, 3, 1, 1234).
 */
static void test_second_ple_layer(void **state) {
    (void)state;
    static const int64_t multipliers[3] = {3352040966061, 19752442147475, 10742103100073};
    model_config_t config = real_config();
    ngram_constants_t constants;
    ngram_derive(&config, 1, &constants);
    assert_int_equal(constants.head_sizes[0], 20000213);
    assert_int_equal(constants.head_sizes[15], 20000429);
    assert_int_equal(constants.head_offsets[0], 0);
    assert_memory_equal(constants.multipliers, multipliers, sizeof multipliers);
}

/* Published rows of the history [EOS EOS | 5, 7, EOS, 9, 11] in the real model. */
static void test_published_rows(void **state) {
    (void)state;
    static const int32_t tokens[5] = {5, 7, 248044, 9, 11};
    static const int64_t expected[5][16] = {
        {15389869, 39778609, 55713969, 62213332, 88817728, 118483999, 133731511, 155458159, 179763390, 197956758,
         205378969, 220499474, 242466248, 265658744, 293662119, 315720898},
        {12441580, 26378836, 53347667, 75104214, 99467174, 114254887, 126436461, 156012011, 169119442, 187827161,
         214803956, 239809754, 242938905, 266427765, 294337448, 314484167},
        {10204458, 27984170, 41283776, 68842151, 85621153, 118821647, 129504214, 158727320, 176298516, 181690702,
         206665473, 238343128, 252151767, 267018740, 285543023, 319927855},
        {18043673, 37626835, 51159316, 78294604, 94015356, 106720349, 136526052, 144330141, 176817901, 186368539,
         203707490, 230017629, 247662678, 266533413, 293096193, 307951937},
        {10041117, 28960672, 48420531, 71664411, 83016360, 106800418, 122476460, 150044571, 163654473, 184259024,
         206781966, 224776026, 248853488, 273290488, 294849492, 303242927},
    };
    model_config_t config = real_config();
    ngram_constants_t constants;
    ngram_derive(&config, 0, &constants);
    int32_t context[2] = {248044, 248044};
    int64_t rows[5][16];
    rows_of(&constants, context, tokens, 5, rows[0]);
    assert_memory_equal(rows, expected, sizeof expected);

    /* The context crosses calls: one token at a time gives the same rows. */
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < 5; i++) {
        rows_of(&constants, context, &tokens[i], 1, rows[i]);
        context[0] = context[1];
        context[1] = tokens[i];
    }
    assert_memory_equal(rows, expected, sizeof expected);
}

static void test_capital_of_france(void **state) {
    (void)state;
    static const int32_t tokens[5] = {760, 6511, 314, 9338, 369};
    static const int32_t context[2] = {248044, 248044};
    model_config_t config = real_config();
    ngram_constants_t constants;
    ngram_derive(&config, 0, &constants);
    int64_t rows[5][16];
    rows_of(&constants, context, tokens, 5, rows[0]);
    static const int heads[4] = {0, 7, 8, 15};
    static const int64_t first[4] = {19535898, 159481876, 169296599, 315261947};
    static const int64_t last[4] = {11681901, 144632415, 161645402, 300795736};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rows[0][heads[i]], first[i]);
        assert_int_equal(rows[4][heads[i]], last[i]);
    }
}

static ngram_constants_t small_constants(void) {
    return (ngram_constants_t){
        .n_heads = 2,
        .ngram_size = 3,
        .heads_per_ngram = 1,
        .eos_token_id = 99,
        .multipliers = {3, 5, 7},
        .head_sizes = {101, 103},
        .head_offsets = {0, 101},
    };
}

/* Worked by hand in a public bug report. */
static void test_hand_worked_rows(void **state) {
    (void)state;
    static const int32_t tokens[3] = {7, 9, 11};
    static const int32_t context[2] = {99, 99};
    static const int64_t expected[3][2] = {{1, 124}, {56, 136}, {12, 162}};
    ngram_constants_t constants = small_constants();
    int64_t rows[3][2];
    rows_of(&constants, context, tokens, 3, rows[0]);
    assert_memory_equal(rows, expected, sizeof expected);
}

/* Once an EOS is met going back, every older place is EOS; an EOS at the token itself does not cut. */
static void test_eos_cuts_older_places(void **state) {
    (void)state;
    ngram_constants_t constants = small_constants();
    static const int32_t context[2] = {1, 2};
    static const int32_t cut[3] = {99, 4, 5};
    static const int32_t other_context[2] = {50, 60};
    int64_t rows[3][2], other_rows[3][2];
    rows_of(&constants, context, cut, 3, rows[0]);
    rows_of(&constants, other_context, cut, 3, other_rows[0]);
    assert_int_equal(rows[0][0], ((99 * 3) ^ (2 * 5)) % 101);
    assert_int_equal(rows[0][1], ((99 * 3) ^ (2 * 5) ^ (1 * 7)) % 103 + 101);
    assert_int_equal(rows[1][1], ((4 * 3) ^ (99 * 5) ^ (99 * 7)) % 103 + 101);
    assert_memory_equal(rows[1], other_rows[1], sizeof rows[1]);
    assert_int_equal(rows[2][1], ((5 * 3) ^ (4 * 5) ^ (99 * 7)) % 103 + 101);
}

/* Products that wrap negative: the reference takes a floor remainder, so the row is never negative. */
static void test_negative_products_floor(void **state) {
    (void)state;
    ngram_constants_t constants = small_constants();
    static const int32_t context[2] = {99, 99};
    uint64_t random = 42;
    int n_negative = 0;
    for (int trial = 0; trial < 2000; trial++) {
        for (int i = 0; i < 3; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            constants.multipliers[i] = (int64_t)(random | 1);
        }
        int32_t token = (int32_t)(random >> 40) + 1;
        int64_t rows[2];
        rows_of(&constants, context, &token, 1, rows);
        int64_t mixed =
            (int64_t)((uint64_t)token * (uint64_t)constants.multipliers[0] ^ 99u * (uint64_t)constants.multipliers[1]);
        n_negative += mixed < 0;
        assert_in_range(rows[0], 0, 100);
        /* row is congruent to the signed value: their difference is a multiple of the size. */
        assert_int_equal((int64_t)(((__int128)mixed - rows[0]) % 101), 0);
        assert_in_range(rows[1], 101, 203);
    }
    assert_in_range(n_negative, 500, 1500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constants_of_the_real_model),
        cmocka_unit_test(test_second_ple_layer),
        cmocka_unit_test(test_published_rows),
        cmocka_unit_test(test_capital_of_france),
        cmocka_unit_test(test_hand_worked_rows),
        cmocka_unit_test(test_eos_cuts_older_places),
        cmocka_unit_test(test_negative_products_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
