/* The model of a step's time against the published byte floors of the real model, in MB, context 8192. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/memory.h"
#include "model/cost.h"
#include "model/synthetic.h"

static model_config_t config;

static void build(int tp_size, dtype_t dense, cost_t *cost) {
    const cost_args_t args = {.config = &config,
                              .local = local_shape(&config, 0, tp_size),
                              .dense = dense,
                              .activation_bytes = 2,
                              .expert_format = EXPERTS_NVFP4,
                              .ple_dtype = DTYPE_F8_E4M3,
                              .context = 8192};
    cost_build(&args, cost);
}

/* What the published floors count otherwise than QPN8 is: its scales, four bytes for each row, not at all; and the rows
 * of b and a and of the indexer with 16 bits. */
static double otherwise_mb(int tp_size, op_group_t group) {
    local_shape_t local = local_shape(&config, 0, tp_size);
    int64_t H = config.hidden_size, indexer = (config.indexer_n_heads + 1) * config.indexer_head_dim;
    int64_t rows = 36 * (local.gdn_projected + H) + 12 * (local.qsa_projected + H);
    if (group == OP_GROUP_GR) return -97.0 * (double)(config.hc_lowrank + local.stream_width) * 4 / 1e6;
    if (group != OP_GROUP_PROJECTIONS) return 0;
    return (double)(36 * 2 * local.n_value_heads * H + 12 * indexer * H - rows * 4) / 1e6;
}

static void the_floors_are_the_published_ones(void **state) {
    (void)state;
    /* GR, GDN and QSA projections, experts, router, shared expert, LM head, state and KV; GB in all. */
    static const struct {
        int tp_size;
        dtype_t dense;
        double gr, gdn, qsa, experts, router, shared, lm_head, state, total;
    } floors[] = {
        {4, DTYPE_QPN8, 644, 524, 197, 332, 126, 118, 318, 88, 2.35},
        {4, DTYPE_F16, 1279, 1043, 354, 332, 126, 118, 318, 88, 3.66},
        {1, DTYPE_QPN8, 644, 2094, 637, 1327, 126, 472, 1271, 283, 6.85},
        {1, DTYPE_F16, 1279, 4170, 1235, 1327, 126, 472, 1271, 283, 10.2},
        {2, DTYPE_QPN8, 644, 1047, 338, 664, 126, 236, 636, 145, 3.83},
        {2, DTYPE_F16, 1279, 2085, 637, 664, 126, 236, 636, 145, 5.81},
    };
    for (size_t i = 0; i < sizeof floors / sizeof floors[0]; i++) {
        cost_t cost;
        build(floors[i].tp_size, floors[i].dense, &cost);
        bool is_8bit = floors[i].dense == DTYPE_QPN8;
        double total = 0;
        const struct {
            op_group_t group;
            double floor, allowed;
        } groups[] = {
            {OP_GROUP_GR, floors[i].gr, 0.5},
            {OP_GROUP_PROJECTIONS, floors[i].gdn + floors[i].qsa, 1},
            {OP_GROUP_EXPERTS, floors[i].experts, 0.5},
            {OP_GROUP_ROUTER, floors[i].router, 0.5},
            {OP_GROUP_SHARED_EXPERT, floors[i].shared, 0.5},
            {OP_GROUP_LM_HEAD, floors[i].lm_head, 0.5},
        };
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            double mb = cost_group_bytes(&cost, groups[g].group) / 1e6;
            if (is_8bit) mb += otherwise_mb(floors[i].tp_size, groups[g].group);
            if (fabs(mb - groups[g].floor) > groups[g].allowed)
                fail_msg("case %zu: %s is %.2f MB, not %.0f", i, op_group_name(groups[g].group), mb, groups[g].floor);
            total += mb;
        }
        double state_mb = (cost_group_bytes(&cost, OP_GROUP_GDN_CORE) + cost_group_bytes(&cost, OP_GROUP_QSA)) / 1e6;
        assert_true(fabs(state_mb - floors[i].state) <= 0.5);
        assert_true(fabs((total + state_mb) / 1e3 - floors[i].total) <= (floors[i].total > 10 ? 0.05 : 0.006));
    }
}

