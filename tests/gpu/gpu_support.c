#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <time.h>

#include "gpu_support.h"

static uint64_t random_state;

static uint64_t random_word(void) {
    if (!random_state) {
        random_state = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u | 1;
        printf("random state %llx\n", (unsigned long long)random_state);
    }
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

uint64_t random_below(uint64_t limit) { return (random_word() >> 11) % limit; }

void run(status_t status) {
    if (status != STATUS_OK) fail_msg("%s", status_message());
}

void *host_bytes(size_t bytes) {
    void *memory;
    run(memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    return memory;
}

static comm_t *comm;

void device_open(device_t *device) {
    memset(device, 0, sizeof *device);
    if (!comm) run(comm_init(&comm));
    run(backend_create(BACKEND_CUDA, comm, &device->cuda));
    run(backend_create(BACKEND_CPU, comm, &device->cpu));
}

void device_release(device_t *device) {
    for (int i = 0; i < device->n_pointers; i++)
        device->cuda->ops->free(device->cuda, device->pointers[i]);
    device->n_pointers = 0;
}

float *host_floats(int64_t n) { return host_bytes((size_t)n * sizeof(float)); }

float *random_floats(int64_t n, float scale) {
    float *values = host_floats(n);
    for (int64_t i = 0; i < n; i++) {
        double u = ((double)random_below(1u << 30) + 1.0) / (1u << 30), v = (double)random_below(1u << 30) / (1u << 30);
        values[i] = f16_to_float(f16_from_float(scale * (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v))));
    }
    return values;
}

static uint16_t *halves_of(const float *values, int64_t n) {
    uint16_t *halves = host_bytes((size_t)n * sizeof *halves);
    for (int64_t i = 0; i < n; i++)
        halves[i] = f16_from_float(values[i]);
    return halves;
}

matrix_t random_matrix(int64_t rows, int64_t columns) {
    float *values = random_floats(rows * columns, 1.0f / sqrtf((float)columns));
    matrix_t matrix = {.data = halves_of(values, rows * columns), .dtype = DTYPE_F16, .rows = rows, .columns = columns};
    memory_free(values);
    return matrix;
}

static void *allocate(device_t *device, size_t bytes) {
    void *pointer;
    assert_true(device->n_pointers < (int)(sizeof device->pointers / sizeof device->pointers[0]));
    run(device->cuda->ops->alloc(device->cuda, MEMORY_OTHER, bytes, &pointer));
    device->pointers[device->n_pointers++] = pointer;
    return pointer;
}

void *upload_bytes(device_t *device, const void *host, size_t bytes) {
    void *pointer = allocate(device, bytes);
    run(device->cuda->ops->upload(device->cuda, pointer, host, bytes));
    return pointer;
}

float *upload_floats(device_t *device, const float *host, int64_t n) {
    return upload_bytes(device, host, (size_t)n * sizeof *host);
}

activation_t *upload_halves(device_t *device, const float *host, int64_t n) {
    uint16_t *halves = halves_of(host, n);
    void *pointer = upload_bytes(device, halves, (size_t)n * sizeof *halves);
    memory_free(halves);
    return pointer;
}

matrix_t upload_matrix(device_t *device, matrix_t matrix) {
    size_t bytes = (size_t)(matrix.rows * matrix.columns) * dtype_bytes(matrix.dtype);
    matrix.data = upload_bytes(device, matrix.data, bytes);
    return matrix;
}

static uint8_t *random_bytes(size_t n, uint64_t limit) {
    uint8_t *bytes = host_bytes(n);
    uint64_t state = random_below(1u << 30) * 2 + 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)((state >> 40) % limit);
    }
    return bytes;
}

