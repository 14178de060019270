#include "cli/requests.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "text/chat.h"
#include "text/utf8.h"

enum { MAX_MESSAGES = 4096 };

/* Whether the model can do what the request asks for. */
static status_t check_request(const requests_args_t *args, const request_t *request, const char *where,
                              status_t fault) {
    const options_t *options = &request->options;
    int64_t room = args->config->max_position_embeddings, n_prompt = (int64_t)request->n_tokens;
    int64_t n_valid = args->tokenizer ? tokenizer_n_tokens(args->tokenizer) : args->config->vocab_size;
    if (n_prompt == 0) return status_fail(fault, "%s: the prompt is empty", where);
    if (options->system && !options->chat) return status_fail(fault, "%s: --system needs --chat", where);
    if (n_prompt >= room)
        return status_fail(fault, "%s: the prompt has %" PRId64 " tokens, but the model's context holds %" PRId64,
                           where, n_prompt, room);
    if (n_prompt + options->max_new > room)
        return status_fail(fault,
                           "%s: a prompt of %" PRId64 " tokens and --max-new %" PRId64
                           " exceed the model's context of %" PRId64 "; --max-new may be %" PRId64 " at most",
                           where, n_prompt, options->max_new, room, room - n_prompt);
    if (options->top_logprobs > n_valid)
        return status_fail(fault, "%s: --top-logprobs %" PRId64 " is more than the %" PRId64 " tokens that there are",
                           where, options->top_logprobs, n_valid);
    return STATUS_OK;
}

static status_t check_token(const requests_args_t *args, int64_t token, const char *where, status_t fault) {
    if (token < 0 || token >= args->config->vocab_size)
        return status_fail(fault, "%s: token id %" PRId64 " is not in the vocabulary of %" PRId64, where, token,
                           args->config->vocab_size);
    return STATUS_OK;
}

/* Ids as text, separated by commas or white space. */
static status_t read_token_text(const requests_args_t *args, const char *text, const char *where, status_t fault,
                                request_t *request) {
    /* No list has more ids than every second byte of its text. */
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, strlen(text) / 2 + 1, sizeof(int32_t), &memory));
    request->tokens = memory;
    const char *next = text;
    for (;;) {
        while (isspace((unsigned char)*next))
            next++;
        if (*next == '\0') return STATUS_OK;
        char *end;
        long long token = strtoll(next, &end, 10);
        if (end == next) return status_fail(fault, "%s: \"%.16s\" is not a token id", where, next);
        TRY(check_token(args, token, where, fault));
        request->tokens[request->n_tokens++] = (int32_t)token;
        bool had_space = isspace((unsigned char)*end) != 0;
        while (isspace((unsigned char)*end))
            end++;
        if (*end == ',')
            end++;
        else if (*end && !had_space)
            return status_fail(fault, "%s: \"%.16s\" is not a token id", where, next);
        next = end;
    }
}

static status_t read_token_list(const requests_args_t *args, const json_t *list, const char *where,
                                request_t *request) {
    if (!json_is_array(list)) return status_fail(STATUS_INPUT, "%s: \"tokens\" must be a list of ids", where);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, json_array_size(list) + 1, sizeof(int32_t), &memory));
    request->tokens = memory;
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) {
        if (!json_is_integer(item)) return status_fail(STATUS_INPUT, "%s: \"tokens\" must be a list of ids", where);
        TRY(check_token(args, (int64_t)json_integer_value(item), where, STATUS_INPUT));
        request->tokens[request->n_tokens++] = (int32_t)json_integer_value(item);
    }
    return STATUS_OK;
}

static status_t need_tokenizer(const requests_args_t *args, const char *where) {
    if (args->tokenizer) return STATUS_OK;
    return status_fail(STATUS_INPUT, "%s: %s has no tokenizer.json, so the prompt must be given as --tokens", where,
                       args->options->model);
}

/* Text to ids; takes over `text`. */
static status_t set_text(const requests_args_t *args, char *text, size_t text_bytes, const char *where, status_t fault,
                         request_t *request) {
    request->text = text;
    TRY(need_tokenizer(args, where));
    TRY(utf8_check(text, text_bytes, where, fault));
    return tokenizer_encode(args->tokenizer, text, text_bytes, fault, &request->tokens, &request->n_tokens);
}

static status_t set_chat(const requests_args_t *args, const chat_message_t *messages, size_t n_messages,
                         const char *where, status_t fault, request_t *request) {
    TRY(need_tokenizer(args, where));
    for (size_t i = 0; i < n_messages; i++) {
        const chat_message_t *message = &messages[i];
        TRY(utf8_check(message->content, strlen(message->content), where, fault));
    }
    chat_template_t *template;
    TRY(chat_template_load(args->options->model, &template));
    const options_t *options = &request->options;
    chat_options_t chat = {.think = options->think,
                           .reasoning_effort = options->reasoning_effort,
                           .preserve_thinking = options->preserve_thinking};
    char *text = NULL;
    status_t status = chat_render(template, messages, n_messages, &chat, fault, &text);
    chat_template_destroy(template);
    if (status != STATUS_OK) return status;
    return set_text(args, text, strlen(text), where, fault, request);
}

