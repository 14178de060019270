#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "support/run_steps.h"
#include "trace/run_reader.h"

enum { PATH_BYTES = 128 };

/* HDF5 does not free all that it has read of a damaged file. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libhdf5"; }

typedef struct fixture {
    char directory[PATH_BYTES], path[PATH_BYTES + 16];
} fixture_t;

static int set_up(void **state) {
    fixture_t *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, "/tmp/galvani-test-XXXXXX");
    if (!mkdtemp(fixture->directory)) return 1;
    snprintf(fixture->path, sizeof fixture->path, "%s/run.h5", fixture->directory);
    *state = fixture;
    status_clear();
    return 0;
}

static int tear_down(void **state) {
    fixture_t *fixture = *state;
    unlink(fixture->path);
    int result = rmdir(fixture->directory); /* fails if something else was left behind */
    free(fixture);
    return result;
}

static run_file_t *create(const char *path, int64_t max_new) {
    run_file_args_t args = steps_args(path, max_new);
    run_file_t *file;
    assert_int_equal(run_file_create(&args, &file), STATUS_OK);
    return file;
}

/* Ends the run with routes other than those it began with. */
static status_t finish(run_file_t *file, const char *text, size_t text_bytes, const run_memory_t *memory,
                       const char *stop_reason) {
    static const run_route_t routes[] = {{"fused_gr", "on", "3 launches"},
                                         {"push_allreduce", "off", "one host has no peer access"}};
    return run_file_finish(file, &(run_end_t){.text = text,
                                              .text_bytes = text_bytes,
                                              .memory = memory,
                                              .stop_reason = stop_reason,
                                              .routes = routes,
                                              .n_routes = text ? 2 : 0});
}

static status_t append(run_file_t *file, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++) {
        steps_row_t row;
        steps_fill(i, &row);
        TRY(run_file_append(file, &row.step));
    }
    return STATUS_OK;
}

static run_record_t *load(const char *path) {
    run_record_t *record;
    status_t status = run_record_load(path, true, &record);
    if (status != STATUS_OK) print_error("%s\n", status_message());
    assert_int_equal(status, STATUS_OK);
    return record;
}

static void check_steps(const run_record_t *record, size_t n) {
    assert_int_equal(record->n_steps, n);
    assert_int_equal(record->n_pairs, n);
    for (size_t i = 0; i < n; i++) {
        steps_row_t row;
        steps_fill((int64_t)i, &row);
        assert_int_equal(record->generated[i], row.step.token);
        assert_int_equal(record->start_ns[i], row.step.start_ns);
        assert_int_equal(record->wall_ns[i], row.step.wall_ns);
        assert_int_equal(record->host_gap_ns[i], row.step.host_gap_ns);
        for (size_t rank = 0; rank < STEPS_N_RANKS; rank++) {
            size_t at = i * STEPS_N_RANKS + rank;
            assert_int_equal(record->device_ns[at], row.device_ns[rank]);
            assert_int_equal(record->pairs[at].token, row.pairs[rank].token);
            assert_true(record->pairs[at].value == row.pairs[rank].value);
            double sum_ms = 0;
            for (size_t group = 0; group < OP_N_GROUPS; group++) {
                double ms = (double)row.group_ns[rank * OP_N_GROUPS + group] / 1e6;
                assert_true(fabs(record->part_ms[group][at] - ms) < 1e-7 * ms);
                sum_ms += record->part_ms[group][at];
            }
            double rest_ms = record->part_ms[RUN_PART_REMAINDER][at];
            if (rank == 0) assert_true(fabs(rest_ms - STEPS_REST_NS / 1e6) < 1e-9);
            assert_true(fabs(sum_ms + rest_ms - (double)row.step.wall_ns / 1e6) < 1e-6);
        }
    }
}

