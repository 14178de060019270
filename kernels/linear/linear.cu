#include "device/route.h"
#include "linear/dense8.h"
#include "linear/gemv.cuh"
#include "linear/linear.h"
#include "linear/linear_m1.h"

namespace {

struct store_f16 {
    __half *y;
    int64_t rows;
    __device__ void operator()(int64_t token, int64_t row, const float *sum) const {
        y[token * rows + row] = __float2half_rn(sum[0]);
    }
};

struct store_f32 {
    float *y;
    int64_t rows;
    __device__ void operator()(int64_t token, int64_t row, const float *sum) const { y[token * rows + row] = sum[0]; }
};

} // namespace

status_t launch_linear(const linear_args_t *args, const device_queue_t *queue) {
    if (args->n_tokens == 1 && route_take(queue, ROUTE_GEMV_M1, linear_m1_refusal(args)))
        return launch_linear_m1(args, queue);
    if (args->n_tokens > LINEAR_MAX_GEMV_TOKENS || dense8_is_format(args->weight.dtype)) {
        gemm_args_t gemm = {};
        gemm.n_tokens = args->n_tokens;
        gemm.weight = args->weight;
        gemm.x = args->x;
        gemm.y = args->y_f32 ? (void *)args->y_f32 : (void *)args->y;
        gemm.y_is_f32 = args->y_f32 != NULL;
        return queue->gemm(queue, &gemm);
    }
    int64_t rows = args->weight.rows;
    gemv_t gemv = {args->n_tokens, rows, args->weight.columns, 0, (const __half *)args->weight.data, args->x};
    queue_stamp(queue);
    if (args->y_f32)
        launch_gemv<1>(gemv, store_f32{args->y_f32, rows}, queue->stream);
    else
        launch_gemv<1>(gemv, store_f16{args->y, rows}, queue->stream);
    return queue_check_launch("linear");
}
