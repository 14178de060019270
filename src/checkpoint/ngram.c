#include "checkpoint/ngram.h"

#include <stdbool.h>

static uint64_t splitmix64(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

static bool is_prime(int64_t value) {
    if (value < 4) return value >= 2;
    if (value % 2 == 0) return false;
    for (int64_t divisor = 3; divisor * divisor <= value; divisor += 2) {
        if (value % divisor == 0) return false;
    }
    return true;
}

void ngram_derive(const model_config_t *config, int64_t ple_index, ngram_constants_t *constants) {
    int64_t n_heads = config_n_ngram_heads(config);
    constants->n_heads = n_heads;
    constants->ngram_size = config->ngram_size;
    constants->heads_per_ngram = config->heads_per_ngram;
    constants->eos_token_id = config->eos_token_id;

    uint64_t half = (uint64_t)(INT64_MAX / config->vocab_size / 2);
    if (half == 0) half = 1;
    uint64_t base = config->seed + 10007 * (uint64_t)ple_index;
    for (int64_t i = 0; i < config->ngram_size; i++) {
        uint64_t value = base + 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
        constants->multipliers[i] = (int64_t)(2 * (splitmix64(value) % half) + 1);
    }

    /* Each head of each PLE layer takes the next prime from the base upward; earlier layers' primes are skipped. */
    int64_t offset = 0, prime = config->ngram_vocab_size_base - 1;
    for (int64_t i = -ple_index * n_heads; i < n_heads; i++) {
        do
            prime++;
        while (!is_prime(prime));
        if (i < 0) continue;
        constants->head_sizes[i] = prime;
        constants->head_offsets[i] = offset;
        offset += prime;
    }
    int64_t unit = config->make_ngram_vocab_size_divisible_by;
    constants->n_rows = (offset + unit - 1) / unit * unit;
}
