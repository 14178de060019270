#include "ngram/ngram_rows.h"

#include <stdbool.h>

status_t ngram_rows_cpu(const ngram_rows_args_t *args) {
    int64_t n_context = args->ngram_size - 1;
    for (int64_t p = 0; p < args->n_tokens; p++) {
        /* Products wrap in 64 bits, as the reference's int64 tensors do. */
        uint64_t mixed = (uint64_t)(int64_t)args->tokens[p] * (uint64_t)args->multipliers[0];
        bool cut = false;
        for (int64_t back = 1; back <= n_context; back++) {
            int32_t token = p >= back ? args->tokens[p - back] : args->context[n_context + p - back];
            cut = cut || token == args->eos_token_id;
            if (cut) token = args->eos_token_id;
            mixed ^= (uint64_t)(int64_t)token * (uint64_t)args->multipliers[back];

            int64_t first = (back - 1) * args->heads_per_ngram;
            for (int64_t head = first; head < first + args->heads_per_ngram; head++) {
                int64_t remainder = (int64_t)mixed % args->head_sizes[head];
                if (remainder < 0) remainder += args->head_sizes[head];
                args->rows[p * args->n_heads + head] = remainder + args->head_offsets[head];
            }
        }
    }
    return STATUS_OK;
}
