#ifndef GALVANI_CLI_REQUESTS_H
#define GALVANI_CLI_REQUESTS_H

/* From options and a requests file to token ids. Rank 0's work alone; nothing here is collective. */

#include "checkpoint/config.h"
#include "cli/options.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { REQUEST_ID_BYTES = 128 };

typedef struct request {
    char id[REQUEST_ID_BYTES]; /* file name without .h5; "" for the command line's own request */
    int32_t *tokens;           /* [n_tokens] */
    size_t n_tokens;
    char *text;        /* the prompt as it was tokenised; NULL if it came as ids and there is no tokenizer */
    options_t options; /* in force for this request */
} request_t;

typedef struct request_list {
    request_t *requests; /* [n] */
    size_t n;
} request_list_t;

typedef struct requests_args {
    option_store_t *store; /* outlives the list */
    const options_t *options;
    const model_config_t *config;
    const tokenizer_t *tokenizer; /* NULL if the model has none: ids only */
} requests_args_t;

/* Builds every request before the first runs, so that a fault in the last line of a file costs no work. STATUS_USAGE
 * for the command line's values, STATUS_INPUT for the content of files, naming file and line. The list starts zeroed
 * and is released with requests_release also on failure. */
status_t requests_build(const requests_args_t *args, request_list_t *list);
void requests_release(request_list_t *list);

#ifdef __cplusplus
}
#endif
#endif
