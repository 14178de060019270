#ifndef GALVANI_CLI_INSPECT_H
#define GALVANI_CLI_INSPECT_H

/* The parts of galvani inspect. Each prints to stdout and returns STATUS_INPUT for what is damaged. */

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run file. With `verify`, what can be computed again is compared. */
status_t inspect_run(const char *path, bool verify);

/* One shard file. With `verify`, the digest of every tensor. */
status_t inspect_shard(const char *path, bool verify);

/* A directory of shards: every rank must be there and of one model. */
status_t inspect_shard_directory(const char *directory, bool verify);

/* Whether the directory holds a shard file. */
bool inspect_has_shards(const char *directory);

/* A checkpoint: its config, its tensors by name, and whether the text tower is whole. */
status_t inspect_checkpoint(const char *directory);

/* One safetensors file. */
status_t inspect_safetensors(const char *path);

#ifdef __cplusplus
}
#endif
#endif
