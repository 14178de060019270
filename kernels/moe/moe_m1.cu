/* The MoE block of one token in three launches, NVFP4 experts, exact shapes. All three are made of 16-row tiles
 * (experts/row_tile.cuh) with FP32 sums; every weight is read once.
 *
 * - moe_in: router and the shared expert's gate and up, loaded before the wait.
 * - moe_gate_up: the shared expert's down, loaded before the wait; each other block chooses the experts for itself,
 *   then gate and up of its choice. One block only chooses, and publishes experts and weights.
 * - moe_down: takes the published choice and loads down before the wait; sums over the choices in their order.
 *
 * On one rank of the full model they move 9.2, 21.7 and 9.2 MB. Pointers are aligned to 16 bytes. */

#include "device/launch.cuh"
#include "experts/row_tile.cuh"
#include "moe/moe_m1.cuh"
#include "push/push_part.cuh"
#include "router/router.h"
#include "shared_expert/shared_expert.h"

namespace {

enum { MOE_IN_WARPS = 16, MOE_UP_WARPS = 4 };

/* Grid: tiles of 16 rows: 8 gate and 8 up rows of the shared expert, then 16 rows of the router. The warps of a block
 * share the columns. */
template <typename shape>
__global__ void __launch_bounds__(MOE_IN_WARPS *WARP, 2) moe_in_f16_kernel(stamp_t stamp, moe_call call) {
    constexpr int H = shape::HIDDEN, M = shape::INTERMEDIATE, VECTORS = H / 8;
    constexpr int STEPS = ceil_div(ceil_div(VECTORS, 4), MOE_IN_WARPS);
    constexpr bool EVEN = VECTORS % (4 * MOE_IN_WARPS) == 0;
    __shared__ uint4 u[VECTORS];
    __shared__ float sums[TILE_ROWS][MOE_IN_WARPS + 1];
    int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    int n_shared = call.with_shared ? M / 8 : 0, tile = blockIdx.x, first = (tile - n_shared) * TILE_ROWS;
    const __half *low = call.shared_gate_up + (int64_t)(tile * 8 + g) * H, *high = low + (int64_t)M * H;
    if (tile >= n_shared) { /* what lies behind the last row repeats it */
        low = call.router + (int64_t)min(first + g, (int)shape::N_EXPERTS) * H;
        high = call.router + (int64_t)min(first + g + 8, (int)shape::N_EXPERTS) * H;
    }

    int piece = warp * STEPS * 4 + t; /* the first of this lane */
    const uint4 *low_pieces = (const uint4 *)low + piece, *high_pieces = (const uint4 *)high + piece;
    uint4 weights[STEPS][2];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (!EVEN && piece + 4 * i >= VECTORS) continue;
        weights[i][0] = load_ahead(low_pieces + 4 * i);
        weights[i][1] = load_ahead(high_pieces + 4 * i);
    }
    next_start();
    previous_wait(stamp);
    if (blockIdx.x == 0 && threadIdx.x < shape::TOP_K) publish(call.choice + threadIdx.x, NOT_CHOSEN);
#pragma unroll
    for (int i = 0; i < ceil_div(VECTORS, MOE_IN_WARPS * WARP); i++) {
        int vector = i * MOE_IN_WARPS * WARP + threadIdx.x;
        if (vector < VECTORS) copy16(u + vector, (const uint4 *)call.u + vector);
    }
    copies_wait();
    __syncthreads();

    row_sums total = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (!EVEN && piece + 4 * i >= VECTORS) weights[i][0] = weights[i][1] = make_uint4(0, 0, 0, 0);
        add_f16(total, weights[i][0], weights[i][1], u[EVEN || piece + 4 * i < VECTORS ? piece + 4 * i : 0]);
    }
    float2 rows = finish_rows(total);
    if (t == 0) {
        sums[g][warp] = rows.x;
        sums[g + 8][warp] = rows.y;
    }
    __syncthreads();
    if (warp >= TILE_ROWS / 2) return;
    /* Warp r sums rows r and r + 8, half a warp each. */
    int row = warp + threadIdx.x % WARP / 16 * 8, lane = threadIdx.x % 16;
    float sum = lanes_sum<16>(sums[row][lane]), other = __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
    if (lane != 0) return;
    if (tile >= n_shared) {
        if (first + row <= shape::N_EXPERTS) call.logits[first + row] = sum;
    } else if (row < 8) {
        call.shared_act[tile * 8 + row] = __float2half_rn(siluf(sum) * other);
    }
}

