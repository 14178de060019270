#ifndef GALVANI_BASE_MEMORY_H
#define GALVANI_BASE_MEMORY_H

/* Host memory, counted by what it is for. */

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an allocation is for; the memory report (/memory of a run file) is the sum per label. */
typedef enum memory_label {
    MEMORY_WEIGHTS,
    MEMORY_PLE_TABLE,  /* pinned host memory on CUDA, plain memory on the CPU */
    MEMORY_KV_CACHE,   /* keys, values and index keys */
    MEMORY_STATE,      /* GDN, convolution and PLE state */
    MEMORY_WORKSPACE,  /* activations and scratch */
    MEMORY_CUDA_GRAPH, /* a recorded step */
    MEMORY_PINNED,     /* host memory that a device writes */
    MEMORY_COMM,       /* communication buffers */
    MEMORY_OTHER,      /* config, tokenizer, file buffers */
    MEMORY_N_LABELS
} memory_label_t;

const char *memory_label_name(memory_label_t label);

/* Allocates `n` items of `item_bytes` each, zeroed, aligned to 64 bytes. The product is checked. `*pointer` is
 * written only on success; a request of zero bytes gives a valid pointer. The caller frees it with
 * memory_free. On failure: STATUS_MEMORY, with how much was wanted for what and how much there was. */
status_t memory_alloc(memory_label_t label, size_t n, size_t item_bytes, void **pointer);

/* NULL is allowed. */
void memory_free(void *pointer);

/* Enters memory that another allocator gave (a device's, pinned host memory) into the account, and takes it out. */
void memory_account(memory_label_t label, size_t bytes);
void memory_unaccount(memory_label_t label, size_t bytes);

/* What is in use of a device's memory now, libraries included; the most of it is kept. 0 without a device. */
void memory_note_device(size_t bytes);
size_t memory_peak_device_bytes(void);

/* Product of two sizes; STATUS_MEMORY if it does not fit. */
status_t memory_product(size_t a, size_t b, size_t *product);

/* Bytes now held under a label, and the most that all labels ever held together. */
size_t memory_bytes(memory_label_t label);
size_t memory_peak_bytes(void);

/* Memory that this host, the control group and the address-space limit of this process can still give, in bytes. */
size_t memory_available_bytes(void);

/* Peak resident memory of this process, in bytes. */
size_t memory_peak_rss_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
