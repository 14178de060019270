#include "linear/gemv.cuh"
#include "linear/linear.h"
#include "shared_expert/shared_expert.h"

namespace {

/* act[t, i] = silu(gate row i) * up row i, times shared_gate[t]: the last factor may as well come before the linear
 * down projection. */
struct swiglu {
    __half *act;
    const float *shared_gate;
    int64_t intermediate;
    __device__ void operator()(int64_t token, int64_t row, const float *sums) const {
        act[token * intermediate + row] = __float2half_rn(siluf(sums[0]) * sums[1] * shared_gate[token]);
    }
};

struct add_f16 {
    __half *o;
    int64_t rows;
    __device__ void operator()(int64_t token, int64_t row, const float *sum) const {
        __half *value = o + token * rows + row;
        *value = __float2half_rn(__half2float(*value) + sum[0]);
    }
};

/* One thread a value; the same as the epilogue above, behind a GEMM. */
__global__ void swiglu_f16_kernel(int64_t n, int64_t intermediate, const __half *gate_up, swiglu epilogue) {
    int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    int64_t token = index / intermediate, row = index % intermediate;
    const __half *sums = gate_up + token * 2 * intermediate + row;
    float values[2] = {__half2float(sums[0]), __half2float(sums[intermediate])};
    epilogue(token, row, values);
}

} // namespace

size_t shared_expert_cuda_workspace_bytes(const shared_expert_args_t *args) {
    /* the activation, and gate and up behind a GEMM */
    int64_t n_values = args->n_tokens > LINEAR_MAX_GEMV_TOKENS ? 3 : 1;
    return (size_t)(args->n_tokens * args->gate_up.rows / 2 * n_values) * sizeof(__half);
}

status_t launch_shared_expert(const shared_expert_args_t *args, const device_queue_t *queue) {
    int64_t intermediate = args->gate_up.rows / 2, n = args->n_tokens * intermediate;
    __half *act = (__half *)args->workspace;
    swiglu epilogue = {act, args->shared_gate, intermediate};
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS) {
        gemm_args_t gemm = {};
        gemm.n_tokens = args->n_tokens;
        gemm.weight = args->gate_up;
        gemm.x = args->u;
        gemm.y = act + n;
        TRY(queue->gemm(queue, &gemm));
        swiglu_f16_kernel<<<blocks_for(n, 256), 256, 0, queue->stream>>>(n, intermediate, act + n, epilogue);
        TRY(queue_check_launch("shared_expert"));
        gemm = {};
        gemm.n_tokens = args->n_tokens;
        gemm.weight = args->down;
        gemm.x = act;
        gemm.y = args->o;
        gemm.accumulate = true;
        return queue->gemm(queue, &gemm);
    }
    queue_stamp(queue);
    gemv_t up = {args->n_tokens, intermediate, args->gate_up.columns, intermediate, (const __half *)args->gate_up.data,
                 args->u};
    launch_gemv<2>(up, epilogue, queue->stream);
    gemv_t down = {args->n_tokens, args->down.rows, intermediate, 0, (const __half *)args->down.data, act};
    launch_gemv<1>(down, add_f16{args->o, args->down.rows}, queue->stream);
    return queue_check_launch("shared_expert");
}
