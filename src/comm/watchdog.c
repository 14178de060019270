#include "comm/watchdog.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heartbeat.h"
#include "base/log.h"

/* The watcher looks once a second. */
static const int64_t tick_ns = 1000000000;

/* Of several silent ranks the one to blame is named: a stopped one at the limit, one that is busy in itself that much
 * later, and one that waits for a device, which may wait for either, later again. */
enum { SILENCE_MORE_S = 5, DEVICE_MORE_S = 5 };

/* How long MPI may take to connect the ranks. All wait for each other then, so the higher ones let the lowest speak. */
enum { CONNECT_LIMIT_S = 60 };

/* How long a rank that was asked to end may wait for another one within a step. */
enum { END_LIMIT_S = 3 };

/* Memory of both processes. */
typedef struct board {
    heartbeat_t heartbeat; /* the child writes */
    int32_t tp_rank;       /* -1: not known yet */
    int32_t is_connected, limit_s;
    uint64_t n_ticks; /* the watcher writes */
} board_t;

static board_t *board; /* NULL without a watcher */

/* What the watcher knows of its child. */
typedef struct watch {
    pid_t child;
    bool is_stopped, is_on_device, is_asked_to_end;
    uint64_t n_beats; /* at the last tick */
    int quiet_s;      /* seconds without a sign of life where there should be one */
    int waiting_s;    /* seconds that the child, which was asked to end, has waited for another rank within a step */
} watch_t;

/* The signals that ask for an end. */
static const int passed_on[] = {SIGINT, SIGTERM, SIGUSR1, SIGXCPU};
enum { N_PASSED_ON = sizeof passed_on / sizeof passed_on[0] };

static int32_t load(const int32_t *value) { return __atomic_load_n(value, __ATOMIC_RELAXED); }

static void store(int32_t *value, int32_t to) { __atomic_store_n(value, to, __ATOMIC_RELAXED); }

static void describe(char *text, size_t text_bytes) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    int tp_rank = load(&board->tp_rank);
    if (tp_rank < 0)
        snprintf(text, text_bytes, "a rank on %s", host);
    else
        snprintf(text, text_bytes, "rank %d on %s", tp_rank, host);
}

static bool is_passed_on(int number) {
    for (int i = 0; i < N_PASSED_ON; i++)
        if (passed_on[i] == number) return true;
    return false;
}

static bool is_own_status(int status) {
    return status == STATUS_OK || (status >= STATUS_USAGE && status <= STATUS_NUMERICS) || status == STATUS_INTERRUPTED;
}

/* The exit status that stands for how the child ended; says so where the child could not. */
static int report_end(int wait_status) {
    char rank[320];
    describe(rank, sizeof rank);
    if (WIFEXITED(wait_status)) {
        int status = WEXITSTATUS(wait_status);
        if (is_own_status(status)) return status;
        log_error("%s was ended by a library, with status %d", rank, status);
        return STATUS_DEVICE;
    }
    int number = WTERMSIG(wait_status);
    if (is_passed_on(number)) return STATUS_INTERRUPTED;
    log_error("%s was killed by signal %d (%s)%s", rank, number, strsignal(number),
              number == SIGKILL ? "; if nobody did it, dmesg says whether that host ran out of memory" : "");
    return STATUS_DEVICE;
}

/* Counts a second. It does not pass while the watcher is stopped itself. */
static void count_second(watch_t *watch) {
    const heartbeat_t now = heartbeat_read(&board->heartbeat);
    bool is_silent = now.n_beats == watch->n_beats;
    bool should_beat = watch->is_stopped || !load(&board->is_connected) || (now.is_busy && !now.is_waiting);
    bool waits_at_end = watch->is_asked_to_end && now.is_busy && now.is_waiting;
    watch->n_beats = now.n_beats;
    watch->is_on_device = now.is_on_device;
    watch->quiet_s = is_silent && should_beat ? watch->quiet_s + 1 : 0;
    watch->waiting_s = is_silent && waits_at_end ? watch->waiting_s + 1 : 0;
    __atomic_store_n(&board->n_ticks, board->n_ticks + 1, __ATOMIC_RELAXED);
}

/* Whether the child has stood still for too long. */
static bool stands_still(const watch_t *watch) {
    bool is_connected = load(&board->is_connected);
    int limit_s = load(&board->limit_s);
    if (limit_s == 0) return false;
    if (!watch->is_stopped) limit_s = is_connected ? limit_s + SILENCE_MORE_S : CONNECT_LIMIT_S + load(&board->tp_rank);
    if (!watch->is_stopped && watch->is_on_device) limit_s += DEVICE_MORE_S;
    return watch->quiet_s >= limit_s;
}