/* Blocks of moe_gate_up that compute the shared expert's down, some tiles of 16 outputs each: so few that with the
 * experts' blocks all of them have room at once on the devices that matter. */
enum { SHARED_DOWN_TILES = 2 };
template <typename shape> __host__ __device__ constexpr int n_shared_down_blocks() {
    return ceil_div(shape::HIDDEN / TILE_ROWS, SHARED_DOWN_TILES);
}

template <typename shape>
__device__ __forceinline__ void shared_down(stamp_t stamp, const moe_call &call, float (*sums)[TILE_ROWS]) {
    constexpr int M = shape::INTERMEDIATE, VECTORS = M / 8;
    constexpr int STEPS = ceil_div(ceil_div(VECTORS, 4), MOE_UP_WARPS);
    int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, piece = warp * STEPS * 4 + t;
    for (int tile = blockIdx.x; tile < shape::HIDDEN / TILE_ROWS; tile += n_shared_down_blocks<shape>()) {
        const uint4 *low_pieces = (const uint4 *)(call.shared_down + (int64_t)(tile * TILE_ROWS + g) * M) + piece;
        const uint4 *high_pieces = low_pieces + M; /* eight rows on */
        uint4 low[STEPS], high[STEPS], x[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (piece + 4 * i >= VECTORS) continue;
            low[i] = load_ahead(low_pieces + 4 * i);
            high[i] = load_ahead(high_pieces + 4 * i);
        }
        if (tile == (int)blockIdx.x) {
            previous_wait(stamp);
            next_start();
        }
        float gate = sigmoidf(__ldcg(call.logits + shape::N_EXPERTS));
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            bool inside = piece + 4 * i < VECTORS;
            uint4 zero = make_uint4(0, 0, 0, 0);
            x[i] = inside ? __ldcg((const uint4 *)call.shared_act + piece + 4 * i) : zero;
            if (!inside) low[i] = high[i] = zero;
        }
        row_sums total = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            add_f16(total, low[i], high[i], x[i]);
        float2 rows = finish_rows(total);
        __syncthreads(); /* the sums of the tile before are read */
        if (t == 0) {
            sums[warp][g] = rows.x;
            sums[warp][g + 8] = rows.y;
        }
        __syncthreads();
        if (threadIdx.x >= TILE_ROWS) continue;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < MOE_UP_WARPS; i++)
            sum += sums[i][threadIdx.x];
        call.shared_o[tile * TILE_ROWS + threadIdx.x] = sum * gate;
    }
}

/* Grid: blocks of the shared expert's down, whose weights come while the other blocks wait for the choice; one that
 * publishes the choice; then for each choice its groups of 8 gate and 8 up rows. The warps of a block share the
 * columns. */
