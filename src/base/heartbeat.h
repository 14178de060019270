#ifndef GALVANI_BASE_HEARTBEAT_H
#define GALVANI_BASE_HEARTBEAT_H

/* Signs of life of this process, for whoever watches it (comm/watchdog.h). A process is busy while it computes a step:
 * then it beats after every op, and silence means that it hangs. While it loads, reads a prompt, closes a file or waits
 * for another rank it is not busy, and may be silent for as long as it likes. A beat is one store; nothing here fails.
 * For the main thread only. */

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heartbeat {
    uint64_t n_beats;
    uint32_t is_busy;
} heartbeat_t;

/* From here on beats go to `place`, zeroed memory that another process may share; it must stay. */
void heartbeat_use(heartbeat_t *place);

void heartbeat(void);

/* Begins or ends being busy, which is a beat too. Returns what was so before, to be restored by a wait inside. */
bool heartbeat_set_busy(bool is_busy);

/* What the watcher sees. */
heartbeat_t heartbeat_read(const heartbeat_t *place);

#ifdef __cplusplus
}
#endif
#endif
