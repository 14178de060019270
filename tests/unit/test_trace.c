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
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "support/run_steps.h"
#include "trace/export.h"
#include "trace/plot.h"
#include "trace/run_mend.h"
#include "trace/summary.h"

enum { PATH_BYTES = 64, N_STEPS = 10, N_RANKS = STEPS_N_RANKS };

/* Fontconfig, which cairo uses, keeps its caches. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libfontconfig"; }

typedef struct fixture {
    char directory[PATH_BYTES], run[PATH_BYTES + 16], out[PATH_BYTES + 16];
} fixture_t;

static int set_up(void **state) {
    fixture_t *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, "/tmp/galvani-test-XXXXXX");
    if (!mkdtemp(fixture->directory)) return 1;
    snprintf(fixture->run, sizeof fixture->run, "%s/run.h5", fixture->directory);
    snprintf(fixture->out, sizeof fixture->out, "%s/out", fixture->directory);
    *state = fixture;
    status_clear();
    return 0;
}

static int tear_down(void **state) {
    fixture_t *fixture = *state;
    unlink(fixture->run);
    unlink(fixture->out);
    int result = rmdir(fixture->directory);
    free(fixture);
    return result;
}

/* A run whose operators make up its groups exactly: one operator a group, step and rank. */
static run_record_t *make_run(const char *path, bool has_ops) {
    run_file_args_t args = steps_args(path, N_STEPS);
    args.has_logits = false;
    args.has_ops = has_ops;
    run_file_t *file;
    assert_int_equal(run_file_create(&args, &file), STATUS_OK);
    for (int64_t i = 0; i < N_STEPS; i++) {
        steps_row_t row;
        steps_fill(i, &row);
        assert_int_equal(run_file_append(file, &row.step), STATUS_OK);
        for (int rank = 0; has_ops && rank < N_RANKS; rank++) {
            op_record_t ops[OP_GROUP_HOST_GAP];
            int64_t start_ns = row.step.start_ns;
            for (int group = 0; group < OP_GROUP_HOST_GAP; group++) {
                int64_t dur_ns = row.group_ns[rank * OP_N_GROUPS + group];
                ops[group] = (op_record_t){.layer = group,
                                           .group = (op_group_t)group,
                                           .op = "an \"op\"",
                                           .start_ns = start_ns,
                                           .dur_ns = dur_ns};
                start_ns += dur_ns;
            }
            assert_int_equal(run_file_append_ops(file, i, rank, ops, OP_GROUP_HOST_GAP), STATUS_OK);
        }
    }
    run_file_abandon(file);
    run_record_t *record;
    assert_int_equal(run_record_load(path, true, &record), STATUS_OK);
    return record;
}

static void test_percentiles(void **state) {
    (void)state;
    double values[] = {7, 1, 10, 3, 2, 9, 4, 6, 5, 8};
    summary_sort(values, 10);
    assert_true(values[0] == 1 && values[9] == 10);
    /* What numpy.percentile gives. */
    assert_true(fabs(summary_percentile(values, 10, 0.5) - 5.5) < 1e-12);
    assert_true(fabs(summary_percentile(values, 10, 0.9) - 9.1) < 1e-12);
    assert_true(summary_percentile(values, 10, 1) == 10);
    assert_true(summary_percentile(values, 1, 0.99) == 1);
    assert_true(summary_percentile(values, 0, 0.5) == 0);
}

static void test_first_step(void **state) {
    (void)state;
    run_record_t record = {.n_steps = 63};
    assert_int_equal(summary_first_step(&record, -1), 1);
    record.n_steps = 64;
    assert_int_equal(summary_first_step(&record, -1), 32);
    assert_int_equal(summary_first_step(&record, 5), 5);
    assert_int_equal(summary_first_step(&record, 500), 64);
    record.n_steps = 0;
    assert_int_equal(summary_first_step(&record, -1), 0);
}

/* Group g of rank r takes (g + 1) * 1000 + 10 r + step ns, so every mean is known. */
static void test_summary(void **state) {
    const fixture_t *fixture = *state;
    for (int has_ops = 0; has_ops < 2; has_ops++) {
        run_record_t *record = make_run(fixture->run, has_ops);
        run_summary_t summary;
        assert_int_equal(summary_build(record, 1, &summary), STATUS_OK);
        assert_int_equal(summary.tpot.n, 9);
        const double mean_step = 5;
        for (int group = 0; group < OP_GROUP_HOST_GAP; group++) {
            double ms = ((group + 1) * 1000 + mean_step) / 1e6;
            assert_true(fabs(summary.rank_parts[group * N_RANKS] - ms) < 1e-9);
            assert_true(fabs(summary.rank_parts[group * N_RANKS + 1] - (ms + 1e-5)) < 1e-9);
            assert_true(fabs(summary.parts[group].mean - (ms + 5e-6)) < 1e-9);
            assert_true(fabs(summary.parts[group].max - (ms + 1e-5)) < 1e-9);
        }
        double sum = 0;
        for (int part = 0; part < RUN_N_PARTS; part++)
            sum += summary.rank_parts[part * N_RANKS];
        assert_true(fabs(sum - summary.tpot.mean) < 1e-8);
        /* Rank 1 is 10 ns slower in each of the 11 groups that are work. */
        assert_true(fabs(summary.busy_skew - 110e-6) < 1e-8);
        assert_int_equal(summary.slowest_rank, 1);
        assert_true(summary.slowest_share == 1);
        /* Rank 0's time in comm is the exchange; rank 1 waits 10 ns, a mean of 5. */
        assert_true(fabs(summary.comm_exchange - ((OP_GROUP_COMM + 1) * 1000 + mean_step) / 1e6) < 1e-9);
        assert_true(fabs(summary.comm_wait - 5e-6) < 1e-9);
        assert_int_equal(summary.comm_by_op, has_ops);
        summary_release(&summary);
        run_record_free(record);
    }
}

