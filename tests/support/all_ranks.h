#ifndef GALVANI_TESTS_ALL_RANKS_H
#define GALVANI_TESTS_ALL_RANKS_H

/* Checks for tests on several ranks, included behind cmocka.h. All are collective: a check that one rank fails alone
 * must not leave the others in the next collective, so it fails on every rank or on none. */

#include <stdio.h>

#include "comm/comm.h"

#define assert_all_true(comm, value) check_all(comm, value, #value, __FILE__, __LINE__)
#define assert_all_ok(comm, status) assert_all_true(comm, (status) == STATUS_OK)
/* A failure must also say why; the message is cleared. */
#define assert_all_fail(comm, status, expected)                                                                        \
    do {                                                                                                               \
        assert_all_true(comm, (status) == (expected) && status_message()[0] != '\0');                                  \
        status_clear();                                                                                                \
    } while (0)

static inline void check_all(comm_t *comm, bool holds, const char *what, const char *file, int line) {
    char message[1024];
    if (!holds) {
        snprintf(message, sizeof message, "%s:%d: not so: %s; %s", file, line, what, status_message());
        status_clear();
        status_fail(STATUS_DEVICE, "%s", message);
    }
    if (comm_agree(comm, holds ? STATUS_OK : STATUS_DEVICE) == STATUS_OK) return;
    snprintf(message, sizeof message, "%s", status_message());
    status_clear();
    fail_msg("%s", message);
}

#endif
