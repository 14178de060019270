#include "microbench/operands.h"

#include <math.h>
#include <string.h>

#include "fill/fill_value.h"

struct operand {
    void *data;
    size_t bytes;
    dtype_t dtype;
    fill_rule_t rule;
    void *host; /* what was uploaded; NULL: made by the rule */
    operand_life_t life;
    bool is_adopted; /* as `matrix`, and never written again */
    matrix_t matrix;
};

void operands_free(operands_t *operands) {
    for (size_t i = 0; i < operands->n; i++) {
        operands->backend->ops->free(operands->backend, operands->list[i].data);
        memory_free(operands->list[i].host);
    }
    memory_free(operands->list);
    operands->list = NULL;
    operands->n = operands->capacity = 0;
    if (operands->dense_scratch) operands->backend->ops->set_dense8_scratch(operands->backend, NULL);
    operands->dense_scratch = NULL;
}

void operands_begin_copy(operands_t *operands, int copy) {
    operands->copy = copy;
    operands->next_warm = 0;
    operands->label = MEMORY_OTHER;
}

static fill_args_t fill_of(const operand_t *operand) {
    int64_t n = (int64_t)(operand->bytes / dtype_bytes(operand->dtype));
    return (fill_args_t){.rule = operand->rule,
                         .dtype = operand->dtype,
                         .n_groups = 1,
                         .group_rows = 1,
                         .whole_group_rows = 1,
                         .n_runs = 1,
                         .runs = {{.n_rows = 1}},
                         .n_columns = n,
                         .whole_columns = n,
                         .data = operand->data};
}

static status_t set_values(const operands_t *operands, const operand_t *operand) {
    backend_t *backend = operands->backend;
    if (operand->host) return backend->ops->upload(backend, operand->data, operand->host, operand->bytes);
    fill_args_t fill = fill_of(operand);
    return backend->ops->fill(backend, &fill);
}

status_t operands_reset(operands_t *operands) {
    for (size_t i = 0; i < operands->n; i++) {
        if (!operands->list[i].is_adopted) TRY(set_values(operands, &operands->list[i]));
    }
    return operands->backend->ops->synchronize(operands->backend);
}

/* A shared operand of the first copy, in the order in which they were made; NULL where a new one is due. */
static operand_t *next_shared(operands_t *operands, operand_life_t life) {
    if (life == OPERAND_COLD || operands->copy == 0) return NULL;
    while (operands->list[operands->next_warm].life != OPERAND_WARM)
        operands->next_warm++;
    return &operands->list[operands->next_warm++];
}

static operand_t *find(const operands_t *operands, const void *data) {
    size_t i = 0;
    while (operands->list[i].data != data)
        i++;
    return &operands->list[i];
}

static status_t grow(operands_t *operands) {
    if (operands->n < operands->capacity) return STATUS_OK;
    size_t capacity = operands->capacity ? 2 * operands->capacity : 64;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, capacity, sizeof(operand_t), &memory));
    if (operands->n) memcpy(memory, operands->list, operands->n * sizeof(operand_t));
    memory_free(operands->list);
    operands->list = memory;
    operands->capacity = capacity;
    return STATUS_OK;
}

/* Takes over operand->host, also after a failure. */
static status_t add(operands_t *operands, operand_t operand, void **data) {
    backend_t *backend = operands->backend;
    const operand_t *shared = next_shared(operands, operand.life);
    if (shared) {
        memory_free(operand.host);
        *data = shared->data;
        return STATUS_OK;
    }
    operands->n_made++;
    if (!operand.rule.key) operand.rule.key = fill_block(1, operands->n_made);
    status_t status = grow(operands);
    if (status == STATUS_OK) status = backend->ops->alloc(backend, operands->label, operand.bytes, &operand.data);
    if (status != STATUS_OK) {
        memory_free(operand.host);
        return status;
    }
    operands->list[operands->n++] = operand;
    *data = operand.data;
    return set_values(operands, &operand);
}

/* Bytes that are NaN in every type. */
static operand_t poison(size_t bytes, operand_life_t life) {
    return (operand_t){.bytes = bytes, .dtype = DTYPE_U8, .life = life, .rule = {.offset = 0xFF}};
}

