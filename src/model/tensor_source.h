#ifndef GALVANI_MODEL_TENSOR_SOURCE_H
#define GALVANI_MODEL_TENSOR_SOURCE_H

/* Where a rank's tensors come from: its shard file, or a synthetic model's rules (model/synthetic.h). Not collective.
 */

#include "backend/backend.h"
#include "shard/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TENSOR_SOURCE_SYNTHETIC "synthetic:"

typedef struct tensor_source tensor_source_t;

typedef struct tensor_source_args {
    const char *model; /* a directory of shards, or synthetic:NAME */
    int tp_rank, tp_size;
    uint64_t seed; /* of a synthetic model */
} tensor_source_args_t;

/* Opens and checks, as shard_reader_open does. STATUS_USAGE for a synthetic model that is not there or that tp_size
 * does not divide. */
status_t tensor_source_open(const tensor_source_args_t *args, tensor_source_t **source);
void tensor_source_close(tensor_source_t *source); /* NULL is allowed */

/* A synthetic model has NVFP4 experts, an F8_E4M3 PLE table, its seed as the source, and a digest that two seeds do
 * not share. */
const shard_info_t *tensor_source_info(const tensor_source_t *source);

/* The tensors of this rank in schema order. */
const schema_tensor_t *tensor_source_tensors(const tensor_source_t *source, size_t *n_tensors);

/* Puts the whole of tensor `index` into host memory. */
status_t tensor_source_read(tensor_source_t *source, size_t index, void *host);

/* Brings the whole of tensor `index` into backend memory, read by several threads or made there. The copy may be
 * pending when this returns; ops that follow see it. */
status_t tensor_source_load(tensor_source_t *source, size_t index, backend_t *backend, void *destination);

#ifdef __cplusplus
}
#endif
#endif
