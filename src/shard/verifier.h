#ifndef GALVANI_SHARD_VERIFIER_H
#define GALVANI_SHARD_VERIFIER_H

/* A thread that reads datasets back while others are being written, and compares their digests. */

#include <stddef.h>

#include "shard/writer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verifier verifier_t;

/* Starts the thread, for at most `capacity` datasets. */
status_t verifier_start(size_t capacity, verifier_t **verifier);

/* Hands over dataset `index`, which the writer has ended. Returns at once; a fault found so far is returned. */
status_t verifier_submit(verifier_t *verifier, shard_writer_t *writer, size_t index);

/* Waits until all that was handed over is compared, or only until the one at hand is if `stop_early`; ends the thread
 * and frees the verifier. STATUS_DEVICE if a dataset did not read back as it was written. NULL is allowed. */
status_t verifier_finish(verifier_t *verifier, bool stop_early);

#ifdef __cplusplus
}
#endif
#endif
