/* chat_template.jinja as an attacker writes it. The marks of the family stand in front, so that the fuzzer gets to the
 * statements. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char marks[] = "{#<|im_start|><|im_end|><think></think>enable_thinking reasoning_effort "
                                "preserve_thinking reasoning_instructions#}";
    size_t marks_bytes = sizeof marks - 1;
    char *text = malloc(marks_bytes + size);
    if (!text) return 0;
    memcpy(text, marks, marks_bytes);
    if (size) memcpy(text + marks_bytes, data, size);

    status_clear();
    chat_template_t *chat;
    if (chat_template_create(text, marks_bytes + size, "fuzz", &chat) == STATUS_OK) {
        const chat_message_t messages[] = {
            {.role = "system", .content = " s "},
            {.role = "user", .content = "u"},
            {.role = "assistant", .content = "a", .reasoning_content = "r"},
        };
        static const char *const efforts[] = {"xhigh", "medium", "low"};
        for (int i = 0; i < 3; ++i) {
            chat_options_t options = {.think = true, .reasoning_effort = efforts[i]};
            char *prompt;
            if (chat_render(chat, messages, 3, &options, STATUS_USAGE, &prompt) != STATUS_OK) abort();
            memory_free(prompt);
        }
        chat_template_destroy(chat);
    } else if (status_message()[0] == '\0') {
        abort(); /* a failure without a reason */
    }
    free(text);
    return 0;
}