/* All blocks are attended up to the budget, then the budget and the tail. */
static void the_cache_is_read_as_far_as_it_is_attended(void **state) {
    (void)state;
    cost_args_t args = {.config = &config,
                        .local = local_shape(&config, 0, 1),
                        .dense = DTYPE_F16,
                        .activation_bytes = 2,
                        .expert_format = EXPERTS_NVFP4};
    static const int64_t contexts[] = {0, 1000, 2048, 2051, 100000}, attended[] = {0, 1000, 2048, 2051, 2048};
    for (int i = 0; i < 5; i++) {
        cost_t cost;
        args.context = contexts[i];
        cost_build(&args, &cost);
        double values = (double)(contexts[i] / 4 * 128 + attended[i] * 2 * 2 * 256);
        assert_true(fabs(cost_group_bytes(&cost, OP_GROUP_QSA) - 12 * values * 2) < 1);
    }
}

static void time_is_launches_and_bytes(void **state) {
    (void)state;
    cost_device_t device = {
        .bytes_per_s = 1e12, .launch_us = 2, .overlap_us = 3, .sum_us = 5, .fused_sum_us = 4, .host_us = 40};
    cost_t cost;
    build(2, DTYPE_F16, &cost);
    double bytes = cost_group_bytes(&cost, OP_GROUP_EXPERTS);
    double n = (double)cost_group_launches(&cost, OP_GROUP_EXPERTS);
    assert_true(n >= 48);
    assert_true(fabs(cost_group_ms(&cost, &device, false, OP_GROUP_EXPERTS) - (n * 2e-3 + bytes / 1e9)) < 1e-9);
    /* Launches that overlap take their bytes' time, and no less than 3 us each: here both are the case. */
    assert_true(fabs(cost_group_ms(&cost, &device, true, OP_GROUP_EXPERTS) - bytes / 1e9) < 1e-9);
    assert_true(fabs(cost_group_ms(&cost, &device, true, OP_GROUP_OTHER) -
                     3e-3 * (double)cost_group_launches(&cost, OP_GROUP_OTHER)) < 1e-9);
    device.overlap_us = 0;
    assert_true(fabs(cost_group_ms(&cost, &device, true, OP_GROUP_EXPERTS) - (n * 2e-3 + bytes / 1e9)) < 1e-9);
    /* Two sums a layer, and one for the n-gram rows. */
    assert_true(fabs(cost_group_ms(&cost, &device, true, OP_GROUP_COMM) - 97 * 5e-3) < 1e-9);
    assert_true(cost_group_ms(&cost, &device, true, OP_GROUP_HOST_GAP) == 0.04);
    /* All but that and the one in front of it, with the mixers that follow. */
    double gr_ms = cost_group_ms(&cost, &device, true, OP_GROUP_GR);
    cost_args_t fused = {.config = &config, .local = local_shape(&config, 0, 2), .dense = DTYPE_F16};
    fused.routes_taken[ROUTE_FUSED_ALLREDUCE] = true;
    cost_t with;
    cost_build(&fused, &with);
    assert_int_equal(cost_launches(&cost) - cost_launches(&with), 95);
    assert_true(fabs(cost_group_ms(&with, &device, true, OP_GROUP_COMM) - 2 * 5e-3) < 1e-9);
    assert_true(fabs(cost_group_ms(&with, &device, true, OP_GROUP_GR) - gr_ms - 95 * 4e-3) < 1e-9);
    int64_t n_launches = cost_launches(&cost);
    const cost_args_t ahead = {.config = &config, .local = local_shape(&config, 0, 2), .runs_ahead = true};
    cost_build(&ahead, &cost);
    assert_int_equal(cost_launches(&cost), n_launches + 1);
    assert_true(cost_group_ms(&cost, &device, true, OP_GROUP_HOST_GAP) == 0);
    assert_string_equal(cost_find_device("rank 0: NVIDIA H200, bus 0000:00:06.0")->name, "H200");
    assert_string_equal(cost_find_device("tesla v100-SXM2-32GB")->name, "V100");
    assert_null(cost_find_device(""));
}

static int set_up(void **state) {
    (void)state;
    char *json;
    if (synthetic_config("full", &config, &json) != STATUS_OK) return 1;
    memory_free(json);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_floors_are_the_published_ones),
        cmocka_unit_test(the_cache_is_read_as_far_as_it_is_attended),
        cmocka_unit_test(time_is_launches_and_bytes),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