template <typename shape>
__global__ void __launch_bounds__(MOE_UP_WARPS *WARP, 7) moe_gate_up_nvfp4_kernel(stamp_t stamp, moe_call call) {
    constexpr int H = shape::HIDDEN, M = shape::INTERMEDIATE, K = shape::TOP_K, THREADS = MOE_UP_WARPS * WARP;
    constexpr int BLOCKS = H % 32 == 0 ? 2 : 1, PIECES = H / (16 * BLOCKS), GROUPS = M / 8;
    constexpr int ROW_WARPS = 2, COLUMN_WARPS = MOE_UP_WARPS / ROW_WARPS;
    constexpr int STEPS = ceil_div(ceil_div(PIECES, 8), COLUMN_WARPS);
    constexpr bool EVEN = PIECES % (8 * COLUMN_WARPS) == 0;
    __shared__ permuted_vector<H, BLOCKS> u;
    __shared__ top_k_choice<shape::N_EXPERTS, K> choice;
    __shared__ float sums[MOE_UP_WARPS][TILE_ROWS];
    __shared__ alignas(16) uint8_t scales[TILE_ROWS][H / 16];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int n_shared = call.with_shared ? n_shared_down_blocks<shape>() : 0;
    if ((int)blockIdx.x < n_shared) {
        shared_down<shape>(stamp, call, sums);
        return;
    }
    int item = (int)blockIdx.x - n_shared - 1, group = item % GROUPS;
    previous_wait(stamp);
    next_start(); /* only now: moe_down must find what moe_in made of the choice, or a later one */
    if (item < 0) {
        choose<shape, MOE_UP_WARPS, true>(
            call, [&](int expert) { return call.logits[expert]; }, &choice);
        __syncwarp();
        if (threadIdx.x < K)
            publish(call.choice + threadIdx.x, (uint64_t)__float_as_uint(choice.weights[threadIdx.x]) << 32 |
                                                   (uint32_t)choice.experts[threadIdx.x]);
        return;
    }

    uint4 staged[ceil_div(H / 8, THREADS)];
#pragma unroll
    for (int i = 0; i < ceil_div(H / 8, THREADS); i++) {
        int vector = i * THREADS + threadIdx.x;
        if (vector < H / 8) staged[i] = ((const uint4 *)call.u)[vector];
    }
    choose<shape, MOE_UP_WARPS, false>(
        call, [&](int expert) { return call.logits[expert]; }, &choice);
#pragma unroll
    for (int i = 0; i < ceil_div(H / 8, THREADS); i++) {
        int vector = i * THREADS + threadIdx.x;
        if (vector < H / 8) *u.word(vector) = permute8(staged[i]);
    }
    __syncthreads();

    int64_t expert = choice.experts[item / GROUPS], gate = expert * 2 * M + group * 8, up = gate + M;
    constexpr int SCALE_WORDS = 8 * (H / 16) / 16; /* of the gate rows; of the up rows as many */
    for (int i = threadIdx.x; i < 2 * SCALE_WORDS; i += THREADS)
        copy16((uint4 *)scales[0] + i,
               call.experts.gate_up_scales + (i < SCALE_WORDS ? gate : up - 8) * (H / 16) + 16 * i);
    int row = warp % ROW_WARPS * 4 + lane / 8, first = warp / ROW_WARPS * STEPS * 8 + lane % 8;
    const uint8_t *codes = call.experts.gate_up_codes + (gate + row) * (H / 2);
    nvfp4_piece<BLOCKS> low[STEPS], high[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int piece = first + 8 * i;
        if (!EVEN && piece >= PIECES) continue;
        load_codes(codes, piece, &low[i]);
        load_codes(codes + (int64_t)M * (H / 2), piece, &high[i]);
    }
    float scale_2 = __ldg(call.experts.gate_up_scale_2 + 2 * expert + threadIdx.x / 8 % 2) * NVFP4_TILE_FACTOR;
    copies_wait();
    __syncthreads();
    row_sums total = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int piece = first + 8 * i;
        bool inside = EVEN || piece < PIECES;
        if (!inside) piece = 0;
        read_scales(scales[row], piece, &low[i]);
        read_scales(scales[row + 8], piece, &high[i]);
        if (!inside) low[i] = high[i] = {};
        add_nvfp4(total, low[i], high[i], u.piece(piece));
    }
    float2 rows = finish_whole_lines(total);
    if (lane % 8 == 0) {
        sums[warp / ROW_WARPS][row] = rows.x;
        sums[warp / ROW_WARPS][row + 8] = rows.y;
    }
    __syncthreads();
    if (warp != 0) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COLUMN_WARPS; i++)
        sum += sums[i][lane % TILE_ROWS];
    sum *= scale_2;
    float up_sum = __shfl_down_sync(0xFFFFFFFFu, sum, 8);
    if (lane < 8) call.act[item * 8 + permuted_place(lane)] = __float2half_rn(siluf(sum) * up_sum);
}

