#ifndef GALVANI_BASE_INTERRUPT_H
#define GALVANI_BASE_INTERRUPT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From here on SIGINT, SIGTERM and SIGXCPU ask the program to end after the current step instead of killing it; a
 * second SIGINT kills. */
void interrupt_install(void);

/* The signal that arrived, 0 if none did. */
int interrupt_signal(void);

#ifdef __cplusplus
}
#endif
#endif
