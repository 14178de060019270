#ifndef GALVANI_MICROBENCH_OPERANDS_H
#define GALVANI_MICROBENCH_OPERANDS_H

/* What an op is measured on: made-up inputs in backend memory whose values the reference knows as well, and outputs
 * that are poisoned before a run. Each value follows from its operand's rule (kernels/fill) and its place, so nothing
 * is copied back to know it. */

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cold: every copy of the op's args has its own, as weights, states and caches of different layers are. Warm: all
 * copies share it, as the activations that the op before has just written. */
typedef enum operand_life { OPERAND_COLD, OPERAND_WARM } operand_life_t;

typedef struct operand operand_t;

typedef struct operands {
    backend_t *backend; /* borrowed */
    operand_t *list;    /* [n] */
    size_t n, capacity;
    int copy;             /* the one that is being prepared; shared operands are made for the first one */
    size_t next_warm;     /* where the search for the next of them begins */
    uint64_t n_made;      /* distinguishes their values */
    dtype_t dense;        /* of projections that may be kept in 8 bits: DTYPE_Q8, DTYPE_QPN8, else as FP16 */
    void *dense_scratch;  /* what the backend was given for them */
    memory_label_t label; /* of what is made next */
} operands_t;

/* Empties the list and frees all. The list of a new operands_t is zero but for `backend`. */
void operands_free(operands_t *operands);

/* What is made from here on belongs to this copy of the op's args. */
void operands_begin_copy(operands_t *operands, int copy);

/* Gives inputs that ops change their first values again and fills outputs with bytes that are NaN in every type. */
status_t operands_reset(operands_t *operands);

/* n values spread evenly over middle +- reach. */
typedef struct operand_values {
    operand_life_t life;
    dtype_t dtype; /* F32, F16, BF16 */
    int64_t n;
    double middle, reach;
    uint64_t key; /* 0: values of its own */
} operand_values_t;
status_t operands_values(operands_t *operands, const operand_values_t *values, void **data);

/* The same around 0: FP32, and the backend's activations. */
status_t operands_floats(operands_t *operands, operand_life_t life, int64_t n, double reach, float **data);
status_t operands_activations(operands_t *operands, operand_life_t life, int64_t n, double reach, activation_t **data);

/* Weights such that y = W x is about as large as x, in the form that the backend's ops take. The reference knows
 * them as they were stored, in BF16. */
status_t operands_matrix(operands_t *operands, operand_life_t life, int64_t rows, int64_t columns, matrix_t *matrix);

/* A cold one in the form `dense`. The reference still knows BF16, so what the form costs shows. */
status_t operands_dense(operands_t *operands, int64_t rows, int64_t columns, matrix_t *matrix);

/* Bytes (random & mask) + offset. */
status_t operands_bytes(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, uint32_t mask,
                        int32_t offset, void **data);

/* n ids, I32 or I64, each in [0, limit). */
status_t operands_ids(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, int64_t limit, void **data);

/* For each of n_tokens n_chosen experts of n_experts, other ones in the next copy. */
status_t operands_choices(operands_t *operands, int64_t n_tokens, int64_t n_experts, int64_t n_chosen, void **data);

/* n items of host memory, which is copied. */
status_t operands_upload(operands_t *operands, operand_life_t life, dtype_t dtype, int64_t n, const void *host,
                         void **data);

/* Shared memory that only the op writes; also its scratch. */
status_t operands_output(operands_t *operands, size_t bytes, void **data);

/* The operand behind a pointer that an op was given, and its values. */
const operand_t *operands_find(const operands_t *operands, const void *data);
double operand_value(const operand_t *operand, int64_t index);
const void *operand_host(const operand_t *operand); /* what was uploaded */

/* Value `index` of an operand that has been, or could be, made. */
double operands_value_of(const operand_values_t *values, int64_t index);

/* Its first n values; the caller frees them with memory_free. */
status_t operands_read(const operands_t *operands, const void *data, int64_t n, double **values);

/* What an op has left in an output, in FP32, FP16 (the activations of CUDA), I32 or I64; freed likewise. */
status_t operands_download(const operands_t *operands, const void *data, dtype_t dtype, int64_t n, double **values);
dtype_t operands_activation_dtype(const operands_t *operands);

#ifdef __cplusplus
}
#endif
#endif
