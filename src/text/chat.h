#ifndef GALVANI_TEXT_CHAT_H
#define GALVANI_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The chat template of the Qwen3.8 family (ChatML with thinking), text only: no tools, no images. The layout is
 * written in C; the sentences that set the reasoning effort are read from the checkpoint's own template. */
typedef struct chat_template chat_template_t;

typedef struct chat_message {
    const char *role;              /* "system", "user" or "assistant" */
    const char *content;           /* UTF-8 */
    const char *reasoning_content; /* assistant only; NULL is none */
} chat_message_t;

typedef struct chat_options {
    bool think;                   /* --think */
    const char *reasoning_effort; /* "xhigh", "medium" or "low"; NULL is "xhigh" */
    bool preserve_thinking;       /* --preserve-thinking: keep the reasoning of turns before the last user turn */
} chat_options_t;

#define CHAT_OPTIONS_DEFAULT ((chat_options_t){.think = true, .reasoning_effort = "xhigh", .preserve_thinking = true})

/* Reads the template that the checkpoint in `directory` carries: chat_template.jinja, or the "chat_template" of
 * tokenizer_config.json. STATUS_INPUT if there is none or it is of another family; the message says what to do
 * instead. The caller owns `*chat` (chat_template_destroy). */
status_t chat_template_load(const char *directory, chat_template_t **chat);

/* The same from memory; `where` names the text in messages. */
status_t chat_template_create(const char *text, size_t text_bytes, const char *where, chat_template_t **chat);

void chat_template_destroy(chat_template_t *chat); /* NULL is allowed */

/* Renders messages and the start of the answer as one prompt. Fails with `fault` if there are no messages, no user
 * turn, a system message that is not first, an unknown role or an unknown effort. The caller frees `*text` with
 * memory_free. */
status_t chat_render(const chat_template_t *chat, const chat_message_t *messages, size_t n_messages,
                     const chat_options_t *options, status_t fault, char **text);

#ifdef __cplusplus
}
#endif
#endif
