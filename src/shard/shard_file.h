#ifndef GALVANI_SHARD_SHARD_FILE_H
#define GALVANI_SHARD_SHARD_FILE_H

/* What the writer and the reader of shard files share. */

#include <hdf5.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHARD_FORMAT "galvani-shard"

enum { SHARD_FORMAT_VERSION = 1, SHARD_ALIGNMENT = 4096, SHARD_PATH_BYTES = 4096 };

/* DIRECTORY/model.rank<r>of<T>.h5 */
status_t shard_file_path(const char *directory, int tp_rank, int tp_size, char path[SHARD_PATH_BYTES]);

/* "none", "nvfp4", "fp8_e4m3" or "f16": how the values of that dataset are coded. */
const char *shard_file_quantization(const schema_tensor_t *tensor);

/* Type of a dataset's items in the file: BF16 as uint16 and F8_E4M3 as uint8 (HDF5 has neither), F16 as an IEEE half.
 * The caller closes it. */
hid_t shard_file_type(dtype_t dtype);

/* Place and length of a dataset's data, after checking that it has the schema's shape and type and lies in one piece
 * inside a file of `file_bytes`. `where` is the file's path. STATUS_INPUT. */
status_t shard_file_locate(hid_t file, const char *where, const schema_tensor_t *tensor, uint64_t file_bytes,
                           uint64_t *offset, size_t *bytes);

/* Identity of a model: SHA-256 over its config, the format of its experts and the checksum of its source. */
status_t shard_file_model_digest(const char *config_json, expert_format_t expert_format, uint64_t content,
                                 char digest[65]);

#ifdef __cplusplus
}
#endif
#endif