static operand_t from_values(const operand_values_t *values) {
    double unit = values->reach / 32768.0;
    return (operand_t){.bytes = (size_t)values->n * dtype_bytes(values->dtype),
                       .dtype = values->dtype,
                       .life = values->life,
                       .rule = {.key = values->key,
                                .mask = 0xFFFF,
                                .offset = (int32_t)lrint(values->middle / unit) - 32768,
                                .unit = (float)unit}};
}

status_t operands_values(operands_t *operands, const operand_values_t *values, void **data) {
    return add(operands, from_values(values), data);
}

status_t operands_floats(operands_t *operands, operand_life_t life, int64_t n, double reach, float **data) {
    void *made;
    TRY(operands_values(
        operands, &(operand_values_t){.life = life, .dtype = DTYPE_F32, .n = n, .middle = 0, .reach = reach}, &made));
    *data = made;
    return STATUS_OK;
}

dtype_t operands_activation_dtype(const operands_t *operands) {
    return operands->backend->ops->activation_bytes == dtype_bytes(DTYPE_F16) ? DTYPE_F16 : DTYPE_F32;
}

status_t operands_activations(operands_t *operands, operand_life_t life, int64_t n, double reach, activation_t **data) {
    void *made;
    const operand_values_t values = {
        .life = life, .dtype = operands_activation_dtype(operands), .n = n, .reach = reach};
    TRY(operands_values(operands, &values, &made));
    *data = made;
    return STATUS_OK;
}

status_t operands_matrix(operands_t *operands, operand_life_t life, int64_t rows, int64_t columns, matrix_t *matrix) {
    backend_t *backend = operands->backend;
    /* An even spread over +-r has standard deviation r / sqrt(3). */
    const operand_values_t values = {
        .dtype = DTYPE_BF16, .n = rows * columns, .reach = sqrt(3.0 / (double)columns), .life = life};
    void *data;
    TRY(operands_values(operands, &values, &data));
    operand_t *operand = find(operands, data);
    if (!operand->is_adopted) {
        operand->matrix = (matrix_t){.data = data, .dtype = DTYPE_BF16, .rows = rows, .columns = columns};
        operand->is_adopted = true;
        TRY(backend->ops->adopt_matrix(backend, &operand->matrix));
        operand->data = (void *)(uintptr_t)operand->matrix.data;
    }
    *matrix = operand->matrix;
    return STATUS_OK;
}

/* Room for the largest of them in FP16; no copy's own, so apart from what they share. */
static status_t reserve_scratch(operands_t *operands, size_t bytes) {
    backend_t *backend = operands->backend;
    if (operands->dense_scratch && find(operands, operands->dense_scratch)->bytes >= bytes) return STATUS_OK;
    TRY(add(operands, poison(bytes, OPERAND_COLD), &operands->dense_scratch));
    backend->ops->set_dense8_scratch(backend, operands->dense_scratch);
    return STATUS_OK;
}

status_t operands_dense(operands_t *operands, int64_t rows, int64_t columns, matrix_t *matrix) {
    backend_t *backend = operands->backend;
    matrix_t f16;
    TRY(operands_matrix(operands, OPERAND_COLD, rows, columns, &f16));
    *matrix = f16;
    if (!dense8_is_format(operands->dense)) return STATUS_OK;
    operand_t operand = *find(operands, f16.data);
    void *data;
    TRY(backend->ops->alloc(backend, operands->label, dense8_bytes(operands->dense, rows, columns), &data));
    TRY(grow(operands));
    operand.data = data;
    operands->list[operands->n++] = operand;
    const dense8_args_t args = {.source = f16, .target = dense8_matrix(operands->dense, rows, columns, data)};
    TRY(backend->ops->dense8_quantize(backend, &args));
    TRY(reserve_scratch(operands, operand.bytes));
    *matrix = args.target;
    return STATUS_OK;
}

status_t operands_bytes(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, uint32_t mask,
                        int32_t offset, void **data) {
    operand_t operand = {.bytes = (size_t)n, .dtype = dtype, .life = life, .rule = {.mask = mask, .offset = offset}};
    return add(operands, operand, data);
}

status_t operands_upload(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, const void *host,
                         void **data) {
    operand_t operand = {.bytes = (size_t)n * dtype_bytes(dtype), .dtype = dtype, .life = life};
    TRY(memory_alloc(MEMORY_OTHER, operand.bytes, 1, &operand.host));
    memcpy(operand.host, host, operand.bytes);
    return add(operands, operand, data);
}

