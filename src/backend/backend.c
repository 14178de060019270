#include "backend/backend.h"

#include <string.h>

#include "backend/backend_cpu.h"
#ifdef GALVANI_CUDA
#include "backend/backend_cuda.h"
#else
#include "backend/cuda_sizes.h"
#endif

status_t backend_open(const backend_args_t *args, backend_t **backend) {
#ifdef GALVANI_CUDA
    if (args->kind == BACKEND_CUDA || (args->kind == BACKEND_AUTO && backend_cuda_available()))
        return backend_cuda_create(args, backend);
#else
    if (args->kind == BACKEND_CUDA)
        return status_fail(STATUS_DEVICE, "this galvani was built without CUDA; use --backend cpu, or build with nvcc");
#endif
    if (args->all_reduce && (strcmp(args->all_reduce, "push") == 0 || strcmp(args->all_reduce, "nccl") == 0))
        return status_fail(STATUS_USAGE,
                           "--comm %s adds on GPUs; on the CPU sums go over MPI: leave it out, or say mpi",
                           args->all_reduce);
    return backend_cpu_create(args->comm, backend);
}

status_t backend_create(backend_kind_t kind, comm_t *comm, backend_t **backend) {
    return backend_open(&(backend_args_t){.kind = kind, .comm = comm}, backend);
}

void backend_print_version(FILE *stream) {
#ifdef GALVANI_CUDA
    backend_cuda_print_version(stream);
#else
    fputs("CUDA      not built in\n", stream);
#endif
}

const backend_ops_t *backend_sizes(backend_kind_t kind) {
#ifdef GALVANI_CUDA
    if (kind == BACKEND_CUDA || (kind == BACKEND_AUTO && backend_cuda_available())) return backend_cuda_ops();
#else
    if (kind == BACKEND_CUDA) return &cuda_sizes;
#endif
    return backend_cpu_ops();
}
