#ifndef GALVANI_CHECKPOINT_INVENTORY_H
#define GALVANI_CHECKPOINT_INVENTORY_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/roles.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group of tensors: how many, and the bytes of their data. */
typedef struct inventory_count {
    size_t n_tensors;
    uint64_t bytes;
} inventory_count_t;

/* What a checkpoint holds. */
typedef struct inventory {
    expert_storage_t expert_storage;
    dtype_t ple_dtype;                             /* DTYPE_F8_E4M3 or DTYPE_BF16 */
    int64_t n_table_shards[CONFIG_MAX_PLE_LAYERS]; /* per PLE layer; 0: the table is one tensor */
    inventory_count_t text, mtp, visual;           /* the last two are skipped */
} inventory_t;

/* Checks that every tensor of the text tower is there with the shape and type that the config asks for, that the hash
 * tables equal what the config derives, and that there is nothing else but MTP and vision tensors. Other quantisations
 * are refused by name. STATUS_INPUT names what is wrong: the first few tensors and how many there are. */
status_t inventory_check(checkpoint_t *checkpoint, const model_config_t *config, inventory_t *inventory);

/* Rows of shard `shard` of a table of `n_rows` rows in `n_shards` shards: blocks in index order, the last ones shorter
 * where they do not divide. */
int64_t inventory_shard_rows(int64_t n_rows, int64_t n_shards, int64_t shard);

#ifdef __cplusplus
}
#endif
#endif
