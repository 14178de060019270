#include "base/heartbeat.h"

static heartbeat_t unwatched;
static heartbeat_t *own = &unwatched;

/* One process writes and the other only compares, so no order between the two words is needed. */
static void put(uint64_t n_beats) { __atomic_store_n(&own->n_beats, n_beats, __ATOMIC_RELAXED); }

void heartbeat_use(heartbeat_t *place) { own = place; }

void heartbeat(void) { put(own->n_beats + 1); }

bool heartbeat_set_busy(bool is_busy) {
    bool was_busy = own->is_busy != 0;
    __atomic_store_n(&own->is_busy, (uint32_t)is_busy, __ATOMIC_RELAXED);
    heartbeat();
    return was_busy;
}

heartbeat_t heartbeat_read(const heartbeat_t *place) {
    return (heartbeat_t){.n_beats = __atomic_load_n(&place->n_beats, __ATOMIC_RELAXED),
                         .is_busy = __atomic_load_n(&place->is_busy, __ATOMIC_RELAXED)};
}