status_t operands_ids(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, int64_t limit, void **data) {
    operand_t operand = {.bytes = (size_t)n * dtype_bytes(dtype), .dtype = dtype, .life = life};
    TRY(memory_alloc(MEMORY_OTHER, operand.bytes, 1, &operand.host));
    for (int64_t i = 0; i < n; i++) {
        int64_t id = (int64_t)(fill_block(operands->n_made + 2, (uint64_t)i) % (uint64_t)limit);
        if (dtype == DTYPE_I32)
            ((int32_t *)operand.host)[i] = (int32_t)id;
        else
            ((int64_t *)operand.host)[i] = id;
    }
    return add(operands, operand, data);
}

status_t operands_choices(operands_t *operands, int64_t n_tokens, int64_t n_experts, int64_t n_chosen, void **data) {
    int64_t n = n_tokens * n_chosen;
    operand_t operand = {.bytes = (size_t)n * sizeof(int32_t), .dtype = DTYPE_I32, .life = OPERAND_COLD};
    TRY(memory_alloc(MEMORY_OTHER, operand.bytes, 1, &operand.host));
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)operand.host)[i] = (int32_t)((operands->copy * n + i) % n_experts);
    return add(operands, operand, data);
}

status_t operands_output(operands_t *operands, size_t bytes, void **data) {
    return add(operands, poison(bytes, OPERAND_WARM), data);
}

const operand_t *operands_find(const operands_t *operands, const void *data) { return find(operands, data); }

static double widened(dtype_t dtype, const void *items, int64_t index) {
    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)items)[index];
    case DTYPE_F16:
        return f16_to_float(((const uint16_t *)items)[index]);
    case DTYPE_BF16:
        return bf16_to_float(((const uint16_t *)items)[index]);
    case DTYPE_F8_E4M3:
        return e4m3_values[((const uint8_t *)items)[index]];
    case DTYPE_I32:
        return ((const int32_t *)items)[index];
    case DTYPE_I64:
        return (double)((const int64_t *)items)[index];
    default:
        return ((const uint8_t *)items)[index];
    }
}

const void *operand_host(const operand_t *operand) { return operand->host; }

double operand_value(const operand_t *operand, int64_t index) {
    if (operand->host) return widened(operand->dtype, operand->host, index);
    if (dtype_bytes(operand->dtype) == 1) {
        uint64_t word = fill_block(operand->rule.key, (uint64_t)index / FILL_BLOCK_BYTES);
        uint8_t item = fill_byte(&operand->rule, word, (int)(index % FILL_BLOCK_BYTES));
        return operand->dtype == DTYPE_F8_E4M3 ? (double)e4m3_values[item] : item;
    }
    uint64_t word = fill_block(operand->rule.key, (uint64_t)index / FILL_BLOCK_NUMBERS);
    float value = fill_number(&operand->rule, word, (int)(index % FILL_BLOCK_NUMBERS));
    if (operand->dtype == DTYPE_BF16) return bf16_to_float(bf16_from_float(value));
    return operand->dtype == DTYPE_F16 ? f16_to_float(f16_from_float(value)) : value;
}

double operands_value_of(const operand_values_t *values, int64_t index) {
    const operand_t operand = from_values(values);
    return operand_value(&operand, index);
}

static status_t doubles(int64_t n, double **values) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)n, sizeof(double), &memory));
    *values = memory;
    return STATUS_OK;
}

status_t operands_read(const operands_t *operands, const void *data, int64_t n, double **values) {
    const operand_t *operand = operands_find(operands, data);
    double *read;
    TRY(doubles(n, &read));
#pragma omp parallel for if (n >= 65536)
    for (int64_t i = 0; i < n; i++)
        read[i] = operand_value(operand, i);
    *values = read;
    return STATUS_OK;
}

status_t operands_download(const operands_t *operands, const void *data, dtype_t dtype, int64_t n, double **values) {
    backend_t *backend = operands->backend;
    size_t bytes = (size_t)n * dtype_bytes(dtype);
    void *items;
    double *read = NULL;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &items));
    status_t status = backend->ops->download(backend, items, data, bytes);
    if (status == STATUS_OK) status = doubles(n, &read);
    for (int64_t i = 0; status == STATUS_OK && i < n; i++)
        read[i] = widened(dtype, items, i);
    memory_free(items);
    if (status == STATUS_OK) *values = read;
    return status;
}