void random_experts(device_t *device, int64_t n_experts, int64_t hidden_size, int64_t intermediate,
                    expert_weights_t *host, expert_weights_t *on) {
    size_t down = (size_t)(n_experts * intermediate * hidden_size), gate_up = 2 * down;
    *host = (expert_weights_t){.gate_up_codes = random_bytes(gate_up / 2, 256),
                               .gate_up_scales = random_bytes(gate_up / 16, 0x7F),
                               .gate_up_scale_2 = random_floats(2 * n_experts, 1e-3f),
                               .down_codes = random_bytes(down / 2, 256),
                               .down_scales = random_bytes(down / 16, 0x7F),
                               .down_scale_2 = random_floats(n_experts, 1e-3f)};
    *on = (expert_weights_t){.gate_up_codes = upload_bytes(device, host->gate_up_codes, gate_up / 2),
                             .gate_up_scales = upload_bytes(device, host->gate_up_scales, gate_up / 16),
                             .gate_up_scale_2 = upload_floats(device, host->gate_up_scale_2, 2 * n_experts),
                             .down_codes = upload_bytes(device, host->down_codes, down / 2),
                             .down_scales = upload_bytes(device, host->down_scales, down / 16),
                             .down_scale_2 = upload_floats(device, host->down_scale_2, n_experts)};
}

void experts_free(const expert_weights_t *host) {
    const void *const members[] = {host->gate_up_codes, host->gate_up_scales, host->gate_up_scale_2,
                                   host->down_codes,    host->down_scales,    host->down_scale_2};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        memory_free((void *)(uintptr_t)members[i]);
}

void *poisoned(device_t *device, size_t bytes) {
    void *memory = host_bytes(bytes);
    memset(memory, 0xFF, bytes);
    void *pointer = upload_bytes(device, memory, bytes);
    memory_free(memory);
    return pointer;
}

static void check(const char *what, const float *got, const float *want, int64_t n, double limit) {
    double error = 0.0, norm = 0.0, worst = -1.0;
    int64_t worst_at = 0;
    for (int64_t i = 0; i < n; i++) {
        double difference = (double)got[i] - (double)want[i];
        if (isnan(difference) && !isnan(want[i]))
            fail_msg("%s: value %lld is NaN, not %g", what, (long long)i, (double)want[i]);
        if (isnan(difference)) continue;
        error += difference * difference;
        norm += (double)want[i] * (double)want[i];
        if (fabs(difference) > worst) {
            worst = fabs(difference);
            worst_at = i;
        }
    }
    double relative = sqrt(error) / (sqrt(norm) + 1e-30);
    printf("    %-40s %9lld values, relative error %.2e, worst %.3g at %lld\n", what, (long long)n, relative, worst,
           (long long)worst_at);
    if (relative > limit)
        fail_msg("%s: relative error %g > %g; worst at %lld: %g, not %g", what, relative, limit, (long long)worst_at,
                 (double)got[worst_at], (double)want[worst_at]);
}

void check_floats(device_t *device, const char *what, const float *got, const float *want, int64_t n, double limit) {
    float *values = host_floats(n);
    run(device->cuda->ops->download(device->cuda, values, got, (size_t)n * sizeof *values));
    check(what, values, want, n, limit);
    memory_free(values);
}

void check_halves(device_t *device, const char *what, const activation_t *got, const float *want, int64_t n,
                  double limit) {
    float *values = host_floats(n);
    uint16_t *halves = host_bytes((size_t)n * sizeof *halves);
    run(device->cuda->ops->download(device->cuda, halves, got, (size_t)n * sizeof *halves));
    for (int64_t i = 0; i < n; i++)
        values[i] = f16_to_float(halves[i]);
    check(what, values, want, n, limit);
    memory_free(halves);
    memory_free(values);
}

void check_bytes(device_t *device, const char *what, const void *got, const void *want, size_t bytes) {
    unsigned char *memory = host_bytes(bytes);
    run(device->cuda->ops->download(device->cuda, memory, got, bytes));
    for (size_t i = 0; i < bytes; i++) {
        if (memory[i] != ((const unsigned char *)want)[i]) fail_msg("%s: byte %zu of %zu differs", what, i, bytes);
    }
    memory_free(memory);
}