/* A prompt text, as it is or as a user turn; takes over `text`. */
static status_t set_prompt(const requests_args_t *args, char *text, size_t text_bytes, const char *where,
                           status_t fault, request_t *request) {
    if (!request->options.chat) return set_text(args, text, text_bytes, where, fault, request);
    status_t status = STATUS_OK;
    if (strlen(text) != text_bytes) status = status_fail(fault, "%s: a chat message must not hold a NUL byte", where);
    chat_message_t messages[2];
    size_t n = 0;
    if (request->options.system) messages[n++] = (chat_message_t){.role = "system", .content = request->options.system};
    messages[n++] = (chat_message_t){.role = "user", .content = text};
    if (status == STATUS_OK) status = set_chat(args, messages, n, where, fault, request);
    memory_free(text);
    return status;
}

static status_t copy_text(const char *text, size_t text_bytes, char **copy) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, text_bytes + 1, 1, &memory));
    memcpy(memory, text, text_bytes);
    *copy = memory;
    return STATUS_OK;
}

/* The request that the command line itself describes. */
static status_t build_single(const requests_args_t *args, request_t *request) {
    const options_t *options = args->options;
    request->options = *options;
    const char *sources[] = {options->prompt, options->prompt_file, options->tokens, options->tokens_file};
    int n_sources = 0;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        n_sources += sources[i] != NULL;
    if (n_sources != 1)
        return status_fail(STATUS_USAGE, "give one of --prompt, --prompt-file, --tokens, --tokens-file or --requests");
    if (options->chat && (options->tokens || options->tokens_file))
        return status_fail(STATUS_USAGE, "--chat needs a prompt as text, not as token ids");

    char *text;
    size_t text_bytes;
    if (options->prompt) {
        TRY(copy_text(options->prompt, strlen(options->prompt), &text));
        TRY(set_prompt(args, text, strlen(text), "--prompt", STATUS_USAGE, request));
    } else if (options->prompt_file) {
        TRY(file_read_all(options->prompt_file, &text, &text_bytes));
        TRY(set_prompt(args, text, text_bytes, options->prompt_file, STATUS_INPUT, request));
    } else if (options->tokens) {
        TRY(read_token_text(args, options->tokens, "--tokens", STATUS_USAGE, request));
    } else {
        TRY(file_read_all(options->tokens_file, &text, &text_bytes));
        status_t status = read_token_text(args, text, options->tokens_file, STATUS_INPUT, request);
        memory_free(text);
        TRY(status);
    }
    return check_request(args, request, "galvani run", STATUS_USAGE);
}

/* What the templates have no place for (tool calls, images) must not be lost in silence. */
static status_t check_message_keys(const json_t *message, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)message, key, value) {
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0 && strcmp(key, "reasoning_content") != 0)
            return status_fail(STATUS_INPUT, "%s: a message has \"%.40s\"; known are role, content, reasoning_content",
                               where, key);
    }
    return STATUS_OK;
}

static status_t read_messages(const requests_args_t *args, const json_t *list, const char *where, request_t *request) {
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > MAX_MESSAGES)
        return status_fail(STATUS_INPUT, "%s: \"messages\" must be a list of 1 to %d messages", where, MAX_MESSAGES);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof(chat_message_t), &memory));
    chat_message_t *messages = memory;
    status_t status = STATUS_OK;
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) {
        TRY_GOTO(check_message_keys(item, where), out);
        json_reader_t reader = {.object = item, .where = where, .fault = STATUS_INPUT};
        TRY_GOTO(json_get_string(&reader, "role", &messages[i].role), out);
        TRY_GOTO(json_get_string(&reader, "content", &messages[i].content), out);
        if (json_has(&reader, "reasoning_content"))
            TRY_GOTO(json_get_string(&reader, "reasoning_content", &messages[i].reasoning_content), out);
    }
    status = set_chat(args, messages, n, where, STATUS_INPUT, request);
out:
    memory_free(messages);
    return status;
}

/* An id becomes a file name. */
static bool is_id(const char *id) {
    size_t length = strlen(id);
    if (length == 0 || length >= REQUEST_ID_BYTES || id[0] == '.') return false;
    for (const char *c = id; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) return false;
    return true;
}

