#ifndef GALVANI_MICROBENCH_MICROBENCH_H
#define GALVANI_MICROBENCH_MICROBENCH_H

/* One operator of the model at a time, through the backend's table, at the shapes that one rank of tp_size has: how far
 * its result is from FP64, and how long it takes beside the bytes that it must move. */

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "microbench/operands.h"
#include "model/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all ops are measured at. */
typedef struct microbench {
    backend_t *backend; /* borrowed, as is config */
    const model_config_t *config;
    local_shape_t local;
    int64_t n_tokens;    /* of one call */
    int64_t pos;         /* tokens of the sequence before them */
    operands_t operands; /* of the op that is measured */
} microbench_t;

/* How one output of an op lies beside the reference. */
typedef struct microbench_error {
    double squares, reference_squares; /* sums of (result - reference)^2 and of reference^2 */
    bool is_wrong;                     /* a result that rounding cannot explain: another id, a NaN */
} microbench_error_t;
void microbench_compare(double result, double reference, microbench_error_t *error);

/* Of an op with several outputs the worst one stands for all. */
void microbench_take_worst(const microbench_error_t *output, microbench_error_t *error);

/* One benchmark. Functions return what went wrong on this rank. */
typedef struct microbench_op {
    const char *name;
    const char *summary;
    size_t args_bytes; /* of the op's args struct */

    /* Whether the model, and this number of ranks, have it; NULL: always. */
    bool (*exists)(const microbench_t *bench);

    /* Makes one copy of its args. */
    status_t (*prepare)(microbench_t *bench, void *args);

    status_t (*run)(backend_t *backend, const void *args);

    /* Compares what one run has left with the op's formula in FP64: everything, or for large shapes a sample. */
    status_t (*reference)(const microbench_t *bench, const void *args, microbench_error_t *error);

    /* What one call must read and write once: weights, state, the visible cache, activations. */
    double (*bytes)(const microbench_t *bench, const void *args);
} microbench_op_t;

/* All of them, in the order of a step. */
extern const microbench_op_t *const microbench_ops[];
extern const int microbench_n_ops;

/* One row of the table. */
enum { MICROBENCH_ROUTES_BYTES = 160 };
typedef struct microbench_row {
    const char *op;
    char routes[MICROBENCH_ROUTES_BYTES]; /* that it took, "a,b"; "" for the general form */
    const char *without;                  /* the route switched off for this row; NULL in an op's first row */
    bool is_wrong;
    double relative_error;
    double us;    /* of one call, the median; on several ranks the slowest one's */
    double bytes; /* that it must move */
    int n_copies; /* of its cold operands that took turns */
} microbench_row_t;

/* Measures one op: as the routes are set, then with each route that it took switched off. `rows` has room for
 * 1 + N_KERNEL_ROUTES. Collective. */
status_t microbench_measure(microbench_t *bench, const microbench_op_t *op, int n_passes, microbench_row_t *rows,
                            int *n_rows);

/* Bytes a second that a copy within the backend's memory moves, read and written ones together: the best of some. */
status_t microbench_bandwidth(backend_t *backend, double *bytes_per_s);

#ifdef __cplusplus
}
#endif
#endif
