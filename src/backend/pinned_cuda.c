#include "backend/pinned_cuda.h"

#include <sys/mman.h>

enum { PAGE_BYTES = 4096, N_THREADS = 4 };

cudaError_t pinned_alloc(size_t bytes, void **memory) {
    unsigned char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
    madvise(mapped, bytes, MADV_HUGEPAGE);
    /* The first write to a page makes it, full of zeros. */
#pragma omp parallel for num_threads(N_THREADS) schedule(static)
    for (size_t i = 0; i < bytes; i += PAGE_BYTES)
        ((volatile unsigned char *)mapped)[i] = 0;
    cudaError_t error = cudaHostRegister(mapped, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        munmap(mapped, bytes);
        return error;
    }
    *memory = mapped;
    return cudaSuccess;
}

void pinned_free(void *memory, size_t bytes) {
    cudaHostUnregister(memory);
    munmap(memory, bytes);
}
