#ifndef GALVANI_TEXT_UTF8_STREAM_H
#define GALVANI_TEXT_UTF8_STREAM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Turns the bytes of one token after another into text that never ends inside a character. A token of a byte-level
 * vocabulary may hold part of a character; that part waits here for the rest. Bytes that cannot become a character
 * come out as U+FFFD, one for each maximal ill-formed part (Unicode 15, section 3.9, as Python's errors="replace").
 * What comes out in all is therefore the same for every cut of the same bytes. Zero-initialise before use. */
typedef struct utf8_stream {
    unsigned char held[4]; /* start of a character, at most 3 bytes */
    size_t n_held;
} utf8_stream_t;

/* Room that `text` needs for a push of `bytes`: each byte may become a U+FFFD (3 bytes), and so may what is held. */
#define UTF8_STREAM_ROOM(bytes) (3 * ((size_t)(bytes) + 1) + 1)

/* Adds `bytes` bytes and writes all whole characters, with a NUL behind, to `text`, which holds
 * UTF8_STREAM_ROOM(bytes). Returns the bytes written, without the NUL. */
size_t utf8_stream_push(utf8_stream_t *stream, const char *data, size_t bytes, char *text);

/* Ends the text: a character that never became whole is written as U+FFFD. `text` holds UTF8_STREAM_ROOM(0). The
 * stream is empty afterwards. */
size_t utf8_stream_flush(utf8_stream_t *stream, char *text);

#ifdef __cplusplus
}
#endif
#endif
