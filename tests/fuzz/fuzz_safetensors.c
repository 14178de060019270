/* The JSON of a safetensors header as an attacker writes it. The first two bytes are the length of the data behind it.
 */

#include <stdint.h>
#include <stdlib.h>

#include "checkpoint/safetensors.h"

/* What a reader relies on: every tensor lies in the file, none on another, and has the bytes of its shape. */
static void check(const safetensors_header_t *header, uint64_t data_start) {
    uint64_t end = data_start;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const safetensors_tensor_t *tensor = &header->tensors[i];
        if (tensor->offset < end || tensor->bytes > header->file_bytes - tensor->offset) abort();
        end = tensor->offset + tensor->bytes;
        uint64_t n_items = 1;
        for (int j = 0; j < tensor->n_dims; j++)
            n_items *= (uint64_t)tensor->shape[j];
        if (tensor->dtype != DTYPE_N && n_items * dtype_bytes(tensor->dtype) != tensor->bytes) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    uint64_t data_bytes = (uint64_t)data[0] << 8 | data[1];
    const char *text = (const char *)data + 2;
    size_t text_bytes = size - 2;
    status_clear();
    safetensors_header_t header;
    uint64_t data_start = SAFETENSORS_LENGTH_BYTES + text_bytes;
    if (safetensors_parse(text, text_bytes, data_start + data_bytes, "fuzz", &header) == STATUS_OK) {
        check(&header, data_start);
        safetensors_free(&header);
    } else if (status_message()[0] == '\0') {
        abort(); /* a failure without a reason */
    }
    return 0;
}