/* Grid: tiles of 16 outputs. A warp a choice. */
template <typename shape>
__global__ void __launch_bounds__(shape::TOP_K *WARP, 2)
    moe_down_nvfp4_kernel(stamp_t stamp, moe_call call, const __grid_constant__ push_args_t push) {
    constexpr int H = shape::HIDDEN, M = shape::INTERMEDIATE, BLOCKS = M % 32 == 0 ? 2 : 1, K = shape::TOP_K;
    constexpr int PIECES = M / (16 * BLOCKS), STEPS = ceil_div(PIECES, 4), VECTORS = M / 8;
    __shared__ permuted_vector<M, BLOCKS> act[K];
    __shared__ alignas(16) uint8_t scales[K][TILE_ROWS][M / 16];
    __shared__ int32_t experts[K];
    __shared__ float weights[K];
    __shared__ float sums[K][TILE_ROWS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;

    /* Before the wait: every block of moe_gate_up runs or has ended by now, so also the one that publishes. One warp
     * asks, as more would keep the memory busy that all wait for. */
    if (threadIdx.x < K) {
        uint64_t choice = await_choice(call.choice + threadIdx.x);
        experts[threadIdx.x] = (int32_t)choice;
        weights[threadIdx.x] = __uint_as_float((uint32_t)(choice >> 32));
    }
    __syncthreads();
    int64_t expert = experts[warp], row = expert * H + blockIdx.x * TILE_ROWS + g;
    const uint8_t *codes = call.experts.down_codes + row * (M / 2);
    nvfp4_piece<BLOCKS> low[STEPS], high[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int piece = i * 4 + t;
        if (PIECES % 4 && piece >= PIECES) continue;
        load_codes(codes, piece, &low[i]);
        load_codes(codes + 8 * (M / 2), piece, &high[i]);
    }
    const uint8_t *tile_scales = call.experts.down_scales + (row - g) * (M / 16);
    for (int i = lane; i < (int)sizeof scales[0] / 16; i += WARP)
        copy16((uint4 *)scales[warp][0] + i, tile_scales + 16 * i);
    float scale_2 = __ldg(call.experts.down_scale_2 + expert) * NVFP4_TILE_FACTOR;
    if (call.o) next_start();
    previous_wait(stamp);
    if (!call.o) next_start(); /* only behind the wait, as push_part.cuh has it */
    uint32_t round = call.o ? 0 : push_part_round(push);
#pragma unroll
    for (int i = 0; i < ceil_div(VECTORS, WARP); i++) {
        int vector = i * WARP + lane;
        if (vector < VECTORS) copy16(act[warp].word(vector), (const uint4 *)(call.act + warp * M) + vector);
    }
    copies_wait();
    __syncwarp();
    row_sums total = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        int piece = i * 4 + t;
        bool inside = PIECES % 4 == 0 || piece < PIECES;
        if (!inside) piece = 0;
        read_scales(scales[warp][g], piece, &low[i]);
        read_scales(scales[warp][g + 8], piece, &high[i]);
        if (!inside) low[i] = high[i] = {};
        add_nvfp4(total, low[i], high[i], act[warp].piece(piece));
    }
    float2 rows = finish_rows(total);
    if (t == 0) {
        sums[warp][g] = rows.x * scale_2;
        sums[warp][g + 8] = rows.y * scale_2;
    }
    __syncthreads();
    if (threadIdx.x >= TILE_ROWS) return;
    int output = blockIdx.x * TILE_ROWS + threadIdx.x;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < K; i++)
        sum = fmaf(weights[i], sums[i][threadIdx.x], sum);
    if (call.with_shared) sum += __ldcg(call.shared_o + output);
    if (call.o)
        call.o[output] = __float2half_rn(sum);
    else
        push_part_send(push, round, output, __float2half_rn(sum));
    if (call.shared_gate && output == 0) *call.shared_gate = sigmoidf(__ldcg(call.logits + shape::N_EXPERTS));
}

