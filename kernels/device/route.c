#include "device/route.h"

static const char *const names[N_KERNEL_ROUTES] = {
    [ROUTE_PDL] = "pdl",
    [ROUTE_PUSH_ALLREDUCE] = "push_allreduce",
    [ROUTE_FUSED_ALLREDUCE] = "fused_allreduce",
    [ROUTE_GDN] = "gdn",
    [ROUTE_QSA] = "qsa",
    [ROUTE_GDN_CHUNK] = "gdn_chunk",
    [ROUTE_QSA_TILES] = "qsa_tiles",
    [ROUTE_GR_MANY] = "gr_many",
    [ROUTE_EXPERTS_GROUPED] = "experts_grouped",
    [ROUTE_GR] = "gr",
    [ROUTE_CUDA_AWARE_MPI] = "cuda_aware_mpi",
    [ROUTE_GEMV_M1] = "gemv_m1",
    [ROUTE_LM_HEAD] = "lm_head",
    [ROUTE_NVFP4_M1] = "nvfp4_m1",
    [ROUTE_ROUTER] = "router",
    [ROUTE_SHARED_GATE] = "shared_gate",
};

const char *kernel_route_name(kernel_route_t route) { return names[route]; }

bool route_take(const device_queue_t *queue, kernel_route_t route, const char *refusal) {
    route_state_t *state = &queue->routes[route];
    if (!state->wanted) return false;
    if (refusal) {
        if (!state->refusal) state->refusal = refusal;
        return false;
    }
    state->n_launches++;
    return true;
}
