#ifndef GALVANI_COMM_WATCHDOG_H
#define GALVANI_COMM_WATCHDOG_H

/* Turns the death or the standstill of a rank into one message and an exit status.
 *
 * A rank that is killed says nothing, and mpirun then ends with the number of the signal. So each rank is two
 * processes: the one that mpirun or srun started does nothing but wait, and its child is the rank. When the child is
 * killed, the waiting process names the rank and ends with STATUS_DEVICE, and the launcher ends the other ranks and
 * passes that status on. It names a rank that is stopped, or busy without a sign of life (base/heartbeat.h), for longer
 * than the limit, and kills it; and it does not wait for ever for MPI to connect the ranks. Signals that ask for an end
 * are passed to the child, which is killed if it cannot follow because it waits within a step for a rank that does not
 * come; Slurm would wait half a minute. A child whose watcher is killed dies with it. No rank watches another, so this
 * works alike on any number of hosts. The watcher wakes once a second. */

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WATCHDOG_DEFAULT_LIMIT_S = 30 };

/* Splits the process: the caller goes on as the child, the watcher never returns. To be called before MPI, threads and
 * devices are started. The watcher overwrites argv with a name of its own, for ps. STATUS_DEVICE if there can be no
 * other process. */
status_t watchdog_start(int argc, char **argv);

/* Tells the watcher which rank its messages are about. Without watchdog_start this and what follows do nothing. */
void watchdog_set_rank(int tp_rank);

/* Tells it that the ranks have reached each other. */
void watchdog_set_connected(void);

/* Seconds of standstill that end the job; 0 for no limit. */
void watchdog_set_limit(int seconds);

/* STATUS_DEVICE if the watcher itself has stood still for the limit: then nobody would tell the launcher how this rank
 * ends. Asked once a step. */
status_t watchdog_check(void);

#ifdef __cplusplus
}
#endif
#endif
