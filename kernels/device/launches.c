#include "device/launches.h"

#include <stddef.h>
#include <string.h>

/* Without a route of its own an op has the general form alone. */
enum { NO_ROUTE = N_KERNEL_ROUTES };

static const struct {
    const char *op;
    int general;
    int route, on_route;
} table[] = {
    {"embed", 1, NO_ROUTE, 0},          {"ngram_rows", 1, NO_ROUTE, 0},     {"ple_gather", 1, NO_ROUTE, 0},
    {"ple_all_reduce", 1, NO_ROUTE, 0}, {"ple_kv_proj", 1, NO_ROUTE, 0},    {"ple_mix", 2, NO_ROUTE, 0},
    {"gr_mix", 3, ROUTE_GR, 2},         {"gr_inject", 1, NO_ROUTE, 0},      {"gdn_in_proj", 1, NO_ROUTE, 0},
    {"gdn_core", 3, ROUTE_GDN, 1},      {"gdn_out_proj", 1, NO_ROUTE, 0},   {"qsa_in_proj", 1, NO_ROUTE, 0},
    {"qsa_core", 5, ROUTE_QSA, 4},      {"qsa_o_proj", 1, NO_ROUTE, 0},     {"attention_all_reduce", 1, NO_ROUTE, 0},
    {"router_proj", 1, NO_ROUTE, 0},    {"router", 1, NO_ROUTE, 0},         {"experts", 2, NO_ROUTE, 0},
    {"shared_expert", 2, NO_ROUTE, 0},  {"moe_all_reduce", 1, NO_ROUTE, 0}, {"lm_head", 1, NO_ROUTE, 0},
    {"argmax", 1, NO_ROUTE, 0},
};

int op_n_launches(const char *op, const bool *is_on) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].op, op) != 0) continue;
        return table[i].route != NO_ROUTE && is_on[table[i].route] ? table[i].on_route : table[i].general;
    }
    return 0;
}
