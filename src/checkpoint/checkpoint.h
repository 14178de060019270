#ifndef GALVANI_CHECKPOINT_CHECKPOINT_H
#define GALVANI_CHECKPOINT_CHECKPOINT_H

/* A Hugging Face checkpoint: a directory with model.safetensors.index.json and its files, or with one
 * model.safetensors. Names, types and places are held in memory; data is read in pieces with pread. */

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "checkpoint/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct checkpoint checkpoint_t;

typedef struct checkpoint_file {
    char *name;           /* within the directory */
    uint64_t bytes;       /* length of the file */
    int64_t modified_ns;  /* time of its last change */
    uint64_t header_xxh3; /* digest of its header */
    size_t n_tensors;
} checkpoint_file_t;

typedef struct checkpoint_tensor {
    const safetensors_tensor_t *info;
    size_t file; /* index into checkpoint_files */
} checkpoint_tensor_t;

/* Reads the index and every header. STATUS_INPUT if a file is missing or damaged, if the index and the files disagree,
 * or if a tensor is there twice; the message names file and tensor. */
status_t checkpoint_open(const char *directory, checkpoint_t **checkpoint);
void checkpoint_close(checkpoint_t *checkpoint); /* NULL is allowed */

const char *checkpoint_directory(const checkpoint_t *checkpoint);

/* Files in string order of their names. */
const checkpoint_file_t *checkpoint_files(const checkpoint_t *checkpoint, size_t *n_files);

/* Tensors in string order of their names. */
const checkpoint_tensor_t *checkpoint_tensors(const checkpoint_t *checkpoint, size_t *n_tensors);

/* The tensor of that exact name, or NULL. */
const checkpoint_tensor_t *checkpoint_find(const checkpoint_t *checkpoint, const char *name);

/* Reads `bytes` bytes of a tensor's data from `offset` on; they must lie inside it. Thread-safe; keeps a
 * limited number of files open. */
status_t checkpoint_read(checkpoint_t *checkpoint, const checkpoint_tensor_t *tensor, uint64_t offset, size_t bytes,
                         void *data);

/* The weight map, {tensor name: file name}, of a parsed index file. STATUS_INPUT unless it is a non-empty object of
 * file names without a directory part. `*weight_map` belongs to `root`. */
status_t checkpoint_weight_map(const json_t *root, const char *where, const json_t **weight_map);

#ifdef __cplusplus
}
#endif
#endif
