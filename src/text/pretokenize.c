#include "text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "text/utf8.h"

struct pretokenizer {
    pcre2_code *code;
};

/* White space as Oniguruma, which `tokenizers` uses, reads \s: Unicode's White_Space. PCRE2's own \s also takes
 * U+180E, which Mongolian text has inside words. */
#define WHITE_SPACE "\\p{Z}\\x09-\\x0D\\x{85}"

/* Rewrites \s (anywhere) and \S (outside of brackets) to that set. The caller frees `*rewritten`. */
static status_t rewrite_white_space(const char *pattern, char **rewritten) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, strlen(pattern) + 1, sizeof "[^" WHITE_SPACE "]", &memory));
    char *out = memory;
    *rewritten = out;
    bool in_brackets = false;
    while (*pattern) {
        const char *set = NULL;
        if (pattern[0] == '\\' && pattern[1] == 's') set = in_brackets ? WHITE_SPACE : "[" WHITE_SPACE "]";
        if (pattern[0] == '\\' && pattern[1] == 'S' && !in_brackets) set = "[^" WHITE_SPACE "]";
        if (set) {
            memcpy(out, set, strlen(set));
            out += strlen(set);
            pattern += 2;
            continue;
        }
        if (pattern[0] == '[') in_brackets = true;
        if (pattern[0] == ']') in_brackets = false;
        if (pattern[0] == '\\' && pattern[1]) *out++ = *pattern++;
        *out++ = *pattern++;
    }
    return STATUS_OK;
}

status_t pretokenizer_create(const char *pattern, const char *where, pretokenizer_t **pretokenizer) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(pretokenizer_t), &memory));
    pretokenizer_t *created = memory;

    char *rewritten;
    status_t status = rewrite_white_space(pattern, &rewritten);
    if (status != STATUS_OK) {
        memory_free(created);
        return status;
    }
    int error;
    PCRE2_SIZE offset;
    /* Text is checked once as a whole and matched from many offsets, so nothing may see half a character (\C). */
    created->code = pcre2_compile((PCRE2_SPTR)rewritten, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!created->code) {
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(error, reason, sizeof reason);
        status = status_fail(STATUS_INPUT, "%s: the regular expression is not valid: %s, at offset %zu of \"%s\"",
                             where, (const char *)reason, offset, rewritten);
        memory_free(rewritten);
        memory_free(created);
        return status;
    }
    memory_free(rewritten);
    /* Where there is no JIT the interpreter does the same, more slowly. */
    pcre2_jit_compile(created->code, PCRE2_JIT_COMPLETE);
    *pretokenizer = created;
    return STATUS_OK;
}

void pretokenizer_destroy(pretokenizer_t *pretokenizer) {
    if (!pretokenizer) return;
    pcre2_code_free(pretokenizer->code);
    memory_free(pretokenizer);
}

/* Finds the first match at or after `from`. Returns false if there is none. */
static status_t find_match(const pretokenizer_t *pretokenizer, const char *text, size_t text_bytes, size_t from,
                           pcre2_match_data *data, bool *found) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int n = pcre2_match(pretokenizer->code, subject, text_bytes, from, PCRE2_NO_UTF_CHECK, data, NULL);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(pretokenizer->code, subject, text_bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, NULL);
    *found = n > 0;
    if (n > 0 || n == PCRE2_ERROR_NOMATCH) return STATUS_OK;
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(n, reason, sizeof reason);
    return status_fail(n == PCRE2_ERROR_NOMEMORY ? STATUS_MEMORY : STATUS_INPUT,
                       "the tokenizer's regular expression fails at byte %zu of the text: %s", from,
                       (const char *)reason);
}

status_t pretokenizer_split(const pretokenizer_t *pretokenizer, const char *text, size_t text_bytes,
                            pretokenize_piece_fn take, void *context) {
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(pretokenizer->code, NULL);
    if (!data) return status_fail(STATUS_MEMORY, "no memory to split text with PCRE2");
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(data);
    status_t status = STATUS_OK;
    size_t done = 0; /* end of the last piece */
    for (size_t from = 0; from < text_bytes;) {
        bool found;
        TRY_GOTO(find_match(pretokenizer, text, text_bytes, from, data, &found), end);
        if (!found) break;
        size_t start = bounds[0], stop = bounds[1];
        if (start < done || stop < start) { /* \K can do that */
            status = status_fail(STATUS_INPUT, "the tokenizer's regular expression matches backwards");
            goto end;
        }
        if (start > done) TRY_GOTO(take(context, text + done, start - done), end);
        if (stop > start) TRY_GOTO(take(context, text + start, stop - start), end);
        done = stop;
        from = stop;
        /* An empty match ends the piece before it; the search goes on behind the next character. */
        if (stop == start && from < text_bytes) from += (size_t)utf8_length((unsigned char)text[from]);
    }
    if (done < text_bytes) status = take(context, text + done, text_bytes - done);
end:
    pcre2_match_data_free(data);
    return status;
}
