#include "base/hash.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
/* Compiled in, for this machine's vectors: a distribution's library is built for those of all machines, and hashing
 * would be slower than reading. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/memory.h"

struct hash_xxh3 {
    XXH3_state_t *state;
};

status_t hash_sha256_text(const void *data, size_t data_bytes, char text[HASH_SHA256_TEXT_BYTES]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int digest_bytes = 0;
    if (EVP_Digest(data, data_bytes, digest, &digest_bytes, EVP_sha256(), NULL) != 1)
        return status_fail(STATUS_DEVICE, "OpenSSL cannot compute SHA-256");
    for (unsigned int i = 0; i < digest_bytes; i++)
        snprintf(text + 2 * (size_t)i, 3, "%02x", (unsigned)digest[i]);
    return STATUS_OK;
}

status_t hash_xxh3_create(hash_xxh3_t **hash) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(hash_xxh3_t), &memory));
    hash_xxh3_t *created = memory;
    created->state = XXH3_createState();
    if (!created->state) {
        memory_free(created);
        return status_fail(STATUS_MEMORY, "no memory for a hash state");
    }
    XXH3_64bits_reset(created->state);
    *hash = created;
    return STATUS_OK;
}

void hash_xxh3_update(hash_xxh3_t *hash, const void *data, size_t data_bytes) {
    XXH3_64bits_update(hash->state, data, data_bytes);
}

uint64_t hash_xxh3_value(const hash_xxh3_t *hash) { return XXH3_64bits_digest(hash->state); }

void hash_xxh3_destroy(hash_xxh3_t *hash) {
    if (!hash) return;
    XXH3_freeState(hash->state);
    memory_free(hash);
}

uint64_t hash_xxh3(const void *data, size_t data_bytes) { return XXH3_64bits(data, data_bytes); }

uint64_t hash_xxh3_seeded(const void *data, size_t data_bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, data_bytes, seed);
}

void hash_xxh3_text(uint64_t value, char text[HASH_XXH3_TEXT_BYTES]) {
    snprintf(text, HASH_XXH3_TEXT_BYTES, "%016" PRIx64, value);
}
