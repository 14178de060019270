#include "base/heartbeat.h"

static heartbeat_t unwatched;
static heartbeat_t *own = &unwatched;

/* One process writes and the other only compares, so no order between the two words is needed. */
void heartbeat_use(heartbeat_t *place) { own = place; }

void heartbeat(void) { __atomic_store_n(&own->n_beats, own->n_beats + 1, __ATOMIC_RELAXED); }

heartbeat_phase_t heartbeat_enter(heartbeat_phase_t phase) {
    heartbeat_phase_t before = (heartbeat_phase_t)own->phase;
    __atomic_store_n(&own->phase, (uint32_t)phase, __ATOMIC_RELAXED);
    heartbeat();
    return before;
}

heartbeat_t heartbeat_read(const heartbeat_t *place) {
    return (heartbeat_t){.n_beats = __atomic_load_n(&place->n_beats, __ATOMIC_RELAXED),
                         .phase = __atomic_load_n(&place->phase, __ATOMIC_RELAXED)};
}