static void test_whole_run(void **state) {
    const fixture_t *fixture = *state;
    run_file_t *file = create(fixture->path, 5);
    assert_false(run_file_is_complete(fixture->path));
    assert_int_equal(append(file, 0, 5), STATUS_OK);
    const op_record_t ops[] = {
        {.layer = -1, .group = OP_GROUP_OTHER, .op = "embed", .start_ns = 10, .dur_ns = 3},
        {.layer = 2, .group = OP_GROUP_GDN_CORE, .op = "gdn_core", .start_ns = 15, .dur_ns = 4},
    };
    assert_int_equal(run_file_append_ops(file, 3, 1, ops, 2), STATUS_OK);
    const run_memory_t memory[STEPS_N_RANKS] = {{.weights = 11, .peak_host_rss = 18}, {.kv_cache = 22}};
    static const char text[] = "\xe6\xb0\xb4 a\0b";
    assert_int_equal(finish(file, text, sizeof text - 1, memory, "length"), STATUS_OK);

    assert_true(run_file_is_complete(fixture->path));
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->state, RUN_COMPLETE);
    assert_false(record->is_open_for_write);
    check_steps(record, 5);
    assert_int_equal(record->n_prompt, 5);
    assert_memory_equal(record->prompt, steps_prompt, sizeof steps_prompt);
    assert_string_equal(record->prompt_text, "\xe6\xb0\xb4?");
    assert_int_equal(record->text_bytes, sizeof text - 1);
    assert_memory_equal(record->text, text, sizeof text - 1);
    assert_string_equal(record->command_line, "galvani run --prompt \"\xe6\xb0\xb4\"");
    assert_string_equal(record->stop_reason, "length");
    /* sha256 of 100, 101, 102, 103, 104 as little-endian int32 */
    assert_string_equal(record->token_hash, "da68805c9e9cca18239eccbbe877f3379f280da7a9125e3d54d683b87ff1ee42");
    assert_int_equal(record->memory[0].weights, 11);
    assert_int_equal(record->memory[0].peak_host_rss, 18);
    assert_int_equal(record->memory[1].kv_cache, 22);
    assert_int_equal(record->n_routes, 2);
    assert_string_equal(record->routes[0].name, "fused_gr");
    assert_string_equal(record->routes[0].reason, "3 launches");
    assert_string_equal(record->routes[1].chosen, "off");
    assert_string_equal(record->routes[1].reason, "one host has no peer access");
    assert_int_equal(record->n_ops, 2);
    assert_int_equal(record->ops[1].step, 3);
    assert_int_equal(record->ops[1].rank, 1);
    assert_int_equal(record->ops[1].layer, 2);
    assert_string_equal(record->ops[1].op, "gdn_core");
    assert_string_equal(record->ops[1].group, "gdn_core");
    assert_int_equal(record->floor_bytes[OP_GROUP_GR], 2000000000);
    assert_int_equal(record->floor_bytes[OP_GROUP_LM_HEAD], 12345);
    assert_int_equal(record->floor_bytes[OP_GROUP_COMM], 0);
    assert_int_equal(record->bytes_per_s, 4000000000000);
    assert_int_equal(record->ops[0].start_ns, 10);
    assert_int_equal(record->ops[0].dur_ns, 3);
    run_record_free(record);
}

/* Rank 1's clock ran away by 1000 ns while the run lasted: half of that is taken from what happened in its middle. */
static void test_drifting_clock(void **state) {
    const fixture_t *fixture = *state;
    run_file_t *file = create(fixture->path, 5);
    assert_int_equal(append(file, 0, 5), STATUS_OK);
    steps_row_t last;
    steps_fill(4, &last);
    int64_t end_ns = last.step.start_ns + last.step.wall_ns;
    const op_record_t ops[] = {{.op = "first", .start_ns = 0}, {.op = "middle", .start_ns = end_ns / 2}};
    for (int rank = 0; rank < STEPS_N_RANKS; rank++)
        assert_int_equal(run_file_append_ops(file, 0, rank, ops, 2), STATUS_OK);
    const run_memory_t memory[STEPS_N_RANKS] = {{0}};
    const clock_offset_t clocks[STEPS_N_RANKS] = {{0}, {.offset_ns = steps_clocks[1].offset_ns + 1000}};
    const run_end_t end = {.memory = memory, .stop_reason = "length", .clocks = clocks};
    assert_int_equal(run_file_finish(file, &end), STATUS_OK);
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->clocks[1].round_trip_ns, 90);
    assert_int_equal(record->clocks_end[1].offset_ns, 8000);
    assert_int_equal(record->ops[1].start_ns, end_ns / 2);
    assert_int_equal(record->ops[2].start_ns, 0);
    assert_in_range(record->ops[3].start_ns, end_ns / 2 - 501, end_ns / 2 - 499);
    run_record_free(record);
}

/* Nothing but tokens and times: no text, no pairs, no routes, no tokens at all. */
static void test_bare_run(void **state) {
    const fixture_t *fixture = *state;
    run_file_args_t args = steps_args(fixture->path, 1);
    args.prompt_text = NULL;
    args.has_logits = args.has_ops = false;
    args.n_top_logprobs = 0;
    args.n_routes = 0;
    run_file_t *file;
    assert_int_equal(run_file_create(&args, &file), STATUS_OK);
    const run_memory_t memory[STEPS_N_RANKS] = {{0}};
    assert_int_equal(finish(file, NULL, 0, memory, "signal"), STATUS_OK);
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->n_steps, 0);
    assert_null(record->prompt_text);
    assert_null(record->text);
    assert_false(record->has_ops);
    assert_int_equal(record->n_routes, 0);
    /* sha256 of nothing */
    assert_string_equal(record->token_hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    run_record_free(record);
}

