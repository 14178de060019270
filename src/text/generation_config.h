#ifndef GALVANI_TEXT_GENERATION_CONFIG_H
#define GALVANI_TEXT_GENERATION_CONFIG_H

/* generation_config.json: the tokens that end a text. */

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GENERATION_MAX_EOS = 16 };

/* What generation_config.json says about when to stop. Its sampling values are left alone: the command line decides. */
typedef struct generation_config {
    int32_t eos_token_id[GENERATION_MAX_EOS]; /* generation stops on each of them */
    int n_eos;
} generation_config_t;

/* Reads DIRECTORY/generation_config.json. Where that file or its eos_token_id is absent, the only stop is
 * `eos_token_id` of config.json (none if that is negative). Ids must lie in [0, n_tokens). STATUS_INPUT otherwise. */
status_t generation_config_load(const char *directory, int32_t eos_token_id, int32_t n_tokens,
                                generation_config_t *config);

bool generation_config_is_eos(const generation_config_t *config, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
