#ifndef GALVANI_MODEL_SYNTHETIC_H
#define GALVANI_MODEL_SYNTHETIC_H

/* Weights for any config, made up from a seed: as large as the real ones, with values that keep every activation near 1
 * and spread the routing over all experts. An item depends on the seed, its dataset and its place in the unsliced
 * dataset alone, so a model is the same at every tp_size and on every backend. */

#include "fill/fill.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How to make one dataset of a rank's shard, of NVFP4 experts and an F8_E4M3 table; `fill->data` is left to the caller.
 * STATUS_INPUT for a path that the schema does not know. */
status_t synthetic_tensor(const model_config_t *config, const schema_options_t *options, uint64_t seed,
                          const schema_tensor_t *tensor, fill_args_t *fill);

/* The config of a model NAME: configs/NAME.json of this installation, or the file NAME itself if it has a slash or ends
 * in .json. STATUS_USAGE if there is none; STATUS_INPUT if it is wrong. The caller frees `*config_json` with
 * memory_free. */
status_t synthetic_config(const char *name, model_config_t *config, char **config_json);

#ifdef __cplusplus
}
#endif
#endif
