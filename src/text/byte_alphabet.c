#include "text/byte_alphabet.h"

#include <stdbool.h>

static bool spells_itself(int32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

int32_t byte_alphabet_spell(uint8_t byte) {
    if (spells_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    if (byte <= 0xA0) return 0x121 + (byte - 0x7F);
    return 0x143; /* 0xAD, the soft hyphen */
}

int byte_alphabet_read(int32_t code_point) {
    if (code_point >= 0x100 && code_point <= 0x120) return code_point - 0x100;
    if (code_point >= 0x121 && code_point <= 0x142) return code_point - 0x121 + 0x7F;
    if (code_point == 0x143) return 0xAD;
    return spells_itself(code_point) ? (int)code_point : -1;
}
