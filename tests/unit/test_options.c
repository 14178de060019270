/* The option table: values, precedence of the command line over --config, request lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"

static option_store_t *store;
static options_t options;

static int set_up(void **state) {
    (void)state;
    status_clear();
    return option_store_create(&store) != STATUS_OK;
}

static int tear_down(void **state) {
    (void)state;
    option_store_destroy(store);
    return 0;
}

/* Parses a command line given as words, NULL-terminated. */
static status_t parse_as(command_bit_t command, const char *const *words) {
    char *argv[32];
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    argv[argc] = NULL;
    return options_parse(store, command, argc, argv, &options);
}

#define PARSE(...) parse_as(COMMAND_RUN, (const char *const[]){"run", __VA_ARGS__, NULL})
#define PARSE_BENCH(...) parse_as(COMMAND_BENCH, (const char *const[]){"bench", __VA_ARGS__, NULL})

static void defaults_are_the_documented_ones(void **state) {
    (void)state;
    assert_int_equal(PARSE("--model", "m"), STATUS_OK);
    assert_string_equal(options.model, "m");
    assert_int_equal(options.max_new, 128);
    assert_true(options.temperature == 0 && options.top_p == 1 && options.top_k == 0 && options.seed == 0);
    assert_true(options.think && options.preserve_thinking && !options.chat && !options.ignore_eos);
    assert_string_equal(options.backend, "auto");
    assert_string_equal(options.trace, "steps");
}

static void values_are_read_and_checked(void **state) {
    (void)state;
    assert_int_equal(PARSE("--max-new", "7", "--temperature", "0.5", "--chat", "--think", "off", "--route",
                           "push_allreduce=off", "--route", "router=on"),
                     STATUS_OK);
    assert_int_equal(options.max_new, 7);
    assert_true(options.temperature == 0.5 && options.chat && !options.think);
    assert_int_equal(options.n_routes, 2);
    assert_string_equal(options.routes[0].name, "push_allreduce");
    assert_false(options.routes[0].on);
    assert_true(options.routes[1].on);

    static const struct {
        const char *name, *value, *message;
    } wrong[] = {
        {"--max-new", "0", "--max-new is \"0\", but must be a whole number from 1 to 16777216"},
        {"--max-new", "5x", "--max-new is \"5x\""},
        {"--max-new", "", "--max-new is \"\""},
        {"--temperature", "-1", "--temperature is \"-1\", but must be a number from 0"},
        {"--temperature", "nan", "--temperature is \"nan\""},
        {"--top-p", "1.5", "--top-p is \"1.5\""},
        {"--think", "yes", "--think is \"yes\", but must be on or off"},
        {"--backend", "gpu", "--backend is \"gpu\", but must be one of auto|cpu|cuda"},
        {"--backend", "c", "--backend is \"c\""},
        {"--route", "x", "--route is \"x\", but must be NAME=on or NAME=off"},
        {"--route", "=on", "--route is \"=on\""},
        {"--bogus", "1", "--bogus is not an option of galvani run"},
        {"stray", "words", "\"stray\" is not expected here"},
        {"--seed", "99999999999999999999", "--seed is"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        status_clear();
        assert_int_equal(PARSE(wrong[i].name, wrong[i].value), STATUS_USAGE);
        if (!strstr(status_message(), wrong[i].message)) fail_msg("%s", status_message());
    }
    status_clear();
    assert_int_equal(PARSE("--max-new"), STATUS_USAGE);
    assert_string_equal(status_message(), "--max-new needs a value");
    status_clear();
    assert_int_equal(PARSE("--seed", "1", "--seed", "2"), STATUS_USAGE);
    assert_string_equal(status_message(), "--seed is given twice");
}

static void sizes_have_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"34359738368", INT64_C(34359738368)},
                 {"32GiB", INT64_C(34359738368)},
                 {"0.5KiB", 512},
                 {"3MiB", 3 << 20},
                 {"1TiB", INT64_C(1) << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(PARSE("--device-memory", sizes[i].text), STATUS_OK);
        assert_int_equal(options.device_memory, sizes[i].bytes);
    }
    static const char *const wrong[] = {"", "GiB", "32GB", "32 GiB", "0", "-1GiB", "nan", "inf", "1e30"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        status_clear();
        assert_int_equal(PARSE("--device-memory", wrong[i]), STATUS_USAGE);
        assert_non_null(strstr(status_message(), "32GiB"));
    }
}

static void the_lane_has_its_own_defaults(void **state) {
    (void)state;
    assert_int_equal(PARSE_BENCH("--control", "a=off,b=on"), STATUS_OK);
    assert_int_equal(options.prompt_len, 8192);
    assert_int_equal(options.max_new, 512);
    assert_int_equal(options.warmup, 32);
    assert_int_equal(options.repeats, 3);
    assert_string_equal(options.control, "a=off,b=on");
    assert_int_equal(options.n_control_routes, 2);
    assert_string_equal(options.control_routes[0].name, "a");
    assert_false(options.control_routes[0].on);
    assert_string_equal(options.control_routes[1].name, "b");
    assert_true(options.control_routes[1].on);
    static const char *const wrong[] = {"a", "a=off,", "a=off,,b=on", ",a=off", "a=x", "=on", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        status_clear();
        assert_int_equal(PARSE_BENCH("--control", wrong[i]), STATUS_USAGE);
    }
    status_clear();
    assert_int_equal(PARSE_BENCH("--prompt", "x"), STATUS_USAGE);
}