/* The durations of a rank's operators in a step add up to its parts in the run file. */
static void test_perfetto(void **state) {
    const fixture_t *fixture = *state;
    run_record_t *record = make_run(fixture->run, true);
    assert_int_equal(export_write(record, EXPORT_PERFETTO, fixture->out), STATUS_OK);
    json_t *root;
    assert_int_equal(json_read_file(fixture->out, &root), STATUS_OK);
    double sums_us[N_STEPS][N_RANKS][OP_N_GROUPS] = {{{0}}};
    size_t i;
    const json_t *event;
    int n_steps = 0, n_ops = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) continue;
        int64_t rank = json_integer_value(json_object_get(event, "pid"));
        int64_t thread = json_integer_value(json_object_get(event, "tid"));
        int64_t step = json_integer_value(json_object_get(json_object_get(event, "args"), "step"));
        assert_in_range(step, 0, N_STEPS - 1);
        assert_in_range(rank, 0, N_RANKS - 1);
        double us = json_number_value(json_object_get(event, "dur"));
        if (thread == 0) {
            assert_true(fabs(us - (double)record->wall_ns[step] / 1e3) < 1e-6);
            n_steps++;
        } else {
            assert_in_range(thread, 1, OP_N_GROUPS);
            sums_us[step][rank][thread - 1] += us;
            n_ops++;
        }
    }
    json_decref(root);
    assert_int_equal(n_steps, N_STEPS * N_RANKS);
    assert_int_equal(n_ops, N_STEPS * N_RANKS * OP_GROUP_HOST_GAP);
    for (size_t step = 0; step < N_STEPS; step++)
        for (size_t rank = 0; rank < N_RANKS; rank++)
            for (size_t group = 0; group < OP_GROUP_HOST_GAP; group++)
                assert_true(fabs(sums_us[step][rank][group] / 1e3 -
                                 (double)record->part_ms[group][step * N_RANKS + rank]) < 1e-7);
    run_record_free(record);
}

static size_t count_lines(const char *path, char **text) {
    size_t bytes, n = 0;
    assert_int_equal(file_read_all(path, text, &bytes), STATUS_OK);
    for (size_t i = 0; i < bytes; i++)
        n += (*text)[i] == '\n';
    return n;
}

static void test_csv(void **state) {
    const fixture_t *fixture = *state;
    run_record_t *record = make_run(fixture->run, true);
    char *text;
    assert_int_equal(export_write(record, EXPORT_CSV, fixture->out), STATUS_OK);
    assert_int_equal(count_lines(fixture->out, &text), 1 + N_STEPS * N_RANKS);
    /* step 0, rank 1: its groups take 1010, 2010 ... ns */
    const char *row = strstr(text, "\n0,100,1,0,");
    assert_non_null(row);
    assert_non_null(strstr(row, ",0.001010,0.002010,"));
    memory_free(text);
    assert_int_equal(export_write(record, EXPORT_OPS_CSV, fixture->out), STATUS_OK);
    assert_int_equal(count_lines(fixture->out, &text), 1 + N_STEPS * N_RANKS * OP_GROUP_HOST_GAP);
    assert_non_null(strstr(text, "\n9,1,0,an ?op?,gr,9000000,1019\n"));
    memory_free(text);
    assert_int_equal(export_write(record, EXPORT_CSV, "/dev/full"), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "/dev/full"));
    run_record_free(record);
}

static void test_exports_without_ops(void **state) {
    const fixture_t *fixture = *state;
    run_record_t *record = make_run(fixture->run, false);
    assert_int_equal(export_write(record, EXPORT_OPS_CSV, fixture->out), STATUS_USAGE);
    assert_int_equal(export_write(record, EXPORT_PERFETTO, fixture->out), STATUS_OK);
    json_t *root;
    status_clear();
    assert_int_equal(json_read_file(fixture->out, &root), STATUS_OK);
    json_decref(root);
    run_record_free(record);
}

