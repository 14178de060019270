/* The tensor-parallel group; run on 1, 2, 4 and 8 ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/clocks.h"

static comm_t *comm;

/* A value that depends on rank and place and has no exact FP32 sum. */
static float value_at(int rank, size_t i) {
    return (float)((int)((i * 2654435761u + (size_t)rank * 40503u) % 2001) - 1000) / 7.0f;
}

static void sums_are_added_in_rank_order(void **state) {
    (void)state;
    static const size_t lengths[] = {0, 1, 3, 2560, 65536, 65537, 200001};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        size_t n = lengths[l];
        void *memory;
        assert_int_equal(memory_alloc(MEMORY_OTHER, n, sizeof(float), &memory), STATUS_OK);
        float *data = memory;
        for (size_t i = 0; i < n; i++)
            data[i] = value_at(comm_tp_rank(comm), i);
        assert_int_equal(comm_all_reduce_sum(comm, data, n), STATUS_OK);
        for (size_t i = 0; i < n; i++) {
            float sum = value_at(0, i);
            for (int rank = 1; rank < comm_tp_size(comm); rank++)
                sum += value_at(rank, i);
            if (data[i] != sum)
                fail_msg("length %zu: element %zu is %.9g, not %.9g", n, i, (double)data[i], (double)sum);
        }
        memory_free(data);
    }
}

static void gathers_stand_in_rank_order(void **state) {
    (void)state;
    int mine = 100 + comm_tp_rank(comm), all[64] = {0};
    comm_all_gather(comm, &mine, sizeof mine, all);
    for (int rank = 0; rank < comm_tp_size(comm); rank++)
        assert_int_equal(all[rank], 100 + rank);
    memset(all, 0, sizeof all);
    comm_gather(comm, &mine, sizeof mine, comm_tp_rank(comm) == 0 ? all : NULL);
    if (comm_tp_rank(comm) == 0)
        for (int rank = 0; rank < comm_tp_size(comm); rank++)
            assert_int_equal(all[rank], 100 + rank);
    int told = comm_tp_rank(comm) == 0 ? 7 : 0;
    comm_broadcast(comm, &told, sizeof told);
    assert_int_equal(told, 7);
}

/* Ranks of one host have one clock: whatever the messages took, no offset is left. */
static void clocks_of_one_host_agree(void **state) {
    (void)state;
    clock_offset_t clocks[64];
    memset(clocks, 0xff, sizeof clocks);
    clocks_measure(comm, comm_tp_rank(comm) == 0 ? clocks : NULL);
    if (comm_tp_rank(comm) != 0) return;
    for (int rank = 0; rank < comm_tp_size(comm); rank++) {
        assert_int_equal(clocks[rank].offset_ns, 0);
        assert_in_range(clocks[rank].round_trip_ns, rank > 0, 1000000000);
    }
}

static void agreement_is_the_lowest_failing_ranks(void **state) {
    (void)state;
    status_clear();
    assert_int_equal(comm_agree(comm, STATUS_OK), STATUS_OK);
    int last = comm_tp_size(comm) - 1, rank = comm_tp_rank(comm);

    status_t mine = rank == last ? status_fail(STATUS_INPUT, "bad file") : STATUS_OK;
    assert_int_equal(comm_agree(comm, mine), STATUS_INPUT);
    char expected[64];
    snprintf(expected, sizeof expected, last ? "rank %d: bad file" : "bad file", last);
    assert_string_equal(status_message(), expected);

    status_clear();
    mine = rank >= last - 1 ? status_fail(rank == last ? STATUS_INPUT : STATUS_MEMORY, "fault of %d", rank) : STATUS_OK;
    assert_int_equal(comm_agree(comm, mine), last ? STATUS_MEMORY : STATUS_INPUT);

    status_clear();
    assert_int_equal(comm_agree(comm, status_fail(STATUS_USAGE, "all alike")), STATUS_USAGE);
    assert_string_equal(status_message(), "all alike");
    status_clear();
}

int main(void) {
    if (comm_init(&comm) != STATUS_OK) return EXIT_FAILURE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_added_in_rank_order),
        cmocka_unit_test(gathers_stand_in_rank_order),
        cmocka_unit_test(clocks_of_one_host_agree),
        cmocka_unit_test(agreement_is_the_lowest_failing_ranks),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    comm_finalize(comm);
    return n_failed;
}
