#include "text/nfc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"

bool nfc_is_ascii(const char *text, size_t text_bytes) {
    for (size_t i = 0; i < text_bytes; ++i)
        if ((unsigned char)text[i] >= 0x80) return false;
    return true;
}

status_t nfc_normalize(const char *text, size_t text_bytes, char **normal, size_t *normal_bytes) {
    utf8proc_uint8_t *mapped;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)text_bytes, &mapped,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return status_fail(n == UTF8PROC_ERROR_NOMEM ? STATUS_MEMORY : STATUS_INPUT,
                           "cannot normalise %zu bytes of text: %s", text_bytes, utf8proc_errmsg(n));
    /* Into memory that is accounted for. */
    void *memory;
    status_t status = memory_alloc(MEMORY_OTHER, (size_t)n + 1, 1, &memory);
    if (status == STATUS_OK) {
        memcpy(memory, mapped, (size_t)n);
        *normal = memory;
        *normal_bytes = (size_t)n;
    }
    free(mapped);
    return status;
}
