#include "shard/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 256 };

bool journal_read(const char *path, const char *conversion, journal_entry_t *entries, size_t n_entries) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    char line[LINE_BYTES];
    bool known = fgets(line, sizeof line, file) && strncmp(line, conversion, strlen(conversion)) == 0 &&
                 strcmp(line + strlen(conversion), "\n") == 0;
    while (known && fgets(line, sizeof line, file)) {
        size_t index;
        journal_entry_t entry = {.is_done = true};
        if (!strchr(line, '\n')) break;
        if (sscanf(line, "%zu %" SCNx64 " %" SCNx64, &index, &entry.xxh3, &entry.content) != 3 || index >= n_entries)
            known = false;
        else
            entries[index] = entry;
    }
    fclose(file);
    if (!known) memset(entries, 0, n_entries * sizeof *entries);
    return known;
}

static status_t write_line(const char *path, const char *mode, const char *line) {
    FILE *file = fopen(path, mode);
    bool written = file && fputs(line, file) >= 0;
    if (file && fclose(file) != 0) written = false;
    if (!written) return status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(errno));
    return STATUS_OK;
}

status_t journal_create(const char *path, const char *conversion) {
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%s\n", conversion);
    return write_line(path, "w", line);
}

status_t journal_append(const char *path, size_t index, const journal_entry_t *entry) {
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%zu %016" PRIx64 " %016" PRIx64 "\n", index, entry->xxh3, entry->content);
    return write_line(path, "a", line);
}