static void every_subcommand_has_its_own(void **state) {
    (void)state;
    assert_int_equal(parse_as(COMMAND_MODEL, (const char *const[]){"model", NULL}), STATUS_OK);
    assert_string_equal(options.model, "synthetic:full");
    assert_string_equal(options.dense, "fp16");
    assert_int_equal(options.tp, 1);
    assert_int_equal(options.context, 8464);
    assert_int_equal(parse_as(COMMAND_MODEL, (const char *const[]){"model", "--dense", "auto", NULL}), STATUS_USAGE);
    status_clear();
    assert_int_equal(parse_as(COMMAND_MODEL, (const char *const[]){"model", "file", NULL}), STATUS_USAGE);

    assert_int_equal(
        parse_as(COMMAND_TRACE, (const char *const[]){"trace", "plot", "--kind", "timeline", "run.h5", NULL}),
        STATUS_OK);
    assert_int_equal(options.n_words, 2);
    assert_string_equal(options.words[0], "plot");
    assert_string_equal(options.words[1], "run.h5");
    assert_string_equal(options.kind, "timeline");
    assert_true(options.skip < 0 && options.step < 0);
    status_clear();
    assert_int_equal(parse_as(COMMAND_TRACE, (const char *const[]){"trace", "--skip", "-1", NULL}), STATUS_USAGE);
    status_clear();
    assert_int_equal(parse_as(COMMAND_INSPECT, (const char *const[]){"inspect", "x", "--verify", NULL}), STATUS_OK);
    assert_true(options.verify && !options.mend && options.n_words == 1);
    assert_int_equal(parse_as(COMMAND_INSPECT, (const char *const[]){"inspect", "--model", "x", NULL}), STATUS_USAGE);
}

static void the_command_line_wins_over_the_config(void **state) {
    (void)state;
    char path[] = "/tmp/galvani-test-XXXXXX";
    int fd = mkstemp(path);
    static const char text[] =
        "{\"max_new\": 9, \"top-k\": 3, \"think\": false, \"route\": [\"a=on\"], \"chat\": true}";
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(PARSE("--config", path, "--max-new", "4"), STATUS_OK);
    assert_int_equal(options.max_new, 4);
    assert_int_equal(options.top_k, 3);
    assert_true(options.chat && !options.think);
    assert_string_equal(options.routes[0].name, "a");

    static const char wrong[] = "{\"max_new\": \"9\"}                                                        ";
    assert_true(pwrite(fd, wrong, strlen(wrong), 0) > 0 && ftruncate(fd, (off_t)strlen(wrong)) == 0);
    assert_int_equal(PARSE("--config", path), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "\"max_new\" has a value of the wrong type"));
    close(fd);
    unlink(path);
}

static void a_request_sets_generation_options_only(void **state) {
    (void)state;
    static const char *const known[] = {"id", NULL};
    assert_int_equal(PARSE("--max-new", "4"), STATUS_OK);
    json_t *request = json_pack("{s:s, s:i, s:b, s:f}", "id", "a", "max_new", 11, "ignore_eos", 1, "temperature", 0.25);
    assert_int_equal(options_apply_request(store, request, "r.jsonl: line 1", known, &options), STATUS_OK);
    assert_int_equal(options.max_new, 11);
    assert_true(options.ignore_eos && options.temperature == 0.25);
    json_decref(request);

    request = json_pack("{s:s}", "model", "elsewhere");
    assert_int_equal(options_apply_request(store, request, "r.jsonl: line 2", known, &options), STATUS_INPUT);
    assert_string_equal(status_message(), "r.jsonl: line 2: \"model\" is not an option that may stand here");
    json_decref(request);
}

static void the_effective_config_is_complete(void **state) {
    (void)state;
    assert_int_equal(PARSE("--max-new", "4", "--route", "x=off"), STATUS_OK);
    json_t *object = options_to_json(COMMAND_RUN, &options);
    assert_int_equal(json_integer_value(json_object_get(object, "max-new")), 4);
    assert_true(json_is_null(json_object_get(object, "prompt")));
    assert_true(json_is_false(json_object_get(json_object_get(object, "route"), "x")));
    json_decref(object);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults_are_the_documented_ones, set_up, tear_down),
        cmocka_unit_test_setup_teardown(values_are_read_and_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sizes_have_units, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_lane_has_its_own_defaults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_subcommand_has_its_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_command_line_wins_over_the_config, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_request_sets_generation_options_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_effective_config_is_complete, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
