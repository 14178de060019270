/* config.json as an attacker writes it, and the shard files that would follow from it. */

#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"
#include "shard/plan.h"

/* The hash's primes take long where there are thousands of them. */
enum { MAX_PRIMES = 64 };

static void check_schema(const model_config_t *config, int tp_size) {
    const schema_options_t schema = {tp_size - 1, tp_size, EXPERTS_NVFP4, DTYPE_F8_E4M3};
    const plan_options_t options = {.tp_size = tp_size, .inventory = {.ple_dtype = DTYPE_F8_E4M3}};
    schema_tensor_t *tensors;
    size_t n_tensors, bytes;
    if (schema_build(config, &schema, &tensors, &n_tensors) != STATUS_OK) return;
    for (size_t i = 0; i < n_tensors; i++) {
        for (int j = 0; j < tensors[i].n_dims; j++) {
            if (tensors[i].shape[j] <= 0) abort();
        }
        (void)schema_tensor_bytes(&tensors[i], &bytes);
        plan_dataset_t dataset;
        if (plan_dataset(config, &options, tensors[i].path, &dataset) != STATUS_OK || dataset.n_sources < 1) abort();
        plan_source_t source;
        plan_source(config, &options, &dataset, dataset.n_sources - 1, &source);
        plan_piece_t piece = plan_piece(&dataset, &source, tp_size - 1, tp_size);
        if (piece.n_rows < 0 || piece.n_items < 0 || piece.n_items > source.row_items) abort();
    }
    memory_free(tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    status_clear();
    json_t *root;
    if (json_read_text((const char *)data, size, "fuzz", &root) != STATUS_OK) return 0;
    model_config_t config;
    if (config_parse(root, "fuzz", STATUS_INPUT, &config) == STATUS_OK) {
        if (config.n_ple_layers == 0 || config.n_ple_layers * config_n_ngram_heads(&config) <= MAX_PRIMES) {
            for (int tp_size = 1; tp_size <= 8; tp_size *= 2)
                check_schema(&config, tp_size);
        }
    } else if (status_message()[0] == '\0') {
        abort(); /* a failure without a reason */
    }
    json_decref(root);
    return 0;
}
