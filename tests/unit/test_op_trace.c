/* Where a step's time goes, on a device whose stamps the test makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/op_trace.h"

/* What the device's stamps will say, in the order in which they are set. */
static int64_t stamps[32];

static status_t mark(backend_t *backend, size_t index) {
    (void)backend;
    assert_in_range(index, 0, 31);
    return STATUS_OK;
}

static status_t read_marks(backend_t *backend, size_t n, int64_t *ns) {
    (void)backend;
    for (size_t i = 0; i < n; i++)
        ns[i] = stamps[i];
    return STATUS_OK;
}

static const backend_ops_t device_ops = {.mark = mark, .read_marks = read_marks};
static const backend_ops_t host_ops = {.mark = NULL};

enum { N_SMALL = 10 };

/* Ten ops that take small_ns each, then a large one, then the end. */
static void run_step(op_trace_t *trace, bool is_detailed, int64_t small_ns, int64_t large_ns, int64_t end_ns) {
    size_t n = 0;
    op_trace_reset(trace);
    trace->is_detailed = is_detailed;
    stamps[n++] = 0;
    for (int i = 0; i < N_SMALL; i++) {
        op_trace_begin(trace);
        op_trace_end(trace, OP_GROUP_GR, i, "small");
        if (is_detailed) stamps[n] = stamps[n - 1] + small_ns, n++;
    }
    op_trace_begin(trace);
    op_trace_end(trace, OP_GROUP_LM_HEAD, -1, "large");
    if (is_detailed) stamps[n] = stamps[n - 1] + large_ns, n++;
    op_trace_stamp(trace, OP_GROUP_OTHER, "end");
    stamps[n] = N_SMALL * small_ns + large_ns + end_ns;
    assert_int_equal(op_trace_collect(trace, true), STATUS_OK);
}

static op_trace_t *create(backend_t *backend, op_trace_level_t level) {
    op_trace_t *trace;
    assert_int_equal(op_trace_create(backend, &trace), STATUS_OK);
    assert_int_equal(op_trace_set_level(trace, level), STATUS_OK);
    return trace;
}

static void test_stamped_ops(void **state) {
    (void)state;
    backend_t backend = {.ops = &device_ops};
    op_trace_t *trace = create(&backend, OP_TRACE_OPS);
    run_step(trace, true, 3000, 301000, 0);
    assert_int_equal(trace->group_ns[OP_GROUP_GR], 30000);
    assert_int_equal(trace->group_ns[OP_GROUP_LM_HEAD], 301000);
    assert_int_equal(trace->n_records, N_SMALL + 2);
    assert_int_equal(trace->records[4].layer, 4);
    assert_int_equal(trace->records[4].dur_ns, 3000);
    assert_int_equal(trace->records[4].start_ns - trace->records[0].start_ns, 12000);
    op_trace_destroy(trace);
}

/* Each of the 12 stamps behind the first costs 1000 ns, which the next step is spared. */
static void test_time_is_shared_out_without_the_stamps(void **state) {
    (void)state;
    backend_t backend = {.ops = &device_ops};
    op_trace_t *trace = create(&backend, OP_TRACE_STEPS);
    run_step(trace, true, 3000, 301000, 1000);
    assert_int_equal(trace->n_records, 0);
    run_step(trace, false, 2000, 300000, 0);
    assert_in_range(trace->group_ns[OP_GROUP_GR], 19999, 20000);
    assert_in_range(trace->group_ns[OP_GROUP_LM_HEAD], 299999, 300000);
    assert_int_equal(trace->group_ns[OP_GROUP_OTHER], 0);
    /* A step that is longer than the one with all stamps is so in all its parts. */
    run_step(trace, false, 6000, 602000, 2000);
    assert_in_range(trace->group_ns[OP_GROUP_GR], 59990, 60010);
    op_trace_destroy(trace);
}

static void test_off(void **state) {
    (void)state;
    backend_t backend = {.ops = &device_ops};
    op_trace_t *trace = create(&backend, OP_TRACE_OFF);
    run_step(trace, true, 3000, 301000, 0);
    assert_int_equal(trace->n_marks, 0);
    for (int group = 0; group < OP_N_GROUPS; group++)
        assert_int_equal(trace->group_ns[group], 0);
    op_trace_destroy(trace);
}

static void test_host_clock(void **state) {
    (void)state;
    backend_t backend = {.ops = &host_ops};
    op_trace_t *trace = create(&backend, OP_TRACE_OPS);
    op_trace_begin(trace);
    op_trace_end(trace, OP_GROUP_QSA, 3, "op");
    assert_int_equal(trace->n_records, 1);
    assert_int_equal(trace->records[0].layer, 3);
    assert_true(trace->group_ns[OP_GROUP_QSA] >= 0 && trace->group_ns[OP_GROUP_QSA] == trace->records[0].dur_ns);
    op_trace_destroy(trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stamped_ops),
        cmocka_unit_test(test_time_is_shared_out_without_the_stamps),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_host_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
