#include "model/sequence.h"

#include "base/arena.h"

/* Hands out the states and caches of all layers. */
static void place(const sequence_args_t *args, layer_state_t *layers, arena_t *states, arena_t *caches) {
    const model_config_t *config = args->config;
    const local_shape_t *local = &args->local;
    size_t activation_bytes = args->backend->ops->activation_bytes;
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        layer_state_t state = {0};
        int64_t ple_index;
        if (config_ple_index(config, layer, &ple_index))
            state.ple_conv =
                arena_floats(states, (config->ple_conv_kernel_size - 1) * config->ngram_size * local->stream_width);
        if (config->layer_types[layer] == LAYER_GDN) {
            state.gdn_conv =
                arena_take(states, (config->linear_conv_kernel_dim - 1) * local->conv_channels, activation_bytes);
            state.gdn = arena_floats(states, local->value_width * config->linear_key_head_dim);
        } else {
            int64_t ratio = config->indexer_compress_ratio;
            int64_t n_blocks = (args->max_context + ratio - 1) / ratio;
            int64_t cache_width = local->n_kv_heads * config->head_dim;
            state.cache.capacity = n_blocks * ratio;
            state.cache.k = arena_take(caches, state.cache.capacity * cache_width, activation_bytes);
            state.cache.v = arena_take(caches, state.cache.capacity * cache_width, activation_bytes);
            state.cache.index_keys = arena_take(caches, n_blocks * config->indexer_head_dim, activation_bytes);
            state.cache.raw_keys = arena_take(caches, ratio * config->indexer_head_dim, activation_bytes);
        }
        if (layers) layers[layer] = state;
    }
}

void sequence_count(const sequence_args_t *args, size_t needed[MEMORY_N_LABELS]) {
    arena_t states = {0}, caches = {0};
    place(args, NULL, &states, &caches);
    needed[MEMORY_STATE] += states.used;
    needed[MEMORY_KV_CACHE] += caches.used;
}

status_t sequence_create(const sequence_args_t *args, sequence_t **sequence) {
    backend_t *backend = args->backend;
    void *memory;
    status_t status;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(sequence_t), &memory));
    sequence_t *created = memory;
    created->config = args->config;
    created->backend = backend;
    created->max_context = args->max_context;
    TRY_GOTO(memory_alloc(MEMORY_OTHER, (size_t)args->config->num_hidden_layers, sizeof(layer_state_t), &memory),
             failed);
    created->layers = memory;

    size_t needed[MEMORY_N_LABELS] = {0};
    sequence_count(args, needed);
    created->state_bytes = needed[MEMORY_STATE];
    TRY_GOTO(backend->ops->alloc(backend, MEMORY_STATE, created->state_bytes, &created->states), failed);
    TRY_GOTO(backend->ops->alloc(backend, MEMORY_KV_CACHE, needed[MEMORY_KV_CACHE], &created->caches), failed);
    arena_t states = {.base = created->states}, caches = {.base = created->caches};
    place(args, created->layers, &states, &caches);
    TRY_GOTO(sequence_reset(created), failed);
    *sequence = created;
    return STATUS_OK;

failed:
    sequence_destroy(created);
    return status;
}

void sequence_destroy(sequence_t *sequence) {
    if (!sequence) return;
    backend_t *backend = sequence->backend;
    backend->ops->free(backend, sequence->states);
    backend->ops->free(backend, sequence->caches);
    memory_free(sequence->layers);
    memory_free(sequence);
}

status_t sequence_reset(sequence_t *sequence) {
    backend_t *backend = sequence->backend;
    TRY(backend->ops->zero(backend, sequence->states, sequence->state_bytes));
    for (int i = 0; i < CONFIG_MAX_NGRAM_SIZE; i++)
        sequence->context[i] = sequence->config->eos_token_id;
    sequence->pos = 0;
    return STATUS_OK;
}

void sequence_advance(sequence_t *sequence, const int32_t *tokens, int64_t n_tokens) {
    int64_t n_context = sequence->config->ngram_size - 1;
    for (int64_t i = 0; i < n_context; i++) {
        int64_t source = i + n_tokens; /* in the old context followed by the tokens */
        sequence->context[i] = source < n_context ? sequence->context[source] : tokens[source - n_context];
    }
    sequence->pos += n_tokens;
}
