#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/memory.h"

static status_t parse_shape(const json_reader_t *reader, safetensors_tensor_t *tensor, uint64_t *n_items) {
    const json_t *shape;
    TRY(json_get_array(reader, "shape", &shape));
    size_t n_dims = json_array_size(shape);
    if (n_dims > SAFETENSORS_MAX_DIMS)
        return status_fail(STATUS_INPUT, "%s has %zu dimensions; at most %d are supported", reader->where, n_dims,
                           SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    *n_items = 1;
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return status_fail(STATUS_INPUT, "%s: its shape must hold whole numbers that are not negative",
                               reader->where);
        tensor->shape[i] = (int64_t)json_integer_value(size);
        if (__builtin_mul_overflow(*n_items, (uint64_t)tensor->shape[i], n_items))
            return status_fail(STATUS_INPUT, "%s: the product of its shape does not fit in 64 bits", reader->where);
    }
    return STATUS_OK;
}

static status_t parse_offsets(const json_reader_t *reader, uint64_t data_start, uint64_t data_bytes,
                              safetensors_tensor_t *tensor) {
    const json_t *offsets;
    TRY(json_get_array(reader, "data_offsets", &offsets));
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return status_fail(STATUS_INPUT, "%s: \"data_offsets\" must be two whole numbers", reader->where);
    int64_t begin = (int64_t)json_integer_value(first), end = (int64_t)json_integer_value(last);
    if (begin < 0 || end < begin)
        return status_fail(STATUS_INPUT, "%s: its data offsets %" PRId64 " and %" PRId64 " are not a range",
                           reader->where, begin, end);
    if ((uint64_t)end > data_bytes)
        return status_fail(STATUS_INPUT,
                           "%s: its data ends at byte %" PRId64 ", but the file holds only %" PRIu64
                           " bytes of data. Is it truncated?",
                           reader->where, end, data_bytes);
    tensor->offset = data_start + (uint64_t)begin;
    tensor->bytes = (uint64_t)(end - begin);
    return STATUS_OK;
}

static status_t parse_tensor(const json_t *object, const char *where, uint64_t data_start, uint64_t data_bytes,
                             safetensors_tensor_t *tensor) {
    if (!json_is_object(object)) return status_fail(STATUS_INPUT, "%s: its description is not an object", where);
    const json_reader_t reader = {object, where, STATUS_INPUT};
    const char *dtype;
    TRY(json_get_string(&reader, "dtype", &dtype));
    tensor->dtype = dtype_from_name(dtype);
    uint64_t n_items, bytes;
    TRY(parse_shape(&reader, tensor, &n_items));
    TRY(parse_offsets(&reader, data_start, data_bytes, tensor));
    if (tensor->dtype == DTYPE_N) return STATUS_OK;
    if (__builtin_mul_overflow(n_items, (uint64_t)dtype_bytes(tensor->dtype), &bytes) || bytes != tensor->bytes)
        return status_fail(STATUS_INPUT,
                           "%s: its data is %" PRIu64 " bytes long, but its shape holds %" PRIu64 " items of %s", where,
                           tensor->bytes, n_items, dtype);
    return STATUS_OK;
}

static int compare_offsets(const void *left, const void *right) {
    const safetensors_tensor_t *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static status_t check_overlap(const safetensors_header_t *header, const char *where) {
    for (size_t i = 1; i < header->n_tensors; i++) {
        const safetensors_tensor_t *before = &header->tensors[i - 1], *tensor = &header->tensors[i];
        if (before->offset + before->bytes > tensor->offset)
            return status_fail(STATUS_INPUT, "%s: the data of %s and of %s overlap", where, before->name, tensor->name);
    }
    return STATUS_OK;
}

/* Copies what is needed out of the JSON, which takes ten times the memory. */
static status_t fill_header(json_t *root, uint64_t data_start, uint64_t data_bytes, const char *where,
                            safetensors_header_t *header) {
    if (!json_is_object(root)) return status_fail(STATUS_INPUT, "%s: its header is not a JSON object", where);
    size_t names_bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) { names_bytes += strlen(key) + 1; }
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, json_object_size(root), sizeof *header->tensors, &memory));
    header->tensors = memory;
    TRY(memory_alloc(MEMORY_OTHER, names_bytes, 1, &memory));
    header->names = memory;

    char *name = header->names;
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) continue;
        char tensor_where[1024];
        snprintf(tensor_where, sizeof tensor_where, "%s: tensor %s", where, key);
        safetensors_tensor_t *tensor = &header->tensors[header->n_tensors];
        TRY(parse_tensor(value, tensor_where, data_start, data_bytes, tensor));
        size_t length = strlen(key) + 1;
        memcpy(name, key, length);
        tensor->name = name;
        name += length;
        header->n_tensors++;
    }
    qsort(header->tensors, header->n_tensors, sizeof *header->tensors, compare_offsets);
    return check_overlap(header, where);
}

status_t safetensors_parse(const char *text, size_t text_bytes, uint64_t file_bytes, const char *where,
                           safetensors_header_t *header) {
    json_t *root;
    TRY(json_read_text(text, text_bytes, where, &root));
    safetensors_header_t parsed = {.file_bytes = file_bytes, .digest = hash_xxh3(text, text_bytes)};
    uint64_t data_start = SAFETENSORS_LENGTH_BYTES + text_bytes;
    status_t status = data_start <= file_bytes ? fill_header(root, data_start, file_bytes - data_start, where, &parsed)
                                               : status_fail(STATUS_INPUT, "%s is shorter than its header", where);
    json_decref(root);
    if (status != STATUS_OK) {
        safetensors_free(&parsed);
        return status;
    }
    *header = parsed;
    return STATUS_OK;
}

static status_t read_header(int fd, const char *path, safetensors_header_t *header) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return status_fail(STATUS_INPUT, "%s is not a regular file", path);
    uint64_t file_bytes = (uint64_t)info.st_size;
    unsigned char length[SAFETENSORS_LENGTH_BYTES];
    if (file_bytes < sizeof length)
        return status_fail(STATUS_INPUT, "%s is not a safetensors file: it has %" PRIu64 " bytes", path, file_bytes);
    TRY(file_read_at(fd, path, length, sizeof length, 0));
    uint64_t text_bytes = 0;
    for (int i = SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--)
        text_bytes = text_bytes << 8 | length[i];
    if (text_bytes > SAFETENSORS_MAX_HEADER_BYTES || text_bytes > file_bytes - sizeof length)
        return status_fail(STATUS_INPUT,
                           "%s is truncated or not a safetensors file: its header would be %" PRIu64
                           " bytes long, the file has %" PRIu64,
                           path, text_bytes, file_bytes);
    void *text;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)text_bytes, 1, &text));
    status_t status = file_read_at(fd, path, text, (size_t)text_bytes, sizeof length);
    if (status == STATUS_OK) status = safetensors_parse(text, (size_t)text_bytes, file_bytes, path, header);
    memory_free(text);
    return status;
}

status_t safetensors_read(const char *path, safetensors_header_t *header) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status_fail(STATUS_INPUT, "cannot open %s: %s", path, strerror(errno));
    status_t status = read_header(fd, path, header);
    close(fd);
    return status;
}

void safetensors_free(safetensors_header_t *header) {
    memory_free(header->tensors);
    memory_free(header->names);
    *header = (safetensors_header_t){0};
}
