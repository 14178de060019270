/* The table of launches (device/launches.h) against what the recorded decode step of nano launches, with every route
 * and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "gpu_support.h"
#include "support/all_ranks.h"

static comm_t *comm;
static backend_t *backend;

/* A prompt and some tokens: the second decode step is recorded. */
static void decode(engine_t *engine) {
    static const int32_t prompt[] = {5, 6, 7, 8};
    static const sampling_t greedy = {.top_p = 1.0};
    sample_t sample;
    assert_all_ok(comm, engine_reset(engine));
    assert_all_ok(comm, op_trace_set_level(engine_trace(engine), OP_TRACE_OFF));
    assert_all_ok(comm, engine_forward(engine, prompt, 4));
    for (int i = 0; i < 4; i++) {
        assert_all_ok(comm, engine_sample(engine, &greedy, STATUS_OK, &sample));
        assert_all_ok(comm, engine_forward(engine, &sample.token, 1));
    }
    assert_all_ok(comm, engine_sample(engine, &greedy, STATUS_OK, &sample));
}

static void check(engine_t *engine, const char *what) {
    cost_t cost;
    decode(engine);
    engine_cost(engine, engine_position(engine), &cost);
    int64_t expected = cost_launches(&cost), counted = (int64_t)engine_n_launches(engine);
    print_message("%s: %lld launches, %lld by the table\n", what, (long long)counted, (long long)expected);
    assert_int_equal(counted, expected);
}

static void table_agrees_with_the_recorded_step(void **state) {
    (void)state;
    const engine_args_t args = {.model = "synthetic:configs/nano.json",
                                .comm = comm,
                                .backend = backend,
                                .max_context = 64,
                                .cuda_graph = true};
    engine_t *engine;
    assert_all_ok(comm, engine_create(&args, &engine));
    check(engine, "all routes");
    for (int route = 0; route < N_KERNEL_ROUTES; route++)
        assert_all_ok(comm, engine_set_route(engine, kernel_route_name((kernel_route_t)route), false));
    check(engine, "no routes");
    engine_destroy(engine);
}

/* test_launches [push|nccl|mpi] */
int main(int argc, char **argv) {
    backend_args_t args = {.kind = BACKEND_CUDA, .all_reduce = argc > 1 ? argv[1] : NULL};
    status_t status = comm_init(&args.comm);
    comm = args.comm;
    if (status != STATUS_OK || backend_open(&args, &backend) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return EXIT_FAILURE;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_agrees_with_the_recorded_step)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend->ops->destroy(backend);
    comm_finalize(comm);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
