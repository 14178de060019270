#include "base/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t arrived = 0;

static void on_signal(int number) {
    arrived = number;
    if (number == SIGINT) signal(SIGINT, SIG_DFL);
}

void interrupt_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGXCPU, &action, NULL);
}

int interrupt_signal(void) { return (int)arrived; }
