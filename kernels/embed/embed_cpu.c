/* A copy: BF16 widens exactly, so there is no arithmetic to order. */

#include "embed/embed.h"

#include <string.h>

#include "common/widen.h"

status_t embed_cpu(const embed_args_t *args) {
    int64_t n = args->embed.columns;
    for (int64_t t = 0; t < args->n_tokens; t++) {
        float *streams = args->h + t * args->hc_count * n;
        widen_row(&args->embed, args->tokens[t], streams);
        for (int64_t s = 1; s < args->hc_count; s++)
            memcpy(streams + s * n, streams, (size_t)n * sizeof *streams);
    }
    return STATUS_OK;
}
