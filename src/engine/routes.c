#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_state.h"

static const char *const own_route_names[N_OWN_ROUTES] = {
    [ROUTE_CUDA_GRAPH] = "cuda_graph", [ROUTE_RUN_AHEAD] = "run_ahead", [ROUTE_DENSE8] = "dense8"};

static const char *route_name(int route) {
    return route < N_OWN_ROUTES ? own_route_names[route] : kernel_route_name((kernel_route_t)(route - N_OWN_ROUTES));
}

static int find_route(const char *name) {
    int route = 0;
    while (route < N_ROUTES && strcmp(name, route_name(route)) != 0)
        route++;
    return route;
}

/* A route that calls take one by one was taken or not by those so far. */
static engine_route_t tell_route(engine_t *engine, int route, const route_state_t *state) {
    engine_route_t told = {.name = route_name(route), .on = state->wanted && state->n_launches > 0};
    if (told.on) {
        snprintf(engine->route_reasons[route], REASON_BYTES, "%" PRId64 " %s", state->n_launches,
                 route == ROUTE_RUN_AHEAD ? "steps" : "launches");
        told.reason = engine->route_reasons[route];
    } else if (!state->wanted) {
        told.reason = "switched off";
    } else {
        told.reason = state->refusal ? state->refusal : "not asked for yet";
    }
    return told;
}

const engine_route_t *engine_routes(engine_t *engine, size_t *n_routes) {
    const backend_ops_t *ops = engine->backend->ops;
    const route_state_t general = {.wanted = true, .refusal = "the backend has the general form alone"};
    const route_state_t *states = ops->routes ? ops->routes(engine->backend) : NULL;
    engine->routes[ROUTE_RUN_AHEAD] = tell_route(engine, ROUTE_RUN_AHEAD, &engine->run_ahead);
    for (int route = N_OWN_ROUTES; route < N_ROUTES; route++)
        engine->routes[route] = tell_route(engine, route, states ? &states[route - N_OWN_ROUTES] : &general);
    *n_routes = N_ROUTES;
    return engine->routes;
}

status_t engine_check_route(const char *name) {
    char names[512] = "";
    size_t used = 0;
    if (find_route(name) < N_ROUTES) return STATUS_OK;
    for (int route = 0; route < N_ROUTES && used < sizeof names; route++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", route ? ", " : "", route_name(route));
    return status_fail(STATUS_USAGE, "there is no route \"%s\"; there are: %s", name, names);
}

static void set_cuda_graph(engine_t *engine, bool on) {
    bool can_record = engine->backend->can_record;
    engine->record = on;
    runner_set_record(engine->runner, on);
    engine->routes[ROUTE_CUDA_GRAPH] =
        (engine_route_t){.name = "cuda_graph",
                         .on = on && can_record,
                         .reason = !on          ? "switched off"
                                   : can_record ? ""
                                                : "the backend, or what carries its sums, cannot record a step"};
}

/* Without both forms in memory there is nothing to switch. */
static void set_dense8(engine_t *engine, bool on) {
    engine_route_t *route = &engine->routes[ROUTE_DENSE8];
    bool is_on = engine->dense.is_8bit && (on || !engine->dense.keep_f16);
    *route = (engine_route_t){.name = "dense8", .on = is_on, .reason = "switched off"};
    if (is_on) route->reason = on ? engine->dense_reason : "the FP16 weights were not kept";
    if (on && !is_on)
        route->reason =
            engine->backend->ops->takes_dense8 ? "the weights were loaded as FP16" : "the CUDA backend alone has it";
    weights_use_dense8(engine->weights, is_on);
    runner_forget_recordings(engine->runner);
}

status_t engine_set_route(engine_t *engine, const char *name, bool on) {
    TRY(engine_check_route(name));
    int route = find_route(name);
    if (route == ROUTE_CUDA_GRAPH) {
        set_cuda_graph(engine, on);
    } else if (route == ROUTE_RUN_AHEAD) {
        engine->run_ahead = (route_state_t){.wanted = on};
    } else if (route == ROUTE_DENSE8) {
        set_dense8(engine, on);
    } else if (engine->backend->ops->routes) {
        engine->backend->ops->routes(engine->backend)[route - N_OWN_ROUTES] = (route_state_t){.wanted = on};
        runner_forget_recordings(engine->runner);
    }
    return STATUS_OK;
}
