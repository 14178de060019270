#ifndef GALVANI_BASE_HASH_H
#define GALVANI_BASE_HASH_H

/* SHA-256 of tokens and models, XXH3 of weights. */

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HASH_SHA256_TEXT_BYTES = 65, HASH_XXH3_TEXT_BYTES = 17 };

/* SHA-256 of a buffer as lower-case hex with a final NUL. For identities that people compare (token_hash). */
status_t hash_sha256_text(const void *data, size_t data_bytes, char text[HASH_SHA256_TEXT_BYTES]);

/* XXH3-64 in pieces. For digests of datasets, which must be checked at disk speed. The canonical text is 16 hex
 * digits, as `xxhsum -H3` prints them. */
typedef struct hash_xxh3 hash_xxh3_t;
status_t hash_xxh3_create(hash_xxh3_t **hash);
void hash_xxh3_update(hash_xxh3_t *hash, const void *data, size_t data_bytes);
uint64_t hash_xxh3_value(const hash_xxh3_t *hash);
void hash_xxh3_destroy(hash_xxh3_t *hash); /* NULL is allowed */

uint64_t hash_xxh3(const void *data, size_t data_bytes);
uint64_t hash_xxh3_seeded(const void *data, size_t data_bytes, uint64_t seed);
void hash_xxh3_text(uint64_t value, char text[HASH_XXH3_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
