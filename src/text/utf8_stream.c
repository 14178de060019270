#include "text/utf8_stream.h"

#include <string.h>

#include "text/utf8.h"

static const char replacement[3] = {'\xEF', '\xBF', '\xBD'}; /* U+FFFD */

static size_t append(char *text, size_t used, const void *data, size_t bytes) {
    memcpy(text + used, data, bytes);
    return used + bytes;
}

size_t utf8_stream_push(utf8_stream_t *stream, const char *data, size_t bytes, char *text) {
    size_t used = 0;
    for (size_t i = 0; i < bytes; ++i) {
        unsigned char byte = (unsigned char)data[i];
        if (stream->n_held && !utf8_continues(stream->held, stream->n_held, byte)) {
            used = append(text, used, replacement, sizeof replacement);
            stream->n_held = 0;
        }
        if (stream->n_held == 0 && utf8_length(byte) == 0) {
            used = append(text, used, replacement, sizeof replacement);
            continue;
        }
        stream->held[stream->n_held++] = byte;
        if (stream->n_held == (size_t)utf8_length(stream->held[0])) {
            used = append(text, used, stream->held, stream->n_held);
            stream->n_held = 0;
        }
    }
    text[used] = '\0';
    return used;
}

size_t utf8_stream_flush(utf8_stream_t *stream, char *text) {
    size_t used = stream->n_held ? append(text, 0, replacement, sizeof replacement) : 0;
    stream->n_held = 0;
    text[used] = '\0';
    return used;
}
