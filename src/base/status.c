#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

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

void status_clear(void) {
    pthread_mutex_lock(&message_lock);
    message[0] = '\0';
    pthread_mutex_unlock(&message_lock);
}
