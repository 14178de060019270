/* That microbench sees an operator which computes something else, or which leaves some of its result unwritten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "microbench/microbench.h"
#include "model/synthetic.h"

static comm_t *comm;

static const microbench_op_t *find(const char *name) {
    int i = 0;
    while (strcmp(microbench_ops[i]->name, name) != 0)
        i++;
    return microbench_ops[i];
}

/* The first row of an op on a backend with that table. */
static microbench_row_t measure(const backend_ops_t *ops, const char *name) {
    static model_config_t config;
    char *json;
    backend_t *backend;
    assert_int_equal(synthetic_config("configs/nano.json", &config, &json), STATUS_OK);
    memory_free(json);
    assert_int_equal(backend_create(BACKEND_CPU, comm, &backend), STATUS_OK);
    if (ops) backend->ops = ops;
    backend->cache_bytes = 65536;
    microbench_t bench = {.backend = backend,
                          .config = &config,
                          .local = local_shape(&config, 0, 1),
                          .n_tokens = 2,
                          .pos = 30,
                          .operands = {.backend = backend}};
    microbench_row_t rows[1 + N_KERNEL_ROUTES];
    int n_rows;
    assert_int_equal(microbench_measure(&bench, find(name), 1, rows, &n_rows), STATUS_OK);
    assert_int_equal(n_rows, 1);
    backend->ops->destroy(backend);
    return rows[0];
}

static backend_ops_t table(void) {
    backend_t *backend;
    assert_int_equal(backend_create(BACKEND_CPU, comm, &backend), STATUS_OK);
    backend_ops_t ops = *backend->ops;
    backend->ops->destroy(backend);
    return ops;
}

static status_t shared_without_gate(backend_t *backend, const shared_expert_args_t *args) {
    static const float ones[2] = {1.0f, 1.0f};
    shared_expert_args_t other = *args;
    (void)backend;
    other.shared_gate = ones;
    return shared_expert_cpu(&other);
}

/* The second token's experts stay as they were: poisoned. */
static status_t router_of_one_token(backend_t *backend, const router_args_t *args) {
    router_args_t other = *args;
    (void)backend;
    other.n_tokens = 1;
    return router_cpu(&other);
}

static void test_wrong_results(void **state) {
    (void)state;
    backend_ops_t ops = table();
    ops.shared_expert = shared_without_gate;
    assert_true(measure(&ops, "shared_expert").relative_error > 1e-2);
    assert_true(measure(NULL, "shared_expert").relative_error < 1e-6);
}

static void test_unwritten_results(void **state) {
    (void)state;
    backend_ops_t ops = table();
    ops.router = router_of_one_token;
    assert_true(measure(&ops, "router").is_wrong);
    assert_false(measure(NULL, "router").is_wrong);
}

static void test_copies_take_turns(void **state) {
    (void)state;
    microbench_row_t row = measure(NULL, "gr_mix");
    assert_true(row.n_copies > 1 && row.bytes * row.n_copies > 4 * 65536);
    assert_true(row.us > 0);
}

int main(void) {
    assert_int_equal(comm_init(&comm), STATUS_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_results),
        cmocka_unit_test(test_unwritten_results),
        cmocka_unit_test(test_copies_take_turns),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_finalize(comm);
    return n_failed;
}
