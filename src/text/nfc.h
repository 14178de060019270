#ifndef GALVANI_TEXT_NFC_H
#define GALVANI_TEXT_NFC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the text has only ASCII characters, which no normal form changes. */
bool nfc_is_ascii(const char *text, size_t text_bytes);

/* Unicode normalisation form C of valid UTF-8. The caller frees `*normal` with memory_free. */
status_t nfc_normalize(const char *text, size_t text_bytes, char **normal, size_t *normal_bytes);

#ifdef __cplusplus
}
#endif
#endif
