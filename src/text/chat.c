#include "text/chat.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "text/chat_effort.h"
#include "text/utf8.h"

struct chat_template {
    char *sentences[CHAT_N_EFFORTS]; /* NULL: the effort adds nothing */
};

/* What every template of this family mentions. */
static const char *const family_marks[] = {
    "<|im_start|>",    "<|im_end|>",       "<think>",           "</think>",
    "enable_thinking", "reasoning_effort", "preserve_thinking", "reasoning_instructions",
};

/* Marks by which other families are named in the refusal, the more particular first. */
static const struct {
    const char *mark, *family;
} other_families[] = {
    {"<|start_header_id|>", "Llama 3"},
    {"<start_of_turn>", "Gemma"},
    {"<|channel|>", "Harmony (gpt-oss)"},
    {"[INST]", "Mistral or Llama 2"},
    {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "DeepSeek"}, /* with fullwidth vertical lines, U+FF5C */
    {"[gMASK]", "GLM"},
    {"<|im_middle|>", "Kimi"},
    {"preserve_thinking", "Qwen3.6"},
    {"enable_thinking", "Qwen3 or Qwen3.5"},
    {"<|im_start|>", "ChatML without thinking"},
};

static status_t check_family(const char *text, const char *where) {
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof family_marks / sizeof family_marks[0] && !missing; ++i)
        if (!strstr(text, family_marks[i])) missing = family_marks[i];
    if (!missing) return STATUS_OK;
    const char *family = "an unknown family";
    for (size_t i = sizeof other_families / sizeof other_families[0]; i-- > 0;)
        if (strstr(text, other_families[i].mark)) family = other_families[i].family;
    return status_fail(
        STATUS_INPUT,
        "%s is a template of %s, not of Qwen3.8 (it has no \"%s\"); render the prompt elsewhere and give "
        "it with --prompt-file",
        where, family, missing);
}

status_t chat_template_create(const char *text, size_t text_bytes, const char *where, chat_template_t **chat) {
    TRY(utf8_check(text, text_bytes, where, STATUS_INPUT));
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, text_bytes + 1, 1, &memory));
    char *copy = memory; /* with a NUL behind */
    memcpy(copy, text, text_bytes);
    chat_template_t *created = NULL;
    status_t status = STATUS_OK;
    if (strlen(copy) != text_bytes) {
        status = status_fail(STATUS_INPUT, "%s holds a NUL character", where);
        goto end;
    }
    TRY_GOTO(check_family(copy, where), end);
    TRY_GOTO(memory_alloc(MEMORY_OTHER, 1, sizeof(chat_template_t), &memory), end);
    created = memory;
    TRY_GOTO(chat_effort_read(copy, where, created->sentences), end);
    bool is_assigned = false;
    for (int effort = 0; effort < CHAT_N_EFFORTS; ++effort)
        is_assigned = is_assigned || created->sentences[effort];
    if (!is_assigned) {
        status =
            status_fail(STATUS_INPUT,
                        "%s assigns no sentence to reasoning_instructions; render the prompt elsewhere and give it "
                        "with --prompt-file",
                        where);
        goto end;
    }
    *chat = created;
    created = NULL;
end:
    chat_template_destroy(created);
    memory_free(copy);
    return status;
}

