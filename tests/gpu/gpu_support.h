#ifndef GALVANI_TESTS_GPU_SUPPORT_H
#define GALVANI_TESTS_GPU_SUPPORT_H

/* Random data and copies between the CPU reference's FP32 and the device's FP16, for the tests of CUDA ops. */

#include "backend/backend.h"

/* One test's device allocations, freed together. Any failure fails the cmocka test that runs. */
typedef struct device {
    backend_t *cuda, *cpu;
    void *pointers[64];
    int n_pointers;
} device_t;

/* A call that must give STATUS_OK. */
void run(status_t status);

void device_open(device_t *device);
void device_release(device_t *device); /* the allocations */

/* Host memory, zeroed, that device_release does not know; freed with memory_free. */
void *host_bytes(size_t bytes);
float *host_floats(int64_t n);

/* n normally distributed values times scale, each one that FP16 holds exactly. */
float *random_floats(int64_t n, float scale);
uint64_t random_below(uint64_t limit);

/* A weight matrix of FP16 values in host memory. */
matrix_t random_matrix(int64_t rows, int64_t columns);

void *upload_bytes(device_t *device, const void *host, size_t bytes);
float *upload_floats(device_t *device, const float *host, int64_t n);
activation_t *upload_halves(device_t *device, const float *host, int64_t n);
matrix_t upload_matrix(device_t *device, matrix_t matrix);

/* NVFP4 weights of n_experts, with every code and every positive scale, in host memory and on the device. */
void random_experts(device_t *device, int64_t n_experts, int64_t hidden_size, int64_t intermediate,
                    expert_weights_t *host, expert_weights_t *on);
void experts_free(const expert_weights_t *host);

/* Device memory filled with a pattern that is NaN in FP16 and in FP32. */
void *poisoned(device_t *device, size_t bytes);

/* Fails if ||got - want|| > limit * ||want||, naming the value that is furthest off, or if a value is NaN. */
void check_halves(device_t *device, const char *what, const activation_t *got, const float *want, int64_t n,
                  double limit);
void check_floats(device_t *device, const char *what, const float *got, const float *want, int64_t n, double limit);
void check_bytes(device_t *device, const char *what, const void *got, const void *want, size_t bytes);

#endif
