#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/status.h"
#include "support/text_golden.h"
#include "text/chat.h"
#include "text/generation_config.h"

enum { MAX_MESSAGES = 8 };

static chat_template_t *load_golden(void) {
    chat_template_t *chat;
    if (chat_template_load(TEXT_GOLDEN, &chat) != STATUS_OK) fail_msg("%s", status_message());
    return chat;
}

static void test_against_jinja(void **state) {
    (void)state;
    chat_template_t *chat = load_golden();
    json_t *cases = golden_read("chat.json");
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *entry = json_array_get(cases, i), *list = json_object_get(entry, "messages");
        chat_message_t messages[MAX_MESSAGES];
        size_t n_messages = json_array_size(list);
        assert_true(n_messages <= MAX_MESSAGES);
        for (size_t k = 0; k < n_messages; ++k) {
            const json_t *message = json_array_get(list, k);
            messages[k] = (chat_message_t){
                .role = json_string_value(json_object_get(message, "role")),
                .content = json_string_value(json_object_get(message, "content")),
                .reasoning_content = json_string_value(json_object_get(message, "reasoning_content")),
            };
        }
        chat_options_t options = {
            .think = json_is_true(json_object_get(entry, "think")),
            .reasoning_effort = json_string_value(json_object_get(entry, "reasoning_effort")),
            .preserve_thinking = json_is_true(json_object_get(entry, "preserve_thinking")),
        };
        const char *expected = json_string_value(json_object_get(entry, "text")); /* NULL: the template refuses */
        char *text = NULL;
        status_clear();
        status_t status = chat_render(chat, messages, n_messages, &options, STATUS_USAGE, &text);
        assert_int_equal(status, expected ? STATUS_OK : STATUS_USAGE);
        if (expected && strcmp(text, expected) != 0) fail_msg("case %zu:\n%s\nis not\n%s", i, text, expected);
        memory_free(text);
    }
    status_clear();
    json_decref(cases);
    chat_template_destroy(chat);
}

/* The errors that a caller sees, with the status that it chose. */
static void test_errors(void **state) {
    (void)state;
    const chat_message_t user = {.role = "user", .content = "x"};
    const struct {
        chat_message_t messages[2];
        size_t n_messages;
        const char *effort, *message;
    } cases[] = {
        {{{0}}, 0, "low", "no messages"},
        {{{.role = "system", .content = "x"}}, 1, "low", "no user turn"},
        {{user, {.role = "system", .content = "x"}}, 2, "low", "only the first"},
        {{user, {.role = "tool", .content = "x"}}, 2, "low", "\"tool\""},
        {{user, {.role = "user"}}, 2, "low", "lacks its role or content"},
        {{user, {.content = "x"}}, 2, "low", "lacks its role or content"},
        {{user, {.role = "user", .content = "x\xFF"}}, 2, "low", "0xFF at offset 1"},
        {{user, {.role = "assistant", .content = "x", .reasoning_content = "\xC3"}}, 2, "low", "0xC3 at offset 0"},
        {{user}, 1, "high", "\"high\""},
    };
    chat_template_t *chat = load_golden();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        for (int fault = STATUS_USAGE; fault <= STATUS_INPUT; ++fault) {
            chat_options_t options = CHAT_OPTIONS_DEFAULT;
            options.reasoning_effort = cases[i].effort;
            char *text;
            status_clear();
            assert_int_equal(
                chat_render(chat, cases[i].messages, cases[i].n_messages, &options, (status_t)fault, &text), fault);
            if (!strstr(status_message(), cases[i].message)) fail_msg("case %zu: \"%s\"", i, status_message());
        }
    }
    status_clear();
    chat_template_destroy(chat);
}

/* Marks that make a template one of the family, whatever else it says. */
#define FAMILY "{# <|im_start|> <|im_end|> <think> </think> enable_thinking preserve_thinking reasoning_effort #}"

