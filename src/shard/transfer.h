#ifndef GALVANI_SHARD_TRANSFER_H
#define GALVANI_SHARD_TRANSFER_H

/* Moves the data of one dataset at a time from the checkpoint to the shard files that this process writes: reads each
 * source once, checks it, converts it, and appends to every rank's dataset what that rank holds. */

#include <stdint.h>

#include "shard/convert.h"
#include "shard/plan.h"
#include "shard/progress.h"
#include "shard/verifier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's file under construction. */
typedef struct transfer_target {
    int tp_rank;
    shard_writer_t *writer; /* NULL where the file is whole already */
} transfer_target_t;

/* Several transfers may work on different datasets of the same files, each in its thread. */
typedef struct transfer {
    /* set by the caller, borrowed */
    checkpoint_t *checkpoint;
    const model_config_t *config;
    const plan_options_t *options;
    const schema_tensor_t *tensors; /* the schema of any of the ranks: paths and types are the same for all */
    size_t n_tensors;
    transfer_target_t *targets;
    int n_targets; /* 1 or tp_size */
    const shard_group_t *group;
    progress_t *progress;
    verifier_t *verifier; /* gets each dataset that has been written */

    /* results */
    uint64_t content;           /* checksum of the source data that this process answers for */
    uint64_t n_overflow;        /* BF16 values beyond FP16, stored as the largest FP16 of their sign */
    uint64_t n_inexact;         /* BF16 values that FP16 rounds (they are below its normal range) */
    bool has_agreed_on_failure; /* the failure that transfer_dataset returned is already that of all processes */

    /* private; the number of moved bytes counts what was there already */
    unsigned char *rows, *gathered, *converted;
    uint8_t *codes, *scales;
    struct narrowing *narrowing; /* [65536], by BF16 word */
    size_t rows_bytes;
    uint64_t dataset_content, moved_bytes, polled_bytes;
} transfer_t;

/* Allocates the buffers. The caller ends with transfer_end, whatever the outcome. */
status_t transfer_begin(transfer_t *transfer);
void transfer_end(transfer_t *transfer);

/* Writes dataset `index` of the schema into the files that do not hold it yet. Where BF16 experts are quantised, codes,
 * scales and scale_2 are written together when the codes' turn comes. With a group this is collective, and every so
 * often looks whether another process has failed. */
status_t transfer_dataset(transfer_t *transfer, size_t index);

#ifdef __cplusplus
}
#endif
#endif