static void test_plots(void **state) {
    const fixture_t *fixture = *state;
    run_record_t *record = make_run(fixture->run, true);
    for (int kind = PLOT_TPOT; kind <= PLOT_TIMELINE; kind++) {
        for (int is_png = 0; is_png < 2; is_png++) {
            char path[PATH_BYTES + 32];
            snprintf(path, sizeof path, "%s.%s", fixture->out, is_png ? "png" : "svg");
            const plot_args_t args = {
                .record = record, .kind = (plot_kind_t)kind, .skip = -1, .step = -1, .name = "run.h5", .path = path};
            assert_int_equal(plot_write(&args), STATUS_OK);
            char *text;
            size_t bytes;
            assert_int_equal(file_read_all(path, &text, &bytes), STATUS_OK);
            assert_true(bytes > 1000);
            if (is_png)
                assert_memory_equal(text, "\x89PNG\r\n\x1a\n", 8);
            else
                assert_non_null(strstr(text, "</svg>"));
            memory_free(text);
            unlink(path);
        }
    }
    plot_args_t args = {.record = record, .kind = PLOT_TIMELINE, .skip = -1, .step = 10, .name = "x", .path = "x.svg"};
    assert_int_equal(plot_write(&args), STATUS_USAGE);
    args = (plot_args_t){.record = record, .kind = PLOT_TPOT, .skip = 50, .step = -1, .name = "x", .path = "x.svg"};
    assert_int_equal(plot_write(&args), STATUS_USAGE);
    args.skip = 0;
    args.path = "x.jpg";
    assert_int_equal(plot_write(&args), STATUS_USAGE);
    run_record_free(record);
    record = make_run(fixture->run, false);
    args = (plot_args_t){.record = record, .kind = PLOT_TIMELINE, .skip = -1, .step = -1, .name = "x", .path = "x.svg"};
    assert_int_equal(plot_write(&args), STATUS_USAGE);
    run_record_free(record);
}

/* Until the file's writer, a thread of another process, has flushed so many. */
static void wait_for_steps(const char *path, size_t n) {
    size_t seen = 0;
    for (int i = 0; i < 2000 && seen < n; i++) {
        run_record_t *record;
        if (i) usleep(10000);
        assert_int_equal(run_record_load(path, false, &record), STATUS_OK);
        seen = record->n_steps;
        run_record_free(record);
    }
    assert_int_equal(seen, n);
}

/* A writer that is killed leaves a file that only SWMR readers open; mending makes it an ordinary one. */
static void test_mend(void **state) {
    const fixture_t *fixture = *state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        run_file_args_t args = steps_args(fixture->run, 100);
        run_file_t *file;
        if (run_file_create(&args, &file) != STATUS_OK) _exit(1);
        for (int64_t i = 0; i < 3; i++) {
            steps_row_t row;
            steps_fill(i, &row);
            usleep(110000); /* so that every row is flushed */
            if (run_file_append(file, &row.step) != STATUS_OK) _exit(1);
        }
        if (write(ends[1], "d", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    wait_for_steps(fixture->run, 3);
    bool was_mended;
    assert_int_equal(run_mend(fixture->run, &was_mended), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "being written"));
    status_clear();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(H5Fopen(fixture->run, H5F_ACC_RDONLY, H5P_DEFAULT) < 0);

    assert_int_equal(run_mend(fixture->run, &was_mended), STATUS_OK);
    assert_true(was_mended);
    hid_t plain = H5Fopen(fixture->run, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(plain >= 0);
    H5Fclose(plain);
    run_record_t *record;
    assert_int_equal(run_record_load(fixture->run, false, &record), STATUS_OK);
    assert_int_equal(record->state, RUN_STOPPED);
    assert_int_equal(record->n_steps, 3);
    assert_int_equal(record->generated[2], 102);
    assert_string_equal(record->stop_reason, "killed");
    /* sha256 of 100, 101, 102 as little-endian int32 */
    assert_string_equal(record->token_hash, "9aec61055167a6a4ddb248095ca41f4a159553912570a5217815ed590392420e");
    assert_string_equal(record->routes[1].name, "push");
    run_record_free(record);
    assert_int_equal(run_mend(fixture->run, &was_mended), STATUS_OK);
    assert_false(was_mended);
}

/* Killed while it closed the file: even SWMR readers refuse it. */
static void test_mend_of_a_half_closed_file(void **state) {
    const fixture_t *fixture = *state;
    run_record_free(make_run(fixture->run, false));
    pid_t child = fork();
    if (child == 0) {
        hid_t file = H5Fopen(fixture->run, H5F_ACC_RDWR, H5P_DEFAULT);
        _exit(file < 0);
    }
    waitpid(child, NULL, 0);
    run_record_t *record;
    assert_int_equal(run_record_load(fixture->run, false, &record), STATUS_INPUT);
    assert_non_null(strstr(status_message(), "inspect --mend"));
    status_clear();
    bool was_mended;
    assert_int_equal(run_mend(fixture->run, &was_mended), STATUS_OK);
    assert_true(was_mended);
    assert_int_equal(run_record_load(fixture->run, false, &record), STATUS_OK);
    assert_int_equal(record->n_steps, N_STEPS);
    run_record_free(record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_first_step),
        cmocka_unit_test_setup_teardown(test_summary, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_perfetto, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_csv, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exports_without_ops, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_plots, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mend, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mend_of_a_half_closed_file, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
