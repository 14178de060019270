#ifndef GALVANI_BASE_INTERRUPT_H
#define GALVANI_BASE_INTERRUPT_H

/* Signals that ask the program to end: noted when they come, acted on between pieces of work. */

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From here on SIGINT, SIGTERM, SIGUSR1 (which mpirun passes on) and SIGXCPU (a batch system's time limit) ask the
 * program to end after the work in hand instead of killing it; a second SIGINT kills. SIGXFSZ (a limit on file sizes)
 * no longer kills: the write that met the limit fails. */
void interrupt_install(void);

/* The first signal is then acknowledged on stderr as it comes. For one rank of several. */
void interrupt_acknowledge(void);

/* The signal that arrived, 0 if none did. */
int interrupt_signal(void);

/* STATUS_INTERRUPTED if a signal arrived. To be asked between pieces of work that take less than a second. */
status_t interrupt_check(void);

#ifdef __cplusplus
}
#endif
#endif
