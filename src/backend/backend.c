#include "backend/backend.h"

#include "backend/backend_cpu.h"

status_t backend_create(backend_kind_t kind, comm_t *comm, backend_t **backend) {
    if (kind == BACKEND_CUDA)
        return status_fail(STATUS_DEVICE, "this galvani was built without CUDA; use --backend cpu, or build with nvcc");
    return backend_cpu_create(comm, backend);
}
