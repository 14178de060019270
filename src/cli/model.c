/* galvani model: what a decode step should take, beside what was measured. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "model/cost.h"

/* What galvani bench measured. */
typedef struct measurement {
    json_t *root;                 /* NULL: nothing */
    double group_ms[OP_N_GROUPS]; /* mean of the ranks */
    double ms, n_launches;
} measurement_t;

/* The mean of a figure that bench gives as mean, least and most; 0 if it does not. */
static double mean_of(const json_t *figures, const char *name) {
    return json_number_value(json_object_get(json_object_get(figures, name), "mean"));
}

/* Whether a member is a number of ranks or tokens. */
static bool read_count(const json_t *root, const char *name, int64_t *count) {
    const json_t *value = json_object_get(root, name);
    *count = json_integer_value(value);
    return json_is_integer(value) && *count >= 1 && *count <= INT32_MAX;
}

/* Takes from the file what it was measured with. */
static status_t read_measurement(options_t *options, cost_args_t *args, measurement_t *measured) {
    TRY(json_read_file(options->measured, &measured->root));
    const json_t *root = measured->root, *figures = json_object_get(root, "candidate");
    const json_t *parts = json_object_get(figures, "decomposition_ms");
    const json_t *route;
    int64_t prompt_len, warmup, max_new;
    options->model = json_string_value(json_object_get(root, "model"));
    if (!json_is_object(parts) || !options->model || !read_count(root, "n_ranks", &options->tp) ||
        !read_count(root, "prompt_len", &prompt_len) || !read_count(root, "warmup", &warmup) ||
        !read_count(root, "max_new", &max_new))
        return status_fail(STATUS_INPUT, "%s is not what galvani bench --json writes", options->measured);
    options->context = prompt_len + (warmup + max_new) / 2;
    for (int group = 0; group < OP_N_GROUPS; group++)
        measured->group_ms[group] = mean_of(parts, op_group_name((op_group_t)group));
    measured->ms = mean_of(figures, "ms_per_token");
    measured->n_launches = mean_of(figures, "launches");
    for (int i = 0; i < N_KERNEL_ROUTES; i++)
        args->routes_taken[i] = false;
    args->runs_ahead = false;
    size_t index;
    json_array_foreach(json_object_get(root, "routes"), index, route) {
        const char *name = json_string_value(json_object_get(route, "name"));
        const char *chosen = json_string_value(json_object_get(route, "chosen"));
        const char *reason = json_string_value(json_object_get(route, "reason"));
        if (!name || !chosen || !reason || strcmp(chosen, "on") != 0) continue;
        if (strcmp(name, "run_ahead") == 0) args->runs_ahead = true;
        if (strcmp(name, "dense8") == 0) options->dense = strncmp(reason, "qpn8", 4) == 0 ? "qpn8" : "q8";
        for (int i = 0; i < N_KERNEL_ROUTES; i++)
            if (strcmp(name, kernel_route_name((kernel_route_t)i)) == 0) args->routes_taken[i] = true;
    }
    return STATUS_OK;
}

static void print_row(const char *name, double bytes, int64_t n_launches, double floor_ms, double ms,
                      const measurement_t *measured, double measured_ms) {
    printf("%-14s %9.1f %9" PRId64 " %9.3f %9.3f", name, bytes / 1e6, n_launches, floor_ms, ms);
    if (measured->root) printf(" %9.3f %8.0f %%", measured_ms, measured_ms > 0 ? 100 * floor_ms / measured_ms : 0);
    putchar('\n');
}

/* The same step, if a launch cost another time than is taken for granted. */
static void print_sensitivity(const cost_t *cost, const cost_device_t *device) {
    printf("with a launch at");
    for (int us = 2; us <= 5; us++) {
        cost_device_t other = *device;
        double ms = 0;
        other.launch_us = us;
        for (int group = 0; group < OP_N_GROUPS; group++)
            ms += cost_group_ms(cost, &other, false, (op_group_t)group);
        printf("%s %d us: %.2f ms", us > 2 ? "," : "", us, ms);
    }
    putchar('\n');
}