/* More rows than one buffer, page or chunk holds; more operators than go into a page at once. */
static void test_long_run(void **state) {
    const fixture_t *fixture = *state;
    enum { N_STEPS = 5000, N_OPS = 10000 };
    static op_record_t ops[N_OPS];
    for (int i = 0; i < N_OPS; i++)
        ops[i] = (op_record_t){.group = OP_GROUP_QSA, .op = "op", .start_ns = i};
    run_file_t *file = create(fixture->path, N_STEPS);
    for (int64_t first = 0; first < N_STEPS; first += N_STEPS / 5) {
        assert_int_equal(append(file, first, N_STEPS / 5), STATUS_OK);
        assert_int_equal(run_file_append_ops(file, first, 0, ops, N_OPS), STATUS_OK);
    }
    run_file_abandon(file);
    run_record_t *record = load(fixture->path);
    check_steps(record, N_STEPS);
    assert_int_equal(record->n_ops, 5 * N_OPS);
    for (size_t i = 0; i < record->n_ops; i++) {
        assert_int_equal(record->ops[i].step, i / N_OPS * (N_STEPS / 5));
        assert_int_equal(record->ops[i].start_ns, i % N_OPS);
    }
    run_record_free(record);
}

static void test_abandoned_run(void **state) {
    const fixture_t *fixture = *state;
    run_file_t *file = create(fixture->path, 8);
    assert_int_equal(append(file, 0, 3), STATUS_OK);
    run_file_abandon(file);
    run_file_abandon(NULL);
    assert_false(run_file_is_complete(fixture->path));
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->state, RUN_STOPPED);
    assert_null(record->token_hash);
    check_steps(record, 3);
    run_record_free(record);
}

/* A child process that writes `n` steps, 20 ms apart, then waits to be killed; it tells by a byte when it has. */
static pid_t start_writer(const char *path, int64_t n, int *done) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        run_file_args_t args = steps_args(path, 1000);
        run_file_t *file;
        if (run_file_create(&args, &file) != STATUS_OK) _exit(1);
        for (int64_t i = 0; i < n; i++) {
            if (append(file, i, 1) != STATUS_OK) _exit(1);
            usleep(20000);
        }
        /* The last row waits for a flush that comes with a later one. */
        usleep(100000);
        if (append(file, n, 1) != STATUS_OK) _exit(1);
        if (write(ends[1], "d", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    *done = ends[0];
    return child;
}

static void test_live_and_killed_run(void **state) {
    const fixture_t *fixture = *state;
    enum { N_STEPS = 30 };
    int done;
    pid_t child = start_writer(fixture->path, N_STEPS, &done);
    /* While it is written: never fewer rows than before, always the right ones. */
    size_t seen = 0, n_looks = 0;
    char byte;
    int64_t begin_ns = clock_now_ns();
    do {
        usleep(10000);
        if (access(fixture->path, R_OK) == 0) {
            run_record_t *record = load(fixture->path);
            assert_true(record->is_open_for_write);
            assert_int_equal(record->state, RUN_RUNNING);
            assert_true(record->n_steps >= seen);
            check_steps(record, record->n_steps);
            if (record->n_steps > seen) n_looks++;
            seen = record->n_steps;
            run_record_free(record);
        }
    } while (seen <= N_STEPS && clock_now_ns() - begin_ns < 20000000000);
    assert_int_equal(seen, N_STEPS + 1);
    assert_true(n_looks > 3);
    assert_int_equal(read(done, &byte, 1), 1);
    close(done);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->state, RUN_ABANDONED);
    check_steps(record, N_STEPS + 1);
    run_record_free(record);
    assert_false(run_file_is_complete(fixture->path));
}

static void test_replaces_old_run(void **state) {
    const fixture_t *fixture = *state;
    run_file_t *file = create(fixture->path, 3);
    assert_int_equal(append(file, 0, 3), STATUS_OK);
    run_file_abandon(file);
    file = create(fixture->path, 3);
    assert_int_equal(append(file, 0, 1), STATUS_OK);
    run_file_abandon(file);
    run_record_t *record = load(fixture->path);
    assert_int_equal(record->n_steps, 1);
    run_record_free(record);
}

static void expect_refusal(const char *path, status_t expected, const char *word) {
    run_file_args_t args = steps_args(path, 3);
    run_file_t *file;
    status_clear();
    assert_int_equal(run_file_create(&args, &file), expected);
    assert_non_null(strstr(status_message(), path));
    if (!strstr(status_message(), word)) fail_msg("\"%s\" lacks \"%s\"", status_message(), word);
}

