#include "base/interrupt.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* One SIGINT may come twice, from the terminal and through the process that watches this one. */
static const int64_t same_signal_ns = 300000000;

static volatile sig_atomic_t arrived, is_acknowledged;
static int64_t arrived_ns; /* the handler's own */

/* mpirun drops what its ranks print once it has been asked to end itself, but for the first moments: hence a line at
 * once, besides the message at the end. */
static void acknowledge(void) {
    static const char line[] = "galvani: a signal asks for the end: finishing the work in hand\n";
    if (is_acknowledged && write(STDERR_FILENO, line, sizeof line - 1) < 0) return;
}

static void on_signal(int number) {
    int64_t now_ns = clock_now_ns();
    if (!arrived) {
        arrived = number;
        arrived_ns = now_ns;
        acknowledge();
    } else if (number == SIGINT && now_ns - arrived_ns > same_signal_ns) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
}

void interrupt_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGXCPU, &action, NULL);
    /* A write beyond the limit on file sizes then fails, and is reported as such. */
    signal(SIGXFSZ, SIG_IGN);
}

void interrupt_acknowledge(void) { is_acknowledged = 1; }

int interrupt_signal(void) { return (int)arrived; }

status_t interrupt_check(void) {
    return arrived ? status_fail(STATUS_INTERRUPTED, "stopped by signal %d", (int)arrived) : STATUS_OK;
}
