/* tokenizer.json as an attacker writes it. What stands behind the first NUL is a text to encode; without a NUL a fixed
 * text is taken. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

static void stream(const char *bytes, size_t n_bytes) {
    char *text = malloc(UTF8_STREAM_ROOM(n_bytes) + UTF8_STREAM_ROOM(0));
    if (!text) return;
    utf8_stream_t state = {0};
    size_t n = utf8_stream_push(&state, bytes, n_bytes, text);
    n += utf8_stream_flush(&state, text + n);
    if (utf8_check(text, n, "the stream", STATUS_INPUT) != STATUS_OK) abort();
    free(text);
}

static void round_trip(const tokenizer_t *tokenizer, const char *text, size_t text_bytes) {
    int32_t *ids;
    size_t n_ids;
    if (tokenizer_encode(tokenizer, text, text_bytes, STATUS_INPUT, &ids, &n_ids) != STATUS_OK) return;
    for (size_t i = 0; i < n_ids; ++i)
        if (ids[i] < 0 || ids[i] >= tokenizer_n_tokens(tokenizer)) abort();
    for (int skip_special = 0; skip_special < 2; ++skip_special) {
        char *decoded;
        size_t decoded_bytes;
        if (tokenizer_decode(tokenizer, ids, n_ids, skip_special, &decoded, &decoded_bytes) != STATUS_OK) continue;
        stream(decoded, decoded_bytes);
        memory_free(decoded);
    }
    memory_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char fixed[] = "abc <e>  e\xCC\x81\r\n\xE0\xB8\x81\xE0\xB9\x89 12 'S \xF0\x9F\x8E\x89";
    const uint8_t *end = memchr(data, 0, size);
    tokenizer_source_t source = {.directory = "fuzz", .json = (const char *)data, .json_bytes = size};
    const char *text = fixed;
    size_t text_bytes = sizeof fixed - 1;
    if (end) {
        source.json_bytes = (size_t)(end - data);
        text = (const char *)end + 1;
        text_bytes = size - source.json_bytes - 1;
    }
    status_clear();
    tokenizer_t *tokenizer;
    if (tokenizer_create(&source, &tokenizer) == STATUS_OK) {
        round_trip(tokenizer, text, text_bytes);
        tokenizer_destroy(tokenizer);
    } else if (status_message()[0] == '\0') {
        abort(); /* a failure without a reason */
    }
    return 0;
}
