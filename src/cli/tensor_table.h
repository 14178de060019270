#ifndef GALVANI_CLI_TENSOR_TABLE_H
#define GALVANI_CLI_TENSOR_TABLE_H

/* Many tensors in few lines: names that differ in numbers alone (layer, expert) share a line. */

#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tensor_table tensor_table_t;

status_t tensor_table_create(tensor_table_t **table);
void tensor_table_destroy(tensor_table_t *table); /* NULL is allowed */

/* `shape` [n_dims] is of this tensor; a line whose tensors differ shows that of the first. */
void tensor_table_add(tensor_table_t *table, const char *name, dtype_t dtype, int n_dims, const int64_t *shape,
                      uint64_t bytes);

/* Prints the lines in the order in which they came up, with a total, to stdout. */
void tensor_table_print(const tensor_table_t *table);

enum { BYTES_TEXT_BYTES = 24 };

/* "1.50 GiB" */
const char *bytes_text(uint64_t bytes, char text[BYTES_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