static void test_refuses_bad_paths(void **state) {
    const fixture_t *fixture = *state;
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/absent/run.h5", fixture->directory);
    expect_refusal(path, STATUS_DEVICE, "No such file");
    expect_refusal(fixture->directory, STATUS_DEVICE, "directory");
    expect_refusal("/dev/full", STATUS_DEVICE, "regular");
    struct stat info;
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode));

    /* Somebody's notes are not overwritten. */
    FILE *notes = fopen(fixture->path, "w");
    fputs("not a run file\n", notes);
    fclose(notes);
    expect_refusal(fixture->path, STATUS_USAGE, "not a run file");
    assert_int_equal(stat(fixture->path, &info), 0);
    assert_int_equal(info.st_size, 15);
}

/* The file may not grow beyond a limit, as on a full disk. The child's exit status tells what it met. */
static void test_full_disk(void **state) {
    const fixture_t *fixture = *state;
    for (rlim_t limit = 1 << 12; limit <= 1 << 22; limit *= 4) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
            run_file_args_t args = steps_args(fixture->path, 100000);
            run_file_t *file;
            status_t status = run_file_create(&args, &file);
            if (status == STATUS_OK) {
                for (int64_t i = 0; i < 100000 && status == STATUS_OK; i++)
                    status = append(file, i, 1);
                run_file_abandon(file);
            }
            bool is_named = strstr(status_message(), fixture->path) && strstr(status_message(), "File too large");
            _exit(is_named ? (int)status : 100);
        }
        int wait_status;
        waitpid(child, &wait_status, 0);
        assert_true(WIFEXITED(wait_status));
        assert_int_equal(WEXITSTATUS(wait_status), STATUS_DEVICE);
    }
    /* The last limit let it begin: what came in before stays readable. */
    run_record_t *record = load(fixture->path);
    check_steps(record, record->n_steps);
    assert_true(record->n_steps > 0);
    run_record_free(record);
}

static void test_refuses_other_files(void **state) {
    const fixture_t *fixture = *state;
    run_record_t *record;
    assert_int_equal(run_record_load(fixture->path, false, &record), STATUS_INPUT);
    status_clear();
    hid_t other = H5Fcreate(fixture->path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(other);
    assert_int_equal(run_record_load(fixture->path, false, &record), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "format"));
    assert_false(run_file_is_complete(fixture->path));
}

/* HDF5's global heaps, which hold the texts of attributes, have no checksum, and HDF5 1.10 itself crashes on damaged
 * ones. */
static bool is_in_heap(const unsigned char *bytes, long n, long at) {
    for (long i = 0; i + 16 <= n && i <= at; i++) {
        uint64_t size;
        memcpy(&size, bytes + i + 8, sizeof size);
        if (memcmp(bytes + i, "GCOL", 4) == 0 && (uint64_t)at < (uint64_t)i + size) return true;
    }
    return false;
}

/* Every byte that is turned round gives the same content, other values or an error, never a crash. */
static void test_flipped_bytes(void **state) {
    const fixture_t *fixture = *state;
    run_file_t *file = create(fixture->path, 4);
    assert_int_equal(append(file, 0, 4), STATUS_OK);
    const run_memory_t memory[STEPS_N_RANKS] = {{0}};
    assert_int_equal(finish(file, "x", 1, memory, "length"), STATUS_OK);
    struct stat info;
    assert_int_equal(stat(fixture->path, &info), 0);
    FILE *stream = fopen(fixture->path, "r+b");
    unsigned char *bytes = malloc((size_t)info.st_size);
    assert_int_equal(fread(bytes, 1, (size_t)info.st_size, stream), info.st_size);
    int n_refused = 0;
    for (long at = 0; at < info.st_size; at += 31) {
        if (is_in_heap(bytes, info.st_size, at)) continue;
        fseek(stream, at, SEEK_SET);
        int byte = fgetc(stream);
        fseek(stream, at, SEEK_SET);
        fputc(byte ^ 0xff, stream);
        fflush(stream);
        run_record_t *record;
        status_t status = run_record_load(fixture->path, true, &record);
        if (status == STATUS_OK)
            run_record_free(record);
        else
            assert_int_equal(status, STATUS_INPUT);
        n_refused += status != STATUS_OK;
        status_clear();
        fseek(stream, at, SEEK_SET);
        fputc(byte, stream);
        fflush(stream);
    }
    fclose(stream);
    free(bytes);
    assert_true(n_refused > 0);
    run_record_t *record = load(fixture->path);
    check_steps(record, 4);
    run_record_free(record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_drifting_clock, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bare_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_abandoned_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_live_and_killed_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_replaces_old_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_bad_paths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_other_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flipped_bytes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
