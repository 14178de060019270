#ifndef GALVANI_TEXT_TOKENIZER_FILE_H
#define GALVANI_TEXT_TOKENIZER_FILE_H

#include <stdbool.h>

#include "base/status.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a tokenizer is made of. Zero-initialise; release with tokenizer_parts_release, also after a failure. */
typedef struct tokenizer_parts {
    vocabulary_t *vocabulary;
    bpe_t *bpe;
    pretokenizer_t *pretokenizer;
    added_tokens_t added;
    bool nfc;           /* the normaliser is NFC; otherwise there is none */
    bool ignore_merges; /* a piece that is itself a vocabulary entry is taken whole */
} tokenizer_parts_t;

/* Reads both files into parts. Every setting that changes ids is honoured or refused by name (STATUS_INPUT): a
 * tokenizer that is followed in part gives text that looks right and is not. */
status_t tokenizer_file_read(const tokenizer_source_t *source, tokenizer_parts_t *parts);

void tokenizer_parts_release(tokenizer_parts_t *parts);

#ifdef __cplusplus
}
#endif
#endif
