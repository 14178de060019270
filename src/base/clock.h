#ifndef GALVANI_BASE_CLOCK_H
#define GALVANI_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Monotonic time in nanoseconds; common to all processes of one host. */
int64_t clock_now_ns(void);

/* Waits that long, also if signals come. */
void clock_sleep_ns(int64_t ns);

/* Current wall-clock time as ISO 8601 in UTC, "2026-01-31T12:34:56Z". `text` holds at least 21 bytes. */
void clock_utc_text(char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
