#ifndef GALVANI_BASE_STATUS_H
#define GALVANI_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* One status type for the whole program. The values are galvani's exit statuses (README). */
typedef enum status {
    STATUS_OK = 0,
    STATUS_USAGE = 2,         /* the command line or a config is wrong */
    STATUS_INPUT = 3,         /* an input file is missing, damaged, or of another model */
    STATUS_MEMORY = 4,        /* not enough memory */
    STATUS_DEVICE = 5,        /* a device, NCCL, MPI or output-file failure */
    STATUS_NUMERICS = 6,      /* NaN or Inf where there must be numbers */
    STATUS_INTERRUPTED = 130, /* stopped by SIGINT or SIGTERM, with everything so far written */
} status_t;

/* Records why `status` arose and returns it. Called once, where the fault is first known; callers
 * propagate the value. Only the first message since status_clear() is kept, so a fault met while
 * unwinding never hides its cause. Nothing is printed here: main prints one message, after the ranks
 * have agreed (comm_agree). Thread-safe. */
status_t status_fail(status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The recorded message, "" if none. Valid until the next status_fail or status_clear. */
const char *status_message(void);

/* Puts "where: " before the recorded message, for a caller that knows the place (file and line) which the callee did
 * not. Nothing happens if the message begins with `where` already. */
void status_add_place(const char *where);

/* Forgets the recorded message (a request that failed, a test that expected to fail). */
void status_clear(void);

/* Returns from the calling function on failure. */
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        status_t try_status_ = (expression);                                                                           \
        if (try_status_ != STATUS_OK) return try_status_;                                                              \
    } while (0)

/* Same, for functions that unwind: needs a `status_t status` in scope. */
#define TRY_GOTO(expression, label)                                                                                    \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != STATUS_OK) goto label;                                                                           \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
