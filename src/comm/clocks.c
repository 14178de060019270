#include "comm/clocks.h"

#include <mpi.h>

#include "base/clock.h"
#include "base/heartbeat.h"

enum { N_ROUNDS = 40, TAG = 20 };

/* Rank 0's side. The other clock is taken to have been read in the middle of the round trip. */
static clock_offset_t ask(int rank) {
    clock_offset_t best = {.round_trip_ns = INT64_MAX};
    for (int i = 0; i < N_ROUNDS; i++) {
        int64_t theirs_ns, begin_ns = clock_now_ns();
        MPI_Send(NULL, 0, MPI_BYTE, rank, TAG, MPI_COMM_WORLD);
        MPI_Recv(&theirs_ns, (int)sizeof theirs_ns, MPI_BYTE, rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        int64_t round_trip_ns = clock_now_ns() - begin_ns;
        if (round_trip_ns >= best.round_trip_ns) continue;
        best = (clock_offset_t){.offset_ns = theirs_ns - begin_ns - round_trip_ns / 2, .round_trip_ns = round_trip_ns};
    }
    int64_t error_ns = best.round_trip_ns / 2;
    if (best.offset_ns <= error_ns && best.offset_ns >= -error_ns) best.offset_ns = 0;
    return best;
}

static void answer(void) {
    for (int i = 0; i < N_ROUNDS; i++) {
        MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        int64_t now_ns = clock_now_ns();
        MPI_Send(&now_ns, (int)sizeof now_ns, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

void clocks_measure(comm_t *comm, clock_offset_t *offsets) {
    heartbeat_set_waiting(true);
    if (comm_tp_rank(comm) == 0) {
        offsets[0] = (clock_offset_t){0};
        for (int rank = 1; rank < comm_tp_size(comm); rank++)
            offsets[rank] = ask(rank);
    } else {
        answer();
    }
    heartbeat_set_waiting(false);
}
