#ifndef GALVANI_COMM_CLOCKS_H
#define GALVANI_COMM_CLOCKS_H

/* How the ranks' monotonic clocks (base/clock.h) stand to each other. */

#include <stdint.h>

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's clock showed offset_ns more than rank 0's, give or take half of round_trip_ns. */
typedef struct clock_offset {
    int64_t offset_ns, round_trip_ns;
} clock_offset_t;

/* Exchanges some messages between rank 0 and each other rank and keeps the fastest of each. An offset that this cannot
 * tell from none is given as 0: ranks of one host share a clock. `offsets`: [tp_size], filled on rank 0; may be NULL
 * elsewhere. Collective. */
void clocks_measure(comm_t *comm, clock_offset_t *offsets);

#ifdef __cplusplus
}
#endif
#endif
