#ifndef GALVANI_TEXT_CHAT_EFFORT_H
#define GALVANI_TEXT_CHAT_EFFORT_H

/* What the chat template puts into a prompt for each reasoning effort. */

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum chat_effort { CHAT_EFFORT_XHIGH, CHAT_EFFORT_MEDIUM, CHAT_EFFORT_LOW, CHAT_N_EFFORTS } chat_effort_t;

extern const char *const chat_effort_names[CHAT_N_EFFORTS];

/* Reads from a Jinja template the sentence that `reasoning_instructions` holds for each effort when thinking is on. The
 * template is not run; what is understood is an assignment of string literals
 *   inside if, elif and else branches that compare the effort with a name: == 'low', in ('low', 'medium'), ...,
 *   or of a dictionary by effort: {'xhigh': '...', 'low': '...'}[reasoning_effort], also by way of a variable or .get.
 * Branches on enable_thinking are followed; a condition on something else is taken to hold. Anything else that is
 * assigned is STATUS_INPUT, with what to do instead. An effort that is assigned nothing gives NULL. The caller frees
 * each of `sentences` with memory_free, also after a failure. */
status_t chat_effort_read(const char *text, const char *where, char *sentences[CHAT_N_EFFORTS]);

#ifdef __cplusplus
}
#endif
#endif
