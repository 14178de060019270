#ifndef GALVANI_SHARD_CONVERT_H
#define GALVANI_SHARD_CONVERT_H

/* galvani shard: a Hugging Face checkpoint to one HDF5 file a rank. */

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_ALL_RANKS = -1 };

/* How the processes that write one file each keep together. Both calls are collective. */
typedef struct shard_group {
    void *context;
    /* Makes one outcome of many, as comm_agree does. */
    status_t (*agree)(void *context, status_t status);
    /* Rank r's `bytes` stand at gathered + r * bytes on every rank. */
    void (*all_gather)(void *context, const void *data, size_t bytes, void *gathered);
} shard_group_t;

typedef struct shard_convert_args {
    const char *checkpoint; /* directory of the checkpoint */
    const char *output;     /* directory of the shard files, created if it is not there */
    const char *created_by; /* which program this is, for the files; NULL for no more than its name */
    int tp_size;
    int tp_rank;                /* whose file to write, or SHARD_ALL_RANKS for all of them by this one process */
    int n_threads;              /* that work on different datasets; with a group one does. 0 is 1 */
    bool quantize_experts;      /* BF16 experts become NVFP4 instead of FP16 */
    bool show_progress;         /* on stderr */
    const shard_group_t *group; /* NULL for a process alone; else tp_size processes call with tp_rank 0 .. tp_size-1 */
} shard_convert_args_t;

/* Converts a checkpoint to shard files and copies tokenizer and configuration beside them. Data is streamed: memory
 * does not grow with the checkpoint. Files that are whole already are left as they are, unfinished ones are gone on
 * with. What was written is read back and compared. Collective if there is a group. STATUS_USAGE if tp_size does not
 * divide the model; STATUS_INPUT for a bad checkpoint; STATUS_DEVICE if the output cannot be written. Unless the
 * process is killed or interrupted by a signal, no unfinished file stays behind a failure. */
status_t shard_convert(const shard_convert_args_t *args);

#ifdef __cplusplus
}
#endif
#endif
