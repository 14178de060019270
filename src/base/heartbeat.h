#ifndef GALVANI_BASE_HEARTBEAT_H
#define GALVANI_BASE_HEARTBEAT_H

/* Signs of life of this process, for whoever watches it (comm/watchdog.h). A process that computes a step is busy: it
 * beats after every op, and silence means that it hangs, unless it waits for other ranks. While it waits for a device
 * whose work takes part in sums over ranks, silence may be another rank's fault or the device's: the watcher gives it
 * longer. One that loads, reads a prompt or closes a file is not busy and may be silent for as long as it likes. A beat
 * is one store; nothing here fails. For the main thread only. */

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heartbeat {
    uint64_t n_beats;
    bool is_busy, is_waiting, is_on_device;
} heartbeat_t;

/* From here on beats go to `place`, zeroed memory that another process may share; it must stay. */
void heartbeat_use(heartbeat_t *place);

void heartbeat(void);

/* Begin or end a step, a wait for other ranks, a wait for a device that may wait for other ranks. Each is a beat too.
 */
void heartbeat_set_busy(bool is_busy);
void heartbeat_set_waiting(bool is_waiting);
void heartbeat_set_on_device(bool is_on_device);

/* What the watcher sees. */
heartbeat_t heartbeat_read(const heartbeat_t *place);

#ifdef __cplusplus
}
#endif
#endif
