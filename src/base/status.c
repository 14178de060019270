#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048 };

static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;
static char message[MESSAGE_BYTES];

status_t status_fail(status_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&message_lock);
    if (message[0] == '\0') vsnprintf(message, sizeof message, format, arguments);
    pthread_mutex_unlock(&message_lock);
    va_end(arguments);
    return status;
}

const char *status_message(void) { return message; }

void status_add_place(const char *where) {
    pthread_mutex_lock(&message_lock);
    size_t length = strlen(where);
    if (length + 2 < MESSAGE_BYTES && strncmp(message, where, length) != 0) {
        memmove(message + length + 2, message, MESSAGE_BYTES - length - 2);
        memcpy(message, where, length);
        memcpy(message + length, ": ", 2);
        message[MESSAGE_BYTES - 1] = '\0';
    }
    pthread_mutex_unlock(&message_lock);
}

void status_clear(void) {
    pthread_mutex_lock(&message_lock);
    message[0] = '\0';
    pthread_mutex_unlock(&message_lock);
}
