#include "device/launches.h"

#include <stddef.h>
#include <string.h>

/* In the general form, and, where the op has a route of its own (on_route > 0), with that. gr_mix_final is the gr_mix
 * behind the last layer, which has no block_inject. */
/* clang-format off */
static const struct {
    const char *op;
    int general;
    kernel_route_t route;
    int on_route;
} table[] = {
    {.op = "embed", .general = 1},
    {.op = "ngram_rows", .general = 1},
    {.op = "ple_gather", .general = 1},
    {.op = "ple_all_reduce", .general = 1},
    {.op = "ple_kv_proj", .general = 1},
    {.op = "ple_mix", .general = 2},
    {.op = "gr_mix", .general = 4, .route = ROUTE_GR, .on_route = 2},
    {.op = "gr_mix_final", .general = 3, .route = ROUTE_GR, .on_route = 2},
    {.op = "gr_inject", .general = 1},
    {.op = "gdn_in_proj", .general = 1},
    {.op = "gdn_core", .general = 3, .route = ROUTE_GDN, .on_route = 1},
    {.op = "gdn_out_proj", .general = 1},
    {.op = "qsa_in_proj", .general = 1},
    {.op = "qsa_core", .general = 5, .route = ROUTE_QSA, .on_route = 4},
    {.op = "qsa_o_proj", .general = 1},
    {.op = "attention_all_reduce", .general = 1},
    {.op = "router_proj", .general = 1},
    {.op = "router", .general = 1},
    {.op = "experts", .general = 2},
    {.op = "shared_expert", .general = 2},
    {.op = "moe_in", .general = 1},
    {.op = "moe_gate_up", .general = 1},
    {.op = "moe_down", .general = 1},
    {.op = "moe_all_reduce", .general = 1},
    {.op = "lm_head", .general = 2, .route = ROUTE_LM_HEAD, .on_route = 1},
    {.op = "advance", .general = 1},
};
/* clang-format on */

int op_n_launches(const char *op, const bool *is_on) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].op, op) != 0) continue;
        return table[i].on_route > 0 && is_on[table[i].route] ? table[i].on_route : table[i].general;
    }
    return 0;
}
