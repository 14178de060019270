#ifndef GALVANI_BASE_LOG_H
#define GALVANI_BASE_LOG_H

/* What the program says about its work, on stderr. Errors are said once, by main. */

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG } log_level_t;

/* Log lines go to stderr; stdout belongs to generated text and tables. */
void log_set_level(log_level_t level);

/* Rank that the lines come from: rank 0 prints its lines bare, others as "[rank r] ...". At LOG_INFO and
 * below only rank 0 speaks, so that a message common to all ranks appears once. */
void log_set_rank(int rank);

/* Parses "error", "warning", "info" or "debug". Returns false for anything else. */
bool log_level_from_name(const char *name, log_level_t *level);

void log_write(log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