struct workspace {
    __half *act, *shared_act;
    float *shared_o;
    uint64_t *choice;
};

size_t align(size_t bytes) { return (bytes + 15) / 16 * 16; }

size_t lay_out(const moe_args_t *args, workspace *work) {
    char *base = (char *)args->workspace;
    size_t used = 0;
    work->act = (__half *)base;
    used += align((size_t)(args->top_k * args->intermediate) * sizeof(__half));
    work->shared_act = (__half *)(base + used);
    used += align((size_t)args->shared_intermediate * sizeof(__half));
    work->shared_o = (float *)(base + used);
    used += align((size_t)args->hidden_size * sizeof(float));
    work->choice = (uint64_t *)(base + used);
    return used + (size_t)args->top_k * sizeof(uint64_t);
}

bool is_wanted(const device_queue_t *queue, kernel_route_t route) { return queue->routes[route].wanted; }

moe_call call_of(const moe_args_t *args, const device_queue_t *queue) {
    bool own_choice = is_wanted(queue, ROUTE_ROUTER);
    workspace work;
    lay_out(args, &work);
    moe_call call = {};
    call.u = args->u;
    call.router = (const __half *)args->router.data;
    call.shared_gate_up = (const __half *)args->shared_gate_up.data;
    call.shared_down = (const __half *)args->shared_down.data;
    call.experts = args->expert_weights;
    call.logits = args->logits;
    call.chosen = own_choice ? NULL : args->experts;
    call.weights = own_choice ? NULL : args->weights;
    call.act = work.act;
    call.shared_act = work.shared_act;
    call.shared_o = work.shared_o;
    call.choice = work.choice;
    call.o = args->sends ? NULL : args->o;
    call.norm_topk_prob = args->norm_topk_prob;
    call.with_shared = is_wanted(queue, ROUTE_SHARED_GATE);
    return call;
}

template <typename shape> void launch_in(const moe_call &call, const device_queue_t *queue) {
    int n_tiles = (call.with_shared ? shape::INTERMEDIATE / 8 : 0) + ceil_div(shape::N_EXPERTS + 1, TILE_ROWS);
    launch_kernel(queue, moe_in_f16_kernel<shape>, n_tiles, MOE_IN_WARPS * WARP, 0, call);
}

template <typename shape> void launch_gate_up(const moe_call &call, const device_queue_t *queue) {
    int n_blocks = (call.with_shared ? n_shared_down_blocks<shape>() : 0) + 1 + shape::TOP_K * shape::INTERMEDIATE / 8;
    launch_kernel(queue, moe_gate_up_nvfp4_kernel<shape>, n_blocks, MOE_UP_WARPS * WARP, 0, call);
}

template <typename shape> void launch_down(const moe_call &call, const device_queue_t *queue) {
    const push_args_t push = queue->push ? *queue->push : push_args_t{};
    launch_kernel(queue, moe_down_nvfp4_kernel<shape>, shape::HIDDEN / TILE_ROWS, shape::TOP_K * WARP, 0, call, push);
}

typedef struct variant {
    int64_t n_experts, top_k, hidden_size, intermediate;
    void (*in)(const moe_call &call, const device_queue_t *queue);
    void (*gate_up)(const moe_call &call, const device_queue_t *queue);
    void (*down)(const moe_call &call, const device_queue_t *queue);
} variant_t;

template <int N_EXPERTS, int TOP_K, int HIDDEN, int INTERMEDIATE> constexpr variant_t variant() {
    typedef moe_shape<N_EXPERTS, TOP_K, HIDDEN, INTERMEDIATE> shape;
    return {N_EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, launch_in<shape>, launch_gate_up<shape>, launch_down<shape>};
}