/* The template inside tokenizer_config.json: a string, or a list of {name, template} of which "default" counts. */
static const char *embedded_template(const json_t *config) {
    const json_t *member = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(member); ++i) {
        const json_t *entry = json_array_get(member, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(member);
}

status_t chat_template_load(const char *directory, chat_template_t **chat) {
    char path[PATH_MAX];
    status_t status;
    TRY(file_join(directory, "chat_template.jinja", path, sizeof path));
    if (file_exists(path)) {
        char *text;
        size_t text_bytes;
        TRY(file_read_all(path, &text, &text_bytes));
        status = chat_template_create(text, text_bytes, path, chat);
        memory_free(text);
        return status;
    }
    TRY(file_join(directory, "tokenizer_config.json", path, sizeof path));
    json_t *config = NULL;
    if (file_exists(path)) TRY(json_read_file(path, &config));
    const char *text = embedded_template(config);
    status = text ? chat_template_create(text, strlen(text), path, chat)
                  : status_fail(STATUS_INPUT,
                                "%s has no chat_template.jinja; take it from the checkpoint, or give a rendered prompt "
                                "with --prompt-file",
                                directory);
    json_decref(config);
    return status;
}

void chat_template_destroy(chat_template_t *chat) {
    if (!chat) return;
    for (int effort = 0; effort < CHAT_N_EFFORTS; ++effort)
        memory_free(chat->sentences[effort]);
    memory_free(chat);
}

/* A borrowed piece of text. */
typedef struct span {
    const char *text;
    size_t bytes;
} span_t;

/* Jinja's trim is Python's str.strip(): Unicode white space and the four separators U+001C to U+001F. */
static bool is_trimmed(int32_t code_point) {
    return utf8_is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

static span_t trim(const char *text) {
    span_t span = {.text = text ? text : ""};
    int length;
    while (*span.text && is_trimmed(utf8_decode(span.text, &length)))
        span.text += length;
    /* Ends behind the last character that stays. */
    for (const char *next = span.text; *next; next += length)
        if (!is_trimmed(utf8_decode(next, &length))) span.bytes = (size_t)(next + length - span.text);
    return span;
}

static bool span_is_tool_response(span_t span) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    return span.bytes >= strlen(close) && memcmp(span.text, open, strlen(open)) == 0 &&
           memcmp(span.text + span.bytes - strlen(close), close, strlen(close)) == 0;
}

/* Index of the last user turn that asks something (a tool's response in a user turn does not); n_messages if none. */
static size_t last_user_turn(const chat_message_t *messages, size_t n_messages) {
    for (size_t i = n_messages; i-- > 0;)
        if (strcmp(messages[i].role, "user") == 0 && !span_is_tool_response(trim(messages[i].content))) return i;
    return n_messages;
}

static status_t check_messages(const chat_message_t *messages, size_t n_messages, status_t fault) {
    if (n_messages == 0) return status_fail(fault, "the chat has no messages");
    for (size_t i = 0; i < n_messages; ++i) {
        const chat_message_t *message = &messages[i];
        if (!message->role || !message->content)
            return status_fail(fault, "message %zu of the chat lacks its role or content", i);
        bool is_system = strcmp(message->role, "system") == 0;
        if (!is_system && strcmp(message->role, "user") != 0 && strcmp(message->role, "assistant") != 0)
            return status_fail(fault,
                               "message %zu of the chat has the role \"%s\"; it must be system, user or assistant", i,
                               message->role);
        if (is_system && i > 0)
            return status_fail(fault, "message %zu of the chat is a system message; only the first may be one", i);
        char where[64];
        snprintf(where, sizeof where, "message %zu of the chat", i);
        TRY(utf8_check(message->content, strlen(message->content), where, fault));
        if (message->reasoning_content)
            TRY(utf8_check(message->reasoning_content, strlen(message->reasoning_content), where, fault));
    }
    if (last_user_turn(messages, n_messages) == n_messages) return status_fail(fault, "the chat has no user turn");
    return STATUS_OK;
}

static status_t find_effort(const char *name, status_t fault, chat_effort_t *effort) {
    *effort = CHAT_EFFORT_XHIGH;
    if (!name) return STATUS_OK;
    for (int i = 0; i < CHAT_N_EFFORTS; ++i)
        if (strcmp(name, chat_effort_names[i]) == 0) {
            *effort = (chat_effort_t)i;
            return STATUS_OK;
        }
    return status_fail(fault, "the reasoning effort \"%s\" must be xhigh, medium or low", name);
}

/* The prompt while it is written: measured with text == NULL, then filled. */
typedef struct prompt {
    char *text;
    size_t bytes;
} prompt_t;

static void put_span(prompt_t *prompt, span_t span) {
    if (prompt->text) memcpy(prompt->text + prompt->bytes, span.text, span.bytes);
    prompt->bytes += span.bytes;
}

static void put(prompt_t *prompt, const char *text) { put_span(prompt, (span_t){.text = text, .bytes = strlen(text)}); }

static void put_system_turn(prompt_t *prompt, const char *sentence, span_t system) {
    bool has_sentence = sentence && *sentence;
    if (!has_sentence && system.bytes == 0) return;
    put(prompt, "<|im_start|>system\n");
    if (has_sentence) put(prompt, sentence);
    if (has_sentence && system.bytes) put(prompt, "\n\n");
    put_span(prompt, system);
    put(prompt, "<|im_end|>\n");
}

static void put_thought(prompt_t *prompt, span_t reasoning) {
    put(prompt, "<think>\n");
    put_span(prompt, reasoning);
    put(prompt, "\n</think>\n\n");
}

static void put_prompt(prompt_t *prompt, const char *sentence, const chat_message_t *messages, size_t n_messages,
                       const chat_options_t *options) {
    bool has_system = strcmp(messages[0].role, "system") == 0;
    put_system_turn(prompt, sentence, trim(has_system ? messages[0].content : ""));
    size_t last_user = last_user_turn(messages, n_messages);
    for (size_t i = has_system ? 1 : 0; i < n_messages; ++i) {
        bool is_assistant = strcmp(messages[i].role, "assistant") == 0;
        put(prompt, "<|im_start|>");
        put(prompt, messages[i].role);
        put(prompt, "\n");
        if (is_assistant && (options->preserve_thinking || i > last_user))
            put_thought(prompt, trim(messages[i].reasoning_content));
        put_span(prompt, trim(messages[i].content));
        put(prompt, "<|im_end|>\n");
    }
    put(prompt, "<|im_start|>assistant\n<think>\n");
    if (!options->think) put(prompt, "\n</think>\n\n");
}

status_t chat_render(const chat_template_t *chat, const chat_message_t *messages, size_t n_messages,
                     const chat_options_t *options, status_t fault, char **text) {
    TRY(check_messages(messages, n_messages, fault));
    chat_effort_t effort;
    TRY(find_effort(options->reasoning_effort, fault, &effort));
    const char *sentence = options->think ? chat->sentences[effort] : NULL;

    prompt_t prompt = {0};
    put_prompt(&prompt, sentence, messages, n_messages, options);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, prompt.bytes + 1, 1, &memory));
    prompt = (prompt_t){.text = memory};
    put_prompt(&prompt, sentence, messages, n_messages, options);
    *text = prompt.text;
    return STATUS_OK;
}