/* Takes note of what became of the child; whether it has ended. */
static bool has_ended(watch_t *watch, int *wait_status) {
    while (waitpid(watch->child, wait_status, WNOHANG | WUNTRACED | WCONTINUED) == watch->child) {
        if (WIFEXITED(*wait_status) || WIFSIGNALED(*wait_status)) return true;
        watch->is_stopped = WIFSTOPPED(*wait_status);
    }
    return false;
}

static int end_child(const watch_t *watch) {
    kill(watch->child, SIGKILL);
    waitpid(watch->child, NULL, 0);
    return STATUS_DEVICE;
}

static int end_standstill(const watch_t *watch) {
    char rank[320];
    describe(rank, sizeof rank);
    if (watch->is_stopped || load(&board->is_connected))
        log_error("%s %s for %d s; ending the job (--stall-limit sets the time)", rank,
                  watch->is_stopped ? "has been stopped" : "has shown no sign of life", watch->quiet_s);
    else
        log_error("%s waited %d s for MPI to connect it with the other ranks: can their hosts reach each other? (for "
                  "Open MPI, --mca btl_tcp_if_include chooses the network)",
                  rank, watch->quiet_s);
    return end_child(watch);
}

/* `signals` are blocked. */
static int watch_child(pid_t child, const sigset_t *signals) {
    const struct timespec second = {.tv_sec = 1};
    watch_t watch = {.child = child};
    int64_t ticked_ns = clock_now_ns();
    for (;;) {
        int wait_status, number = sigtimedwait(signals, NULL, &second);
        if (is_passed_on(number)) {
            watch.is_asked_to_end = true;
            kill(child, number);
        }
        if (has_ended(&watch, &wait_status)) return report_end(wait_status);
        int64_t now_ns = clock_now_ns();
        if (now_ns - ticked_ns < tick_ns) continue;
        ticked_ns = now_ns;
        count_second(&watch);
        if (stands_still(&watch)) return end_standstill(&watch);
        if (watch.waiting_s >= END_LIMIT_S) return end_child(&watch); /* another rank is to blame, and was named */
    }
}

/* So that ps and top show which process is the rank and which its watcher. */
static void rename_watcher(int argc, char **argv, pid_t child) {
    char *end = argv[argc - 1] + strlen(argv[argc - 1]);
    size_t room = (size_t)(end - argv[0]) + 1;
    memset(argv[0], 0, room);
    snprintf(argv[0], room, "galvani: watches process %d", (int)child);
    prctl(PR_SET_NAME, "galvani-watch");
}

status_t watchdog_start(int argc, char **argv) {
    board_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return status_fail(STATUS_DEVICE, "cannot share memory: %s", strerror(errno));
    shared->tp_rank = -1;
    shared->limit_s = WATCHDOG_DEFAULT_LIMIT_S;
    board = shared;
    heartbeat_use(&shared->heartbeat);

    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (int i = 0; i < N_PASSED_ON; i++)
        sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    pid_t watcher = getpid(), child = fork();
    if (child < 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return status_fail(STATUS_DEVICE, "cannot start a process: %s", strerror(errno));
    }
    if (child > 0) {
        rename_watcher(argc, argv, child);
        _exit(watch_child(child, &signals));
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != watcher) _exit(STATUS_DEVICE); /* it died before that could take effect */
    sigprocmask(SIG_SETMASK, &before, NULL);
    return STATUS_OK;
}

void watchdog_set_rank(int tp_rank) {
    if (board) store(&board->tp_rank, tp_rank);
}

void watchdog_set_connected(void) {
    if (board) store(&board->is_connected, 1);
}

void watchdog_set_limit(int seconds) {
    if (board) store(&board->limit_s, seconds);
}

/* Time passes at most a tick at a time, so that a pause of both processes at once is none. */
status_t watchdog_check(void) {
    static uint64_t seen_ticks;
    static int64_t checked_ns, quiet_ns;
    if (!board) return STATUS_OK;
    uint64_t n_ticks = __atomic_load_n(&board->n_ticks, __ATOMIC_RELAXED);
    int64_t now_ns = clock_now_ns(), passed_ns = now_ns - checked_ns;
    if (passed_ns > tick_ns) passed_ns = tick_ns;
    quiet_ns = n_ticks == seen_ticks ? quiet_ns + passed_ns : 0;
    seen_ticks = n_ticks;
    checked_ns = now_ns;
    int limit_s = board->limit_s;
    if (limit_s == 0 || quiet_ns < limit_s * tick_ns) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "process %d, which watches this rank, has been stopped for %d s", (int)getppid(),
                       limit_s);
}