static void print_model(const options_t *options, const cost_args_t *args, const cost_device_t *device,
                        const measurement_t *measured) {
    cost_t cost;
    cost_build(args, &cost);
    bool overlaps = args->routes_taken[ROUTE_PDL] && device->overlap_us > 0;
    double total_ms = 0;
    printf("%s on %" PRId64 " rank%s, %s dense, %" PRId64 " tokens before; %s\n\n%-14s %9s %9s %9s %9s", options->model,
           options->tp, options->tp == 1 ? "" : "s", options->dense, options->context, device->name, "a token", "MB",
           "launches", "floor ms", "model ms");
    if (measured->root) printf(" %9s %10s", "measured", "of floor");
    putchar('\n');
    for (int i = 0; i < OP_N_GROUPS; i++) {
        op_group_t group = (op_group_t)i;
        double bytes = cost_group_bytes(&cost, group), ms = cost_group_ms(&cost, device, overlaps, group);
        total_ms += ms;
        print_row(op_group_name(group), bytes, cost_group_launches(&cost, group), bytes / device->bytes_per_s * 1e3, ms,
                  measured, measured->group_ms[group]);
    }
    print_row("sum", cost_bytes(&cost), cost_launches(&cost), cost_bytes(&cost) / device->bytes_per_s * 1e3, total_ms,
              measured, measured->ms);
    if (measured->n_launches > 0) printf("launches counted in the recorded step: %.0f\n", measured->n_launches);
    printf("\n%.0f tokens/s. %s (%s): %.0f GB/s; ", 1e3 / total_ms, device->name, device->source,
           device->bytes_per_s / 1e9);
    if (overlaps)
        printf("a launch takes %.1f us or the time of its bytes", device->overlap_us);
    else
        printf("a launch adds %.1f us to the time of its bytes", device->launch_us);
    printf(", a sum over ranks takes %.1f us, the host %.0f us a step that does not run ahead\n", device->sum_us,
           device->host_us);
    if (!overlaps && !measured->root) print_sensitivity(&cost, device);
}

static status_t run(options_t *options, measurement_t *measured) {
    model_config_t config;
    cost_args_t args = {.config = &config,
                        .activation_bytes = sizeof(uint16_t),
                        .expert_format = EXPERTS_NVFP4,
                        .ple_dtype = DTYPE_F8_E4M3};
    for (int i = 0; i < N_KERNEL_ROUTES; i++)
        args.routes_taken[i] = true;
    args.runs_ahead = true;
    if (options->measured) TRY(read_measurement(options, &args, measured));
    args.dense = strcmp(options->dense, "fp16") == 0 ? DTYPE_F16
                 : strcmp(options->dense, "q8") == 0 ? DTYPE_Q8
                                                     : DTYPE_QPN8;
    const cost_device_t *device = cost_find_device(options->device);
    if (!device) return status_fail(STATUS_USAGE, "--device is \"%s\", but must be H200 or V100", options->device);
    TRY(load_config(options->model, &config));
    const schema_options_t schema = {
        .tp_size = (int)options->tp, .expert_format = args.expert_format, .ple_dtype = args.ple_dtype};
    TRY(schema_check(&config, &schema, STATUS_USAGE));
    if (options->context > config.max_position_embeddings)
        return status_fail(STATUS_USAGE,
                           "the context is %" PRId64 " tokens; the model's max_position_embeddings is %" PRId64,
                           options->context, config.max_position_embeddings);
    args.local = local_shape(&config, 0, (int)options->tp);
    args.context = options->context;
    print_model(options, &args, device, measured);
    return STATUS_OK;
}

static status_t model(options_t *options) {
    measurement_t measured = {0};
    status_t status = run(options, &measured);
    json_decref(measured.root);
    return status;
}

status_t cli_model(int argc, char **argv, comm_t *comm) {
    (void)comm;
    return options_run(
        COMMAND_MODEL,
        "galvani model [options]\n\n"
        "Prints what a decode step must move and launch on each rank, and the time that this should take.",
        argc, argv, model);
}
