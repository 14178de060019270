#ifndef GALVANI_TESTS_GOLDEN_CASES_H
#define GALVANI_TESTS_GOLDEN_CASES_H

/* The list of tests/golden's models, and a test run on each; included behind cmocka.h. */

#include "support/all_ranks.h"
#include "support/golden_model.h"
#include "support/model_shards.h"

typedef struct golden_case {
    const char *name;        /* directory below tests/golden */
    const char *golden_name; /* file in it */
    bool quantize_experts;
} golden_case_t;

static golden_case_t golden_cases[] = {
    {"mixed", "golden.h5", false},   {"experts512", "golden.h5", false}, {"tp8", "golden.h5", false},
    {"two_ple", "golden.h5", false}, {"fused_bf16", "golden.h5", false}, {"fused_bf16", "golden_nvfp4.h5", true},
    {"ties", "golden.h5", false},
};
enum { N_GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

/* Opens a case's golden and converts its checkpoint for the ranks of `comm` into `directory`; ends the test as skipped
 * where the golden is not meant for so many. Collective. */
static inline golden_t golden_case_open(comm_t *comm, const golden_case_t *test, char directory[MODEL_SHARDS_BYTES]) {
    char path[256];
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "/%s/%s", test->name, test->golden_name);
    golden_t golden = golden_open(path);
    if (!golden_has_tp(&golden, comm_tp_size(comm))) {
        golden_close(&golden);
        skip();
    }
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "/%s/checkpoint", test->name);
    assert_all_ok(comm, model_shards_create(comm, path, test->quantize_experts, directory));
    return golden;
}

/* Runs `test` on each, with the golden_case_t as its state; gives the number of failures. */
static inline int golden_cases_run(CMUnitTestFunction test) {
    struct CMUnitTest tests[N_GOLDEN_CASES];
    for (int i = 0; i < N_GOLDEN_CASES; i++)
        tests[i] = (struct CMUnitTest){golden_cases[i].name, test, NULL, NULL, &golden_cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
