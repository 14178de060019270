#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/interrupt.h"
#include "comm/watchdog.h"

/* Each case is a process that calls watchdog_start and then behaves in its way; all run at the same time. */

static const int64_t second_ns = 1000000000;

static void finishes(void) { _exit(STATUS_OK); }
static void finds_bad_input(void) { _exit(STATUS_INPUT); }
static void library_gives_up(void) { _exit(1); }
static void is_killed(void) { kill(getpid(), SIGKILL); }
static void crashes(void) {
    signal(SIGSEGV, SIG_DFL); /* cmocka has a handler */
    kill(getpid(), SIGSEGV);
}
static void is_stopped(void) { kill(getpid(), SIGSTOP); }

static void is_stopped_without_limit(void) {
    watchdog_set_limit(0);
    pid_t rank = getpid();
    if (fork() == 0) {
        clock_sleep_ns(3 * second_ns);
        kill(rank, SIGCONT);
        _exit(0);
    }
    kill(rank, SIGSTOP);
    _exit(STATUS_OK);
}

static void is_busy_and_silent(void) {
    heartbeat_set_busy(true);
    clock_sleep_ns(60 * second_ns);
}

static void is_busy_and_beats(void) {
    heartbeat_set_busy(true);
    for (int i = 0; i < 80; i++) {
        clock_sleep_ns(second_ns / 10);
        heartbeat();
    }
    _exit(STATUS_OK);
}

static void waits_in_silence(void) {
    heartbeat_set_busy(true);
    heartbeat_set_waiting(true);
    clock_sleep_ns(8 * second_ns);
    _exit(STATUS_OK);
}

/* Longer than is_busy_and_silent may. */
static void waits_for_its_device(void) {
    heartbeat_set_busy(true);
    heartbeat_set_on_device(true);
    clock_sleep_ns(8 * second_ns);
    _exit(STATUS_OK);
}

static void is_asked_to_end(void) {
    interrupt_install();
    kill(getppid(), SIGTERM);
    while (interrupt_check() == STATUS_OK)
        clock_sleep_ns(second_ns / 100);
    _exit(interrupt_signal() == SIGTERM ? STATUS_INTERRUPTED : STATUS_OK);
}

static void cannot_end_when_asked(void) {
    interrupt_install();
    kill(getppid(), SIGTERM);
    heartbeat_set_busy(true);
    heartbeat_set_waiting(true);
    clock_sleep_ns(60 * second_ns);
}

static void takes_long_to_end(void) {
    interrupt_install();
    kill(getppid(), SIGTERM);
    heartbeat_set_waiting(true);
    clock_sleep_ns(6 * second_ns);
    _exit(STATUS_INTERRUPTED);
}

static void has_a_stopped_watcher(void) {
    kill(getppid(), SIGSTOP);
    status_t status = STATUS_OK;
    for (int i = 0; i < 50 && status == STATUS_OK; i++) {
        status = watchdog_check();
        clock_sleep_ns(second_ns / 10);
    }
    kill(getppid(), SIGCONT);
    _exit(status == STATUS_DEVICE ? STATUS_NUMERICS : STATUS_OK);
}

static const struct watched {
    void (*behave)(void);
    int status;
    const char *message; /* "" for none */
} cases[] = {
    {finishes, STATUS_OK, ""},
    {finds_bad_input, STATUS_INPUT, ""},
    {library_gives_up, STATUS_DEVICE, "was ended by a library, with status 1"},
    {is_killed, STATUS_DEVICE, "was killed by signal 9"},
    {crashes, STATUS_DEVICE, "was killed by signal 11"},
    {is_stopped, STATUS_DEVICE, "has been stopped for 1 s"},
    {is_stopped_without_limit, STATUS_OK, ""},
    {is_busy_and_silent, STATUS_DEVICE, "has shown no sign of life"},
    {is_busy_and_beats, STATUS_OK, ""},
    {waits_in_silence, STATUS_OK, ""},
    {waits_for_its_device, STATUS_OK, ""},
    {is_asked_to_end, STATUS_INTERRUPTED, ""},
    {cannot_end_when_asked, STATUS_DEVICE, ""},
    {takes_long_to_end, STATUS_INTERRUPTED, ""},
    {has_a_stopped_watcher, STATUS_NUMERICS, ""},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void start(int index, int *read_end, pid_t *process) {
    int ends[2];
    assert_return_code(pipe(ends), 0);
    *process = fork();
    if (*process == 0) {
        char name[] = "watched";
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (watchdog_start(1, (char *[]){name, NULL}) != STATUS_OK) _exit(100);
        watchdog_set_rank(index);
        watchdog_set_connected();
        watchdog_set_limit(1);
        cases[index].behave();
        _exit(101);
    }
    close(ends[1]);
    *read_end = ends[0];
}

static void each_end_has_its_status_and_message(void **state) {
    (void)state;
    int read_ends[N_CASES];
    pid_t processes[N_CASES];
    for (int i = 0; i < N_CASES; i++)
        start(i, &read_ends[i], &processes[i]);
    for (int i = 0; i < N_CASES; i++) {
        int wait_status;
        char text[1024] = "", rank[32];
        assert_int_equal(waitpid(processes[i], &wait_status, 0), processes[i]);
        ssize_t n = read(read_ends[i], text, sizeof text - 1);
        close(read_ends[i]);
        assert_true(n >= 0);
        print_message("case %d: status %d, %s\n", i, wait_status, text);
        assert_true(WIFEXITED(wait_status));
        assert_int_equal(WEXITSTATUS(wait_status), cases[i].status);
        snprintf(rank, sizeof rank, "rank %d ", i);
        if (!cases[i].message[0])
            assert_string_equal(text, "");
        else
            assert_true(strstr(text, cases[i].message) && strstr(text, rank));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_end_has_its_status_and_message)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