/* Sentence that the template gives for an effort: what stands in the system turn. */
static void check_sentence(const chat_template_t *chat, const char *template, const char *effort,
                           const char *sentence) {
    const chat_message_t user = {.role = "user", .content = "x"};
    const chat_options_t options = {.think = true, .reasoning_effort = effort, .preserve_thinking = true};
    char expected[512], *text;
    snprintf(expected, sizeof expected, "%s%s%s<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n",
             sentence ? "<|im_start|>system\n" : "", sentence ? sentence : "", sentence ? "<|im_end|>\n" : "");
    assert_int_equal(chat_render(chat, &user, 1, &options, STATUS_USAGE, &text), STATUS_OK);
    if (strcmp(text, expected) != 0) fail_msg("%s, %s:\n%s\nis not\n%s", template, effort, text, expected);
    memory_free(text);
}

/* The ways in which a template may write its sentences. X and L are those of xhigh and low. */
static void test_forms_of_assignment(void **state) {
    (void)state;
    static const struct {
        const char *text, *xhigh, *medium, *low;
    } cases[] = {
        {"{%- set reasoning_instructions = '' %}{% if effort == 'xhigh' %}{% set reasoning_instructions = 'X' %}"
         "{% elif effort == 'low' %}{% set reasoning_instructions = \"L\" %}{% endif %}",
         "X", NULL, "L"},
        {"{% set reasoning_instructions = '' %}", NULL, NULL, NULL},
        {"{% if enable_thinking is undefined or enable_thinking is true %}{% if 'low' == effort %}"
         "{% set reasoning_instructions = 'L' %}{% elif effort != 'medium' %}{% set reasoning_instructions = 'X' %}"
         "{% endif %}{% else %}{% set reasoning_instructions = '' %}{% endif %}",
         "X", NULL, "L"},
        {"{% if not enable_thinking %}{% set reasoning_instructions = 'off' %}{% elif effort in ['low', 'medium'] %}"
         "{% set reasoning_instructions = 'L' %}{% else %}{% set reasoning_instructions = 'X' %}{% endif %}",
         "X", "L", "L"},
        {"{% if enable_thinking is defined and enable_thinking is false %}{% set reasoning_instructions = '' %}{% else "
         "%}"
         "{% set reasoning_instructions = 'X' %}{% if effort not in ('xhigh', 'medium') %}"
         "{%+ set reasoning_instructions = 'L' -%}{% elif effort == 'medium' %}{% set reasoning_instructions = '' %}"
         "{% endif %}{% endif %}",
         "X", "", "L"},
        {"{%- set reasoning_instructions = {'xhigh': 'X', 'medium': '', 'low': 'L'}[reasoning_effort] -%}", "X", "",
         "L"},
        {"{%- set reasoning_instructions = {'xhigh': 'X', \"low\": \"L\",}.get(reasoning_effort|default('xhigh'), '') "
         "%}",
         "X", NULL, "L"},
        {"{% set s = {'low': 'L',\n  'xhigh': 'X'} %}{% set reasoning_instructions = s[reasoning_effort] %}", "X", NULL,
         "L"},
        {"{% set s = {'low': 'L', 'xhigh': 'X'} %}{% if e == 'low' %}{% set reasoning_instructions = s['low'] %}"
         "{% elif e == 'xhigh' %}{% set ns.reasoning_instructions = s.get('xhigh') %}{% endif %}",
         "X", NULL, "L"},
        {"{% set on = enable_thinking is undefined or enable_thinking is true %}{% set off = not on %}"
         "{% if off %}{% set reasoning_instructions = 'off' %}{% elif on and effort == 'low' %}"
         "{% set reasoning_instructions = 'L' %}{% else %}{% set reasoning_instructions = 'X' %}{% endif %}"
         "{% if on %}{% else %}{% set reasoning_instructions = '' %}{% endif %}",
         "X", "X", "L"},
        {"{% set x = '%} {% endif %}' %}{{ '}} {% if %}' }}{# {% endif %} #}{{ {'a': {'b': 1}}['a'] }}"
         "{% for m in messages %}{% if m.role == 'user' %}u{% else %}v{% endif %}{% else %}w{% endfor %}"
         "{% if effort == 'low' %}{% set reasoning_instructions = 'L' %}{% endif %}",
         NULL, NULL, "L"},
        {"{% if effort == 'low' %}{% set reasoning_instructions = 'a\\n\\'b\\' \"\\x41\\u00e9\\U0001f389\\101\\q\\\\' "
         "~ \"c\" "
         "+ 'd' 'e' %}{% endif %}",
         NULL, NULL,
         "a\n'b' \"A\xC3\xA9\xF0\x9F\x8E\x89"
         "A\\q\\cde"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[2048];
        chat_template_t *chat;
        snprintf(text, sizeof text, "%s%s{{ reasoning_instructions }}", FAMILY, cases[i].text);
        if (chat_template_create(text, strlen(text), "template", &chat) != STATUS_OK)
            fail_msg("%s: %s", cases[i].text, status_message());
        const char *medium = cases[i].medium && *cases[i].medium ? cases[i].medium : NULL;
        check_sentence(chat, cases[i].text, "xhigh", cases[i].xhigh);
        check_sentence(chat, cases[i].text, NULL, cases[i].xhigh);
        check_sentence(chat, cases[i].text, "medium", medium);
        check_sentence(chat, cases[i].text, "low", cases[i].low);
        chat_template_destroy(chat);
    }
}

/* What is not understood is refused, never guessed. */
static void test_unreadable_templates(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "no sentence"},
        {"{% set reasoning_instructions = sentence %}", "the assignment"},
        {"{% set reasoning_instructions = 'a' if x else 'b' %}", "the assignment"},
        {"{% set reasoning_instructions %}text{% endset %}", "the assignment"},
        {"{% set reasoning_instructions = s[reasoning_effort] %}", "the assignment"},
        {"{% set s = {'low': 'L'} %}{% set reasoning_instructions = s['low'] %}", "the assignment"},
        {"{% set s = {'low': 'L'} %}{% set reasoning_instructions = s.get(effort, 'other') %}", "the assignment"},
        {"{% set reasoning_instructions = {'low': f(x)}[effort] %}", "the dictionary"},
        {"{% set reasoning_instructions = {'low': 'L'", "no end"},
        {"{% set reasoning_instructions = 'L %}", "no end"},
        {"{# a comment", "no end"},
        {"{% if x %}{% else %}{% set reasoning_instructions = 'X' %}{% endif %}", "a condition"},
        {"{% if x %}{% elif effort == 'low' %}{% set reasoning_instructions = 'X' %}{% endif %}", "a condition"},
        {"{% for x in y %}{% set reasoning_instructions = 'X' %}{% endfor %}", "a condition"},
        {"{% if not (effort == 'low') %}{% set reasoning_instructions = 'X' %}{% endif %}", "a condition"},
        {"{% if effort == 'low' and x != 'xhigh' %}{% set reasoning_instructions = 'X' %}{% endif %}", "a condition"},
        {"{% set reasoning_instructions = '\\ud800' %}", "an escape"},
        {"{% set reasoning_instructions = '\\x4' %}", "an escape"},
        {"{% set reasoning_instructions = '\\000' %}", "an escape"},
        {"{% endif %}", "the nesting"},
        {"{% else %}", "the nesting"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[2048];
        chat_template_t *chat;
        snprintf(text, sizeof text, "%s{{ reasoning_instructions }}%s", FAMILY, cases[i].text);
        status_clear();
        if (chat_template_create(text, strlen(text), "template", &chat) != STATUS_INPUT)
            fail_msg("%s was taken", cases[i].text);
        if (!strstr(status_message(), cases[i].message)) fail_msg("%s: \"%s\"", cases[i].text, status_message());
    }
    status_clear();
}

