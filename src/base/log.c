#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static log_level_t current_level = LOG_INFO;
static int current_rank = 0;

void log_set_level(log_level_t level) { current_level = level; }

void log_set_rank(int rank) { current_rank = rank; }

bool log_level_from_name(const char *name, log_level_t *level) {
    for (int i = 0; i <= LOG_DEBUG; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = (log_level_t)i;
            return true;
        }
    }
    return false;
}

void log_write(log_level_t level, const char *format, ...) {
    if (level > current_level) return;
    if (current_rank != 0 && level == LOG_INFO) return;

    /* One write per line, so that lines of several ranks do not mix. */
    char line[4096];
    int used = 0;
    if (current_rank != 0) used = snprintf(line, sizeof line, "[rank %d] ", current_rank);
    if (level != LOG_INFO)
        used += snprintf(line + used, sizeof line - (size_t)used, "galvani: %s: ", level_names[level]);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    strcat(line, "\n");
    fputs(line, stderr);
}
