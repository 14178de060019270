#include "linear/linear_m1.h"

#include "linear/gemv_m1.cuh"
#include "push/push_part.cuh"

namespace {

__device__ __forceinline__ void store(__half *y, float value) { *y = __float2half_rn(value); }
__device__ __forceinline__ void store(float *y, float value) { *y = value; }

/* Grid: rows / form::BLOCK_ROWS. Reads the matrix once: 2 bytes a weight, or 1 + 1/32 (Q8), or 1 (QPN8). Without the
 * least number of blocks the compiler spills registers to have more of them. */
template <typename form, typename out_t>
__global__ void __launch_bounds__(form::THREADS, 1) linear_m1_kernel(stamp_t stamp, gemv_m1_t args, out_t *y) {
    int row;
    float product;
    if (gemv_m1<form>(stamp, args, (int)blockIdx.x * form::BLOCK_ROWS, &row, &product)) store(y + row, product);
}

/* The next kernel starts only behind the wait, as push_part.cuh has it. */
struct read_round {
    static constexpr bool STARTS_EARLY = false;
    const push_args_t &push;
    uint32_t &round;
    __device__ __forceinline__ void operator()() const {
        next_start();
        round = push_part_round(push);
    }
};

/* The same, each result sent to all ranks. */
template <typename form>
__global__ void __launch_bounds__(form::THREADS, 1)
    linear_m1_send_kernel(stamp_t stamp, gemv_m1_t args, const __grid_constant__ push_args_t push) {
    int row;
    float product;
    uint32_t round;
    if (gemv_m1<form>(stamp, args, (int)blockIdx.x * form::BLOCK_ROWS, &row, &product, read_round{push, round}))
        push_part_send(push, round, row, __float2half_rn(product));
}

template <dtype_t DTYPE> void launch_send(const gemv_m1_t &args, const device_queue_t *queue) {
    gemv_m1_with_form<DTYPE>(args.n_words, [&](auto form) {
        typedef decltype(form) form_t;
        launch_kernel(queue, linear_m1_send_kernel<form_t>, blocks_for(args.rows, form_t::BLOCK_ROWS), form_t::THREADS,
                      0, args, *queue->push);
    });
}

template <dtype_t DTYPE, typename out_t> void launch(const gemv_m1_t &args, out_t *y, const device_queue_t *queue) {
    gemv_m1_with_form<DTYPE>(args.n_words, [&](auto form) {
        typedef decltype(form) form_t;
        launch_kernel(queue, linear_m1_kernel<form_t, out_t>, blocks_for(args.rows, form_t::BLOCK_ROWS),
                      form_t::THREADS, 0, args, y);
    });
}

template <typename out_t>
void launch_any(const matrix_t &weight, const void *x, out_t *y, const device_queue_t *queue) {
    gemv_m1_t args = gemv_m1_args(&weight, x);
    if (weight.dtype == DTYPE_F16)
        launch<DTYPE_F16>(args, y, queue);
    else if (weight.dtype == DTYPE_Q8)
        launch<DTYPE_Q8>(args, y, queue);
    else
        launch<DTYPE_QPN8>(args, y, queue);
}

} // namespace

const char *linear_m1_refusal(const linear_args_t *args) { return gemv_m1_refusal(&args->weight, args->x); }

status_t launch_linear_m1(const linear_args_t *args, const device_queue_t *queue) {
    if (args->sends) {
        gemv_m1_t sent = gemv_m1_args(&args->weight, args->x);
        if (args->weight.dtype == DTYPE_F16)
            launch_send<DTYPE_F16>(sent, queue);
        else if (args->weight.dtype == DTYPE_Q8)
            launch_send<DTYPE_Q8>(sent, queue);
        else
            launch_send<DTYPE_QPN8>(sent, queue);
    } else if (args->y_f32)
        launch_any(args->weight, args->x, args->y_f32, queue);
    else
        launch_any(args->weight, args->x, args->y, queue);
    return queue_check_launch("linear");
}
