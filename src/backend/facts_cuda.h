#ifndef GALVANI_BACKEND_FACTS_CUDA_H
#define GALVANI_BACKEND_FACTS_CUDA_H

/* What is known of the devices once they are open. */

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets how many ranks share this rank's device. Collective. STATUS_MEMORY. */
status_t cuda_count_sharing(backend_t *backend);

/* Fills backend->facts, whose texts live as long as the backend, and says on rank 0 which devices are used. Collective.
 * STATUS_MEMORY. */
status_t cuda_gather_facts(backend_t *backend);

#ifdef __cplusplus
}
#endif
#endif
