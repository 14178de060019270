/* The sizes that a build without CUDA plans with, against those of the ops. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda_sizes.h"
#include "model/memory_plan.h"
#include "model/synthetic.h"

static size_t workspace(const backend_ops_t *ops, const model_config_t *config, int tp_size, int64_t prefill_chunk) {
    const memory_plan_args_t args = {.config = config,
                                     .local = local_shape(config, 0, tp_size),
                                     .ops = ops,
                                     .max_context = 131072,
                                     .prefill_chunk = prefill_chunk};
    memory_plan_t plan;
    assert_int_equal(memory_plan_make(&args, &plan), STATUS_OK);
    return plan.needed[MEMORY_WORKSPACE];
}

static void estimates_are_enough_and_close(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 64, 2048, 8192};
    const backend_ops_t *ops = backend_sizes(BACKEND_CUDA);
    model_config_t config;
    char *config_json;
    assert_int_equal(synthetic_config("full", &config, &config_json), STATUS_OK);
    memory_free(config_json);
    assert_int_equal(cuda_sizes.activation_bytes, ops->activation_bytes);
    assert_int_equal(cuda_sizes.prefill_chunk, ops->prefill_chunk);
    assert_int_equal(cuda_sizes.runtime_bytes, ops->runtime_bytes);
    assert_int_equal(cuda_sizes.recorded_layer_bytes, ops->recorded_layer_bytes);
    assert_int_equal(cuda_sizes.alloc_granule, ops->alloc_granule);
    assert_int_equal(cuda_sizes.comm_peer_bytes, ops->comm_peer_bytes);
    for (int tp_size = 1; tp_size <= 8; tp_size *= 2) {
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            size_t taken = workspace(ops, &config, tp_size, chunks[i]);
            size_t estimate = workspace(&cuda_sizes, &config, tp_size, chunks[i]);
            if (estimate < taken || estimate > taken + taken / 2)
                fail_msg("T = %d, chunk %lld: %zu bytes estimated, %zu taken", tp_size, (long long)chunks[i], estimate,
                         taken);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(estimates_are_enough_and_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
