#include "base/heartbeat.h"

static heartbeat_t unwatched;
static heartbeat_t *own = &unwatched;

/* One process writes and the other only compares, so no order between the words is needed. */
void heartbeat_use(heartbeat_t *place) { own = place; }

void heartbeat(void) { __atomic_store_n(&own->n_beats, own->n_beats + 1, __ATOMIC_RELAXED); }

void heartbeat_set_busy(bool is_busy) {
    __atomic_store_n(&own->is_busy, is_busy, __ATOMIC_RELAXED);
    heartbeat();
}

void heartbeat_set_waiting(bool is_waiting) {
    __atomic_store_n(&own->is_waiting, is_waiting, __ATOMIC_RELAXED);
    heartbeat();
}

void heartbeat_set_on_device(bool is_on_device) {
    __atomic_store_n(&own->is_on_device, is_on_device, __ATOMIC_RELAXED);
    heartbeat();
}

heartbeat_t heartbeat_read(const heartbeat_t *place) {
    return (heartbeat_t){.n_beats = __atomic_load_n(&place->n_beats, __ATOMIC_RELAXED),
                         .is_busy = __atomic_load_n(&place->is_busy, __ATOMIC_RELAXED),
                         .is_waiting = __atomic_load_n(&place->is_waiting, __ATOMIC_RELAXED),
                         .is_on_device = __atomic_load_n(&place->is_on_device, __ATOMIC_RELAXED)};
}
