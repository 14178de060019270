#ifndef GALVANI_CHECKPOINT_SAFETENSORS_H
#define GALVANI_CHECKPOINT_SAFETENSORS_H

/* The header of a safetensors file: a 64-bit little-endian length, that many bytes of JSON, then the data. Offsets may
 * come in any order and at any alignment, and there may be gaps; nothing may overlap or lie outside the file. */

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SAFETENSORS_MAX_DIMS = 6,
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_MAX_HEADER_BYTES = 100000000 /* the reference library's limit */
};

typedef struct safetensors_tensor {
    const char *name; /* owned by the header */
    dtype_t dtype;    /* DTYPE_N for a type that galvani does not compute with (its length is then unchecked) */
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t offset; /* of the data, from the start of the file */
    uint64_t bytes;
} safetensors_tensor_t;

typedef struct safetensors_header {
    safetensors_tensor_t *tensors; /* by rising offset */
    size_t n_tensors;
    char *names;
    uint64_t file_bytes;
    uint64_t digest; /* XXH3-64 of the JSON */
} safetensors_header_t;

/* Reads the header of the file at `path`. The caller frees it with safetensors_free. STATUS_INPUT names the file, the
 * tensor and the fault. */
status_t safetensors_read(const char *path, safetensors_header_t *header);

/* The same for the JSON text of a file of `file_bytes` bytes. `where` names the file in messages. */
status_t safetensors_parse(const char *text, size_t text_bytes, uint64_t file_bytes, const char *where,
                           safetensors_header_t *header);

void safetensors_free(safetensors_header_t *header);

#ifdef __cplusplus
}
#endif
#endif
