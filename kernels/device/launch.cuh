#ifndef GALVANI_KERNELS_DEVICE_LAUNCH_CUH
#define GALVANI_KERNELS_DEVICE_LAUNCH_CUH

/* Programmatic dependent launch: the blocks of a kernel may start while those of the kernel before still run, so that
 * the launch itself and what needs nothing of that kernel (weights) are out of the way when it ends.
 *
 * A kernel started by launch_kernel must have every thread call previous_wait before it touches memory that an earlier
 * kernel of the step wrote or reads. previous_wait returns when the kernel before is complete and its writes are
 * visible; as that kernel waited for the one before it in the same way, all earlier ones are complete too. What an
 * earlier step left (states, caches) may be read before: a step opens with a copy to the device or the launch of a
 * recording, and both wait for all before them. Such early loads must be plain ones: the compiler may move __ldg, and
 * loads through const __restrict__ pointers, behind the wait, where they hide nothing. */

#include "device/route.h"

static __device__ __forceinline__ void previous_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* previous_wait for a kernel whose first parameter is a stamp: makes those that are due, at the end of all work before.
 * So a step is traced without a launch more. */
static __device__ __forceinline__ void previous_wait(stamp_t stamp) {
    previous_wait();
    if (stamp.n == 0) return; /* first, as all that follows is in the way of a step that is not traced */
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z != 0) return;
#pragma unroll 1
    for (int i = 0; i < stamp.n; i++)
        asm volatile("{ .reg .u64 ns; mov.u64 ns, %globaltimer; st.global.u64 [%0], ns; }" ::"l"(stamp.slots + i)
                     : "memory");
}

/* The next kernel's blocks may start where this one leaves room, once every block has called this or ended. */
static __device__ __forceinline__ void next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Launches in the queue's stream; queue_check_launch tells whether it was taken. `args` are converted to the kernel's
 * parameters. */
template <typename... parameters_t, typename... args_t>
static void launch_dependent(const device_queue_t *queue, void (*kernel)(parameters_t...), dim3 grid, dim3 block,
                             size_t shared_bytes, const args_t &...args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = queue->stream;
    config.attrs = &attribute;
    config.numAttrs = route_take(queue, ROUTE_PDL, queue->pdl_refusal) ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, parameters_t(args)...);
}

template <typename... parameters_t, typename... args_t>
static void launch_kernel(const device_queue_t *queue, void (*kernel)(parameters_t...), dim3 grid, dim3 block,
                          size_t shared_bytes, const args_t &...args) {
    queue_stamp(queue);
    launch_dependent(queue, kernel, grid, block, shared_bytes, args...);
}

/* A kernel that takes a stamp makes those that are due. */
template <typename... parameters_t, typename... args_t>
static void launch_kernel(const device_queue_t *queue, void (*kernel)(stamp_t, parameters_t...), dim3 grid, dim3 block,
                          size_t shared_bytes, const args_t &...args) {
    stamp_t stamp = *queue->due;
    queue->due->n = 0;
    launch_dependent(queue, kernel, grid, block, shared_bytes, stamp, args...);
}

#endif
