#include "cli/tensor_table.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_LINES = 1024, NAME_BYTES = 160, MAX_DIMS = 8 };

typedef struct line {
    char name[NAME_BYTES];
    dtype_t dtype;
    int n_dims;
    int64_t shape[MAX_DIMS];
    bool is_varied;
    uint64_t n, bytes;
} line_t;

struct tensor_table {
    line_t lines[MAX_LINES]; /* the last one takes all that finds no room */
    int n_lines, last_hit;
    uint64_t n, bytes;
};

status_t tensor_table_create(tensor_table_t **table) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(tensor_table_t), &memory));
    *table = memory;
    return STATUS_OK;
}

void tensor_table_destroy(tensor_table_t *table) { memory_free(table); }

/* Copies a name with every part that is a number written as *: layers.3, /layers/03, shard_12. */
static void make_pattern(const char *name, char pattern[NAME_BYTES]) {
    size_t used = 0;
    while (*name && used + 1 < NAME_BYTES) {
        bool at_start =
            used == 0 || strchr("./", pattern[used - 1]) || (used >= 6 && memcmp(pattern + used - 6, "shard_", 6) == 0);
        size_t digits = at_start ? strspn(name, "0123456789") : 0;
        bool is_number = digits && (name[digits] == '\0' || strchr("./", name[digits]));
        pattern[used++] = is_number ? '*' : *name;
        name += is_number ? digits : 1;
    }
    pattern[used] = '\0';
}

static bool is_line(const line_t *line, const char *pattern, dtype_t dtype) {
    return line->dtype == dtype && strcmp(line->name, pattern) == 0;
}

static line_t *find_line(tensor_table_t *table, const char *pattern, dtype_t dtype) {
    /* Neighbours in name order mostly belong to the same few lines. */
    for (int i = 0; i < table->n_lines; i++) {
        int at = (table->last_hit + i) % table->n_lines;
        if (is_line(&table->lines[at], pattern, dtype)) {
            table->last_hit = at;
            return &table->lines[at];
        }
    }
    if (table->n_lines == MAX_LINES) return &table->lines[MAX_LINES - 1];
    table->last_hit = table->n_lines;
    line_t *line = &table->lines[table->n_lines++];
    line->dtype = dtype;
    strcpy(line->name, table->n_lines == MAX_LINES ? "(others)" : pattern);
    return line;
}

void tensor_table_add(tensor_table_t *table, const char *name, dtype_t dtype, int n_dims, const int64_t *shape,
                      uint64_t bytes) {
    char pattern[NAME_BYTES];
    make_pattern(name, pattern);
    line_t *line = find_line(table, pattern, dtype);
    int shown = n_dims < MAX_DIMS ? n_dims : MAX_DIMS;
    if (line->n == 0) {
        line->n_dims = shown;
        memcpy(line->shape, shape, (size_t)shown * sizeof shape[0]);
    } else {
        line->is_varied |= line->n_dims != shown || memcmp(line->shape, shape, (size_t)shown * sizeof shape[0]) != 0;
    }
    line->n++;
    line->bytes += bytes;
    table->n++;
    table->bytes += bytes;
}

void tensor_table_print(const tensor_table_t *table) {
    char text[BYTES_TEXT_BYTES];
    printf("%9s %12s  %-8s %-22s %s\n", "tensors", "bytes", "type", "shape", "name");
    for (int i = 0; i < table->n_lines; i++) {
        const line_t *line = &table->lines[i];
        char shape[128] = "[";
        for (int d = 0; d < line->n_dims; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRId64, d ? ", " : "", line->shape[d]);
        strcat(shape, line->is_varied ? "] ..." : "]");
        printf("%9" PRIu64 " %12s  %-8s %-22s %s\n", line->n, bytes_text(line->bytes, text),
               line->dtype == DTYPE_N ? "other" : dtype_name(line->dtype), shape, line->name);
    }
    printf("%9" PRIu64 " %12s  in all\n", table->n, bytes_text(table->bytes, text));
}

const char *bytes_text(uint64_t bytes, char text[BYTES_TEXT_BYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, BYTES_TEXT_BYTES, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}
