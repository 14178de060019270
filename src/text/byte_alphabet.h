#ifndef GALVANI_TEXT_BYTE_ALPHABET_H
#define GALVANI_TEXT_BYTE_ALPHABET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A byte-level vocabulary spells each byte as one printable character (GPT-2's table, which `tokenizers` calls
 * ByteLevel): the bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for the character of the same number, the other 68
 * for U+0100, U+0101, ... in increasing order. */

/* Code point that spells `byte`. */
int32_t byte_alphabet_spell(uint8_t byte);

/* Byte that `code_point` spells, -1 if it spells none. */
int byte_alphabet_read(int32_t code_point);

#ifdef __cplusplus
}
#endif
#endif