static status_t read_line(const requests_args_t *args, const json_t *line, const char *where, request_t *request) {
    static const char *const own_keys[] = {"id", "prompt", "messages", "tokens", NULL};
    if (!json_is_object(line)) return status_fail(STATUS_INPUT, "%s: each line must be one JSON object", where);
    json_reader_t reader = {.object = line, .where = where, .fault = STATUS_INPUT};
    const char *id;
    TRY(json_get_string(&reader, "id", &id));
    if (!is_id(id))
        return status_fail(STATUS_INPUT, "%s: the id \"%.40s\" must be letters, digits, '.', '_' and '-', up to %d",
                           where, id, REQUEST_ID_BYTES - 1);
    strcpy(request->id, id);
    request->options = *args->options;
    TRY(options_apply_request(args->store, line, where, own_keys, &request->options));

    int n_sources = json_has(&reader, "prompt") + json_has(&reader, "messages") + json_has(&reader, "tokens");
    if (n_sources != 1)
        return status_fail(STATUS_INPUT, "%s: give one of \"prompt\", \"messages\" and \"tokens\"", where);
    if (!json_has(&reader, "prompt")) {
        if (json_has(&reader, "chat") && request->options.chat)
            return status_fail(STATUS_INPUT, "%s: \"chat\" makes a turn of a \"prompt\", which is not there", where);
        if (request->options.system)
            return status_fail(STATUS_INPUT, "%s: a system text goes before a \"prompt\"; of messages it is the first",
                               where);
    }
    if (json_has(&reader, "prompt")) {
        const char *prompt;
        char *text;
        TRY(json_get_string(&reader, "prompt", &prompt));
        size_t prompt_bytes = json_string_length(json_object_get(line, "prompt"));
        TRY(copy_text(prompt, prompt_bytes, &text));
        TRY(set_prompt(args, text, prompt_bytes, where, STATUS_INPUT, request));
    } else if (json_has(&reader, "messages")) {
        TRY(read_messages(args, json_object_get(line, "messages"), where, request));
    } else {
        TRY(read_token_list(args, json_object_get(line, "tokens"), where, request));
    }
    return check_request(args, request, where, STATUS_INPUT);
}

/* Adds the request of one line. `ids` is the set of ids so far. */
static status_t add_line(const requests_args_t *args, const char *line, size_t bytes, const char *where, json_t *ids,
                         request_list_t *list) {
    json_t *object;
    TRY(json_read_text(line, bytes, where, &object));
    request_t *request = &list->requests[list->n++];
    status_t status = read_line(args, object, where, request);
    json_decref(object);
    if (status != STATUS_OK) status_add_place(where);
    TRY(status);
    if (json_object_get(ids, request->id))
        return status_fail(STATUS_INPUT, "%s: the id \"%s\" stands there twice", where, request->id);
    json_object_set_new(ids, request->id, json_true());
    return STATUS_OK;
}

static status_t build_from_file(const requests_args_t *args, const char *text, request_list_t *list) {
    size_t n_lines = 1;
    for (const char *c = text; *c; c++)
        n_lines += *c == '\n';
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n_lines, sizeof(request_t), &memory));
    list->requests = memory;

    const char *path = args->options->requests;
    json_t *ids = json_object();
    status_t status = STATUS_OK;
    size_t number = 0;
    for (const char *line = text; *line && status == STATUS_OK;) {
        const char *end = strchr(line, '\n');
        size_t bytes = end ? (size_t)(end - line) : strlen(line);
        char where[512];
        snprintf(where, sizeof where, "%s: line %zu", path, ++number);
        if (strspn(line, " \t\r") < bytes) status = add_line(args, line, bytes, where, ids, list);
        line += bytes + (end != NULL);
    }
    json_decref(ids);
    if (status == STATUS_OK && list->n == 0) return status_fail(STATUS_INPUT, "%s holds no request", path);
    return status;
}

status_t requests_build(const requests_args_t *args, request_list_t *list) {
    const options_t *options = args->options;
    if (!options->requests) {
        void *memory;
        TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(request_t), &memory));
        list->requests = memory;
        list->n = 1;
        return build_single(args, list->requests);
    }
    if (options->prompt || options->prompt_file || options->tokens || options->tokens_file)
        return status_fail(STATUS_USAGE, "--requests does not go with a prompt of its own");
    char *text;
    size_t text_bytes;
    TRY(file_read_all(options->requests, &text, &text_bytes));
    status_t status = strlen(text) == text_bytes ? build_from_file(args, text, list)
                                                 : status_fail(STATUS_INPUT, "%s holds a NUL byte", options->requests);
    memory_free(text);
    return status;
}

void requests_release(request_list_t *list) {
    for (size_t i = 0; i < list->n; i++) {
        memory_free(list->requests[i].tokens);
        memory_free(list->requests[i].text);
    }
    memory_free(list->requests);
    *list = (request_list_t){0};
}