/* The full model on 1, 2, 4 and 8 ranks; tests/models/nano on 1, 2 and 4. */
const variant_t variants[] = {
    variant<512, 10, 2560, 640>(), variant<512, 10, 2560, 320>(), variant<512, 10, 2560, 160>(),
    variant<512, 10, 2560, 80>(),  variant<32, 4, 160, 64>(),     variant<32, 4, 160, 32>(),
    variant<32, 4, 160, 16>(),
};

const variant_t *find_variant(const moe_args_t *args) {
    for (const variant_t &v : variants) {
        if (v.n_experts == args->n_experts && v.top_k == args->top_k && v.hidden_size == args->hidden_size &&
            v.intermediate == args->intermediate && v.intermediate == args->shared_intermediate)
            return &v;
    }
    return NULL;
}

const char *refusal(const moe_args_t *args) {
    const expert_weights_t *weights = &args->expert_weights;
    if (!find_variant(args)) return "not a shape it was built for";
    if (!weights->gate_up_codes) return "the experts are not NVFP4";
    if (args->router.dtype != DTYPE_F16 || args->shared_gate_up.dtype != DTYPE_F16 ||
        args->shared_down.dtype != DTYPE_F16)
        return "router or shared expert are not FP16";
    const void *const operands[] = {args->u,
                                    args->router.data,
                                    args->shared_gate_up.data,
                                    args->shared_down.data,
                                    weights->gate_up_codes,
                                    weights->gate_up_scales,
                                    weights->down_codes,
                                    weights->down_scales,
                                    args->workspace};
    for (const void *operand : operands) {
        if ((uintptr_t)operand % 16) return "an operand is not aligned to 16 bytes";
    }
    return NULL;
}

} // namespace

size_t moe_cuda_workspace_bytes(const moe_args_t *args) {
    moe_args_t counted = *args;
    workspace work;
    counted.workspace = NULL;
    return lay_out(&counted, &work);
}

bool moe_is_joined(const moe_args_t *args, const device_queue_t *queue) {
    if (route_take(queue, ROUTE_NVFP4_M1, refusal(args))) return true;
    if (is_wanted(queue, ROUTE_NVFP4_M1)) {
        route_take(queue, ROUTE_ROUTER, "part of nvfp4_m1");
        route_take(queue, ROUTE_SHARED_GATE, "part of nvfp4_m1");
    }
    return false;
}

status_t launch_moe_in(const moe_args_t *args, const device_queue_t *queue) {
    route_take(queue, ROUTE_SHARED_GATE, NULL);
    find_variant(args)->in(call_of(args, queue), queue);
    return queue_check_launch("moe_in");
}

status_t launch_moe_gate_up(const moe_args_t *args, const device_queue_t *queue) {
    if (!route_take(queue, ROUTE_ROUTER, NULL)) {
        router_args_t router = {};
        router.n_tokens = 1;
        router.n_experts = args->n_experts;
        router.top_k = args->top_k;
        router.norm_topk_prob = args->norm_topk_prob;
        router.logits = args->logits;
        router.logits_stride = args->n_experts + 1;
        router.experts = args->experts;
        router.weights = args->weights;
        router.shared_gate = args->shared_gate;
        TRY(launch_router(&router, queue));
    }
    find_variant(args)->gate_up(call_of(args, queue), queue);
    return queue_check_launch("moe_gate_up");
}

status_t launch_moe_down(const moe_args_t *args, const device_queue_t *queue) {
    moe_call call = call_of(args, queue);
    if (!call.with_shared) call.shared_gate = args->shared_gate;
    find_variant(args)->down(call, queue);
    TRY(queue_check_launch("moe_down"));
    if (call.with_shared) return STATUS_OK;
    shared_expert_args_t shared = {};
    shared.n_tokens = 1;
    shared.u = args->u;
    shared.shared_gate = args->shared_gate;
    shared.gate_up = args->shared_gate_up;
    shared.down = args->shared_down;
    shared.o = args->o;
    shared.workspace = args->workspace;
    return launch_shared_expert(&shared, queue);
}
