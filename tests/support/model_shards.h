#ifndef GALVANI_TESTS_MODEL_SHARDS_H
#define GALVANI_TESTS_MODEL_SHARDS_H

/* A checkpoint as shard files in a directory of its own, for the time of a test. Collective. */

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "shard/convert.h"

enum { MODEL_SHARDS_BYTES = 128 };

static inline int model_shards_remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

/* To be called when no rank uses the files any more. */
static inline void model_shards_remove(comm_t *comm, const char *directory) {
    comm_barrier(comm);
    if (comm_tp_rank(comm) == 0) nftw(directory, model_shards_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Converts `checkpoint` for the ranks of `comm`; `directory` is where the shards are, on every rank. */
static inline status_t model_shards_create(comm_t *comm, const char *checkpoint, bool quantize_experts,
                                           char directory[MODEL_SHARDS_BYTES]) {
    status_t status = STATUS_OK;
    memset(directory, 0, MODEL_SHARDS_BYTES);
    if (comm_tp_rank(comm) == 0) {
        snprintf(directory, MODEL_SHARDS_BYTES, "/tmp/galvani-test-XXXXXX");
        if (!mkdtemp(directory)) status = status_fail(STATUS_DEVICE, "cannot make %s", directory);
        const shard_convert_args_t args = {.checkpoint = checkpoint,
                                           .output = directory,
                                           .tp_size = comm_tp_size(comm),
                                           .tp_rank = SHARD_ALL_RANKS,
                                           .quantize_experts = quantize_experts};
        if (status == STATUS_OK) status = shard_convert(&args);
    }
    comm_broadcast(comm, directory, MODEL_SHARDS_BYTES);
    return comm_agree(comm, status);
}

#endif
