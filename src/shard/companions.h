#ifndef GALVANI_SHARD_COMPANIONS_H
#define GALVANI_SHARD_COMPANIONS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the small files that a run needs beside its shards, as far as they are there: tokenizer.json,
 * tokenizer_config.json, chat_template.jinja, config.json and generation_config.json. Each appears whole or not at all.
 * STATUS_INPUT, or STATUS_DEVICE if one cannot be written. */
status_t companions_copy(const char *checkpoint, const char *output);

#ifdef __cplusplus
}
#endif
#endif