static void test_other_families(void **state) {
    (void)state;
    static const struct {
        const char *text, *family;
    } cases[] = {
        {"{{ '<|im_start|>' + role }}<|im_end|>", "ChatML without thinking"},
        {"<|im_start|><|im_end|><think></think>{% if enable_thinking %}", "Qwen3 or Qwen3.5"},
        {"<|im_start|>{% if enable_thinking %}{% if preserve_thinking %}", "Qwen3.6"},
        {"<|start_header_id|>user<|end_header_id|>", "Llama 3"},
        {"{{ '[INST] ' + content }}", "Mistral"},
        {"{{ messages }}", "an unknown family"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        chat_template_t *chat;
        status_clear();
        assert_int_equal(chat_template_create(cases[i].text, strlen(cases[i].text), "template", &chat), STATUS_INPUT);
        if (!strstr(status_message(), cases[i].family)) fail_msg("%s: \"%s\"", cases[i].text, status_message());
        assert_non_null(strstr(status_message(), "--prompt-file"));
    }
    status_clear();
    chat_template_t *chat;
    assert_int_equal(chat_template_create("\0", 1, "template", &chat), STATUS_INPUT);
    status_clear();
    assert_int_equal(chat_template_create("\xFF", 1, "template", &chat), STATUS_INPUT);
    status_clear();
    assert_int_equal(chat_template_load("tests/golden", &chat), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "chat_template.jinja"));
    status_clear();
}

