#ifndef GALVANI_BASE_HEARTBEAT_H
#define GALVANI_BASE_HEARTBEAT_H

/* Signs of life of this process, for whoever watches it (comm/watchdog.h). A process that computes a step is busy: it
 * beats after every op, and silence means that it hangs. One that waits for other ranks cannot beat, and is not to
 * blame. One that loads, reads a prompt or closes a file is neither, and may be silent for as long as it likes. A beat
 * is one store; nothing here fails. For the main thread only. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heartbeat_phase { HEARTBEAT_FREE, HEARTBEAT_BUSY, HEARTBEAT_WAITING } heartbeat_phase_t;

typedef struct heartbeat {
    uint64_t n_beats;
    uint32_t phase; /* heartbeat_phase_t */
} heartbeat_t;

/* From here on beats go to `place`, zeroed memory that another process may share; it must stay. */
void heartbeat_use(heartbeat_t *place);

void heartbeat(void);

/* Begins another phase, which is a beat too. Returns the phase before, to be entered again after a wait. */
heartbeat_phase_t heartbeat_enter(heartbeat_phase_t phase);

/* What the watcher sees. */
heartbeat_t heartbeat_read(const heartbeat_t *place);

#ifdef __cplusplus
}
#endif
#endif
