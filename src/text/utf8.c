#include "text/utf8.h"

int utf8_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0; /* a continuation byte, or the start of an overlong form */
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) return 3;
    if (lead < 0xF5) return 4;
    return 0;
}

bool utf8_continues(const unsigned char *start, size_t n, unsigned char byte) {
    unsigned char low = 0x80, high = 0xBF;
    if (n == 1) {
        switch (start[0]) {
        case 0xE0:
            low = 0xA0;
            break; /* below are overlong forms */
        case 0xED:
            high = 0x9F;
            break; /* above are surrogates */
        case 0xF0:
            low = 0x90;
            break;
        case 0xF4:
            high = 0x8F;
            break; /* above is U+110000 */
        default:
            break;
        }
    }
    return byte >= low && byte <= high;
}

/* Bytes of the whole, valid character at `text`, of which `n` bytes are there; 0 if it is not. */
static size_t whole_character(const unsigned char *text, size_t n) {
    size_t length = (size_t)utf8_length(text[0]);
    if (length > n) return 0;
    for (size_t i = 1; i < length; ++i)
        if (!utf8_continues(text, i, text[i])) return 0;
    return length;
}

status_t utf8_check(const char *text, size_t text_bytes, const char *where, status_t fault) {
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t i = 0; i < text_bytes;) {
        size_t length = whole_character(bytes + i, text_bytes - i);
        if (length == 0)
            return status_fail(fault, "%s is not valid UTF-8: byte 0x%02X at offset %zu; convert it to UTF-8 first",
                               where, bytes[i], i);
        i += length;
    }
    return STATUS_OK;
}

int32_t utf8_decode(const char *text, int *length) {
    const unsigned char *bytes = (const unsigned char *)text;
    *length = utf8_length(bytes[0]);
    switch (*length) {
    case 2:
        return (bytes[0] & 0x1F) << 6 | (bytes[1] & 0x3F);
    case 3:
        return (bytes[0] & 0x0F) << 12 | (bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F);
    case 4:
        return (bytes[0] & 0x07) << 18 | (bytes[1] & 0x3F) << 12 | (bytes[2] & 0x3F) << 6 | (bytes[3] & 0x3F);
    default:
        return bytes[0];
    }
}

int utf8_encode(int32_t code_point, char *text) {
    if (code_point < 0x80) {
        text[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        text[0] = (char)(0xC0 | code_point >> 6);
        text[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        text[0] = (char)(0xE0 | code_point >> 12);
        text[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        text[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    text[0] = (char)(0xF0 | code_point >> 18);
    text[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    text[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    text[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

bool utf8_is_white_space(int32_t code_point) {
    return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x20 || code_point == 0x85 ||
           code_point == 0xA0 || code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) ||
           code_point == 0x2028 || code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
           code_point == 0x3000;
}