/* A directory of its own, in which a test writes one file at a time. */
static char directory[] = "/tmp/galvani-test-chat-XXXXXX";

static void write_file(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static void remove_file(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    remove(path);
}

/* Older checkpoints carry the template inside tokenizer_config.json. */
static void test_embedded_template(void **state) {
    (void)state;
    static const char template[] =
        FAMILY "{% if e == 'low' %}{% set reasoning_instructions = 'L' %}{% endif %}{{ reasoning_instructions }}";
    char config[1024];
    chat_template_t *chat;
    snprintf(config, sizeof config, "{\"chat_template\": \"%s\"}", template);
    write_file("tokenizer_config.json", config);
    assert_int_equal(chat_template_load(directory, &chat), STATUS_OK);
    check_sentence(chat, config, "low", "L");
    chat_template_destroy(chat);

    snprintf(config, sizeof config,
             "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
             "\"%s\"}]}",
             template);
    write_file("tokenizer_config.json", config);
    assert_int_equal(chat_template_load(directory, &chat), STATUS_OK);
    check_sentence(chat, config, "low", "L");
    chat_template_destroy(chat);

    write_file("tokenizer_config.json", "{}");
    assert_int_equal(chat_template_load(directory, &chat), STATUS_INPUT);
    status_clear();
    remove_file("tokenizer_config.json");
}

static void test_generation_config(void **state) {
    (void)state;
    static const struct {
        const char *text;
        status_t status;
        int n_eos;
        int32_t first, last;
    } cases[] = {
        {NULL, STATUS_OK, 1, 5, 5}, /* no file: the eos of config.json */
        {"{}", STATUS_OK, 1, 5, 5},
        {"{\"eos_token_id\": null}", STATUS_OK, 1, 5, 5},
        {"{\"eos_token_id\": 9}", STATUS_OK, 1, 9, 9},
        {"{\"eos_token_id\": [8, 0], \"top_k\": 20}", STATUS_OK, 2, 8, 0},
        {"{\"eos_token_id\": [8, 10]}", STATUS_INPUT, 0, 0, 0},
        {"{\"eos_token_id\": -1}", STATUS_INPUT, 0, 0, 0},
        {"{\"eos_token_id\": \"x\"}", STATUS_INPUT, 0, 0, 0},
        {"{\"eos_token_id\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", STATUS_INPUT, 0, 0, 0},
        {"[]", STATUS_INPUT, 0, 0, 0},
        {"{", STATUS_INPUT, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        if (cases[i].text) write_file("generation_config.json", cases[i].text);
        generation_config_t config = {0};
        status_clear();
        assert_int_equal(generation_config_load(directory, 5, 10, &config), cases[i].status);
        assert_int_equal(config.n_eos, cases[i].n_eos);
        if (config.n_eos == 0) continue;
        assert_int_equal(config.eos_token_id[0], cases[i].first);
        assert_true(generation_config_is_eos(&config, cases[i].last));
        assert_false(generation_config_is_eos(&config, 7));
    }
    status_clear();
    remove_file("generation_config.json");
    generation_config_t config;
    assert_int_equal(generation_config_load(directory, -1, 10, &config), STATUS_OK);
    assert_int_equal(config.n_eos, 0);
}

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

/* Nothing is left allocated by anything above. */
static int tear_down(void **state) {
    (void)state;
    remove(directory);
    assert_int_equal(memory_bytes(MEMORY_OTHER), 0);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_jinja),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_forms_of_assignment), cmocka_unit_test(test_unreadable_templates),
        cmocka_unit_test(test_other_families),      cmocka_unit_test(test_embedded_template),
        cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, make_directory, tear_down);
}
