#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

/* A checkpoint may have more files than a process may open. */
enum { MAX_OPEN_FILES = 64, PATH_BYTES = 4096 };

/* A file's descriptor, -1 while it is closed, and how many threads read from it now. */
typedef struct descriptor {
    int fd, n_users;
} descriptor_t;

struct checkpoint {
    char directory[PATH_BYTES];
    size_t n_files, n_tensors;
    checkpoint_file_t *files;
    safetensors_header_t *headers; /* [n_files] */
    checkpoint_tensor_t *tensors;
    pthread_mutex_t lock;      /* for what follows */
    descriptor_t *descriptors; /* [n_files] */
    size_t n_open;
};

status_t checkpoint_weight_map(const json_t *root, const char *where, const json_t **weight_map) {
    if (!json_is_object(root)) return status_fail(STATUS_INPUT, "%s is not a JSON object", where);
    const json_reader_t reader = {root, where, STATUS_INPUT};
    const json_t *map;
    TRY(json_get_object(&reader, "weight_map", &map));
    if (json_object_size(map) == 0) return status_fail(STATUS_INPUT, "%s lists no tensor", where);
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)map, name, file) {
        const char *text = json_string_value(file);
        if (!text || text[0] == '\0' || text[0] == '.' || strchr(text, '/'))
            return status_fail(STATUS_INPUT, "%s: tensor %s is not assigned to a file of this directory", where, name);
    }
    *weight_map = map;
    return STATUS_OK;
}

static int compare_file_names(const void *left, const void *right) {
    return strcmp(((const checkpoint_file_t *)left)->name, ((const checkpoint_file_t *)right)->name);
}

static int compare_tensor_names(const void *left, const void *right) {
    return strcmp(((const checkpoint_tensor_t *)left)->info->name, ((const checkpoint_tensor_t *)right)->info->name);
}

static status_t copy_text(const char *text, char **copy) {
    void *memory;
    size_t bytes = strlen(text) + 1;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    *copy = memcpy(memory, text, bytes);
    return STATUS_OK;
}

static status_t alloc_files(checkpoint_t *checkpoint, size_t n_files) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n_files, sizeof *checkpoint->files, &memory));
    checkpoint->files = memory;
    TRY(memory_alloc(MEMORY_OTHER, n_files, sizeof *checkpoint->headers, &memory));
    checkpoint->headers = memory;
    TRY(memory_alloc(MEMORY_OTHER, n_files, sizeof *checkpoint->descriptors, &memory));
    checkpoint->descriptors = memory;
    for (size_t i = 0; i < n_files; i++)
        checkpoint->descriptors[i].fd = -1;
    checkpoint->n_files = n_files;
    return STATUS_OK;
}

/* The distinct file names of the weight map, sorted. */
static status_t list_files(checkpoint_t *checkpoint, const json_t *weight_map) {
    json_t *distinct = json_object();
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)weight_map, name, file) { json_object_set(distinct, json_string_value(file), file); }
    status_t status;
    TRY_GOTO(alloc_files(checkpoint, json_object_size(distinct)), out);
    size_t i = 0;
    json_object_foreach(distinct, name, file) { TRY_GOTO(copy_text(name, &checkpoint->files[i++].name), out); }
    qsort(checkpoint->files, checkpoint->n_files, sizeof *checkpoint->files, compare_file_names);
out:
    json_decref(distinct);
    return status;
}

static status_t file_path(const checkpoint_t *checkpoint, size_t file, char path[PATH_BYTES]) {
    return file_join(checkpoint->directory, checkpoint->files[file].name, path, PATH_BYTES);
}

static status_t read_headers(checkpoint_t *checkpoint) {
    size_t n_tensors = 0;
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        checkpoint_file_t *file = &checkpoint->files[i];
        char path[PATH_BYTES];
        TRY(file_path(checkpoint, i, path));
        struct stat info;
        if (stat(path, &info) != 0)
            return status_fail(STATUS_INPUT, "%s is missing or cannot be read: %s", path, strerror(errno));
        TRY(safetensors_read(path, &checkpoint->headers[i]));
        file->bytes = checkpoint->headers[i].file_bytes;
        file->modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
        file->header_xxh3 = checkpoint->headers[i].digest;
        file->n_tensors = checkpoint->headers[i].n_tensors;
        n_tensors += file->n_tensors;
    }
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n_tensors, sizeof *checkpoint->tensors, &memory));
    checkpoint->tensors = memory;
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        for (size_t j = 0; j < checkpoint->headers[i].n_tensors; j++)
            checkpoint->tensors[checkpoint->n_tensors++] = (checkpoint_tensor_t){&checkpoint->headers[i].tensors[j], i};
    }
    qsort(checkpoint->tensors, n_tensors, sizeof *checkpoint->tensors, compare_tensor_names);
    for (size_t i = 1; i < n_tensors; i++) {
        const checkpoint_tensor_t *before = &checkpoint->tensors[i - 1], *tensor = &checkpoint->tensors[i];
        if (strcmp(before->info->name, tensor->info->name) == 0)
            return status_fail(STATUS_INPUT, "tensor %s is there twice, in %s and in %s", tensor->info->name,
                               checkpoint->files[before->file].name, checkpoint->files[tensor->file].name);
    }
    return STATUS_OK;
}

/* Every tensor of the index stands in its file, and the files hold no other. */
static status_t check_against_index(const checkpoint_t *checkpoint, const json_t *weight_map) {
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)weight_map, name, file) {
        const checkpoint_tensor_t *tensor = checkpoint_find(checkpoint, name);
        if (!tensor || strcmp(checkpoint->files[tensor->file].name, json_string_value(file)) != 0)
            return status_fail(STATUS_INPUT, "the index of %s places tensor %s in %s, which does not hold it",
                               checkpoint->directory, name, json_string_value(file));
    }
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        name = checkpoint->tensors[i].info->name;
        if (!json_object_get(weight_map, name))
            return status_fail(STATUS_INPUT, "%s of %s holds tensor %s, which the index does not list",
                               checkpoint->files[checkpoint->tensors[i].file].name, checkpoint->directory, name);
    }
    return STATUS_OK;
}

static status_t open_indexed(checkpoint_t *checkpoint, const char *index_path) {
    json_t *root;
    TRY(json_read_file(index_path, &root));
    const json_t *weight_map;
    status_t status;
    TRY_GOTO(checkpoint_weight_map(root, index_path, &weight_map), out);
    TRY_GOTO(list_files(checkpoint, weight_map), out);
    TRY_GOTO(read_headers(checkpoint), out);
    status = check_against_index(checkpoint, weight_map);
out:
    json_decref(root);
    return status;
}

static status_t open_files(checkpoint_t *checkpoint) {
    char path[PATH_BYTES];
    TRY(file_join(checkpoint->directory, "model.safetensors.index.json", path, sizeof path));
    if (file_exists(path)) return open_indexed(checkpoint, path);
    TRY(file_join(checkpoint->directory, "model.safetensors", path, sizeof path));
    if (!file_exists(path))
        return status_fail(STATUS_INPUT, "%s holds neither model.safetensors.index.json nor model.safetensors",
                           checkpoint->directory);
    TRY(alloc_files(checkpoint, 1));
    TRY(copy_text("model.safetensors", &checkpoint->files[0].name));
    return read_headers(checkpoint);
}

status_t checkpoint_open(const char *directory, checkpoint_t **checkpoint) {
    if (!file_is_directory(directory))
        return status_fail(STATUS_INPUT, "there is no checkpoint directory %s", directory);
    if (strlen(directory) >= PATH_BYTES) return status_fail(STATUS_USAGE, "the path %s is too long", directory);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(checkpoint_t), &memory));
    checkpoint_t *opened = memory;
    strcpy(opened->directory, directory);
    pthread_mutex_init(&opened->lock, NULL);
    status_t status = open_files(opened);
    if (status != STATUS_OK) {
        checkpoint_close(opened);
        return status;
    }
    *checkpoint = opened;
    return STATUS_OK;
}

/* Closes all files that no thread reads from. */
static void close_descriptors(checkpoint_t *checkpoint) {
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        descriptor_t *descriptor = &checkpoint->descriptors[i];
        if (descriptor->fd < 0 || descriptor->n_users > 0) continue;
        close(descriptor->fd);
        descriptor->fd = -1;
        checkpoint->n_open--;
    }
}

void checkpoint_close(checkpoint_t *checkpoint) {
    if (!checkpoint) return;
    if (checkpoint->descriptors) close_descriptors(checkpoint);
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        memory_free(checkpoint->files[i].name);
        safetensors_free(&checkpoint->headers[i]);
    }
    memory_free(checkpoint->files);
    memory_free(checkpoint->headers);
    memory_free(checkpoint->descriptors);
    memory_free(checkpoint->tensors);
    pthread_mutex_destroy(&checkpoint->lock);
    memory_free(checkpoint);
}

const char *checkpoint_directory(const checkpoint_t *checkpoint) { return checkpoint->directory; }

const checkpoint_file_t *checkpoint_files(const checkpoint_t *checkpoint, size_t *n_files) {
    *n_files = checkpoint->n_files;
    return checkpoint->files;
}

const checkpoint_tensor_t *checkpoint_tensors(const checkpoint_t *checkpoint, size_t *n_tensors) {
    *n_tensors = checkpoint->n_tensors;
    return checkpoint->tensors;
}

const checkpoint_tensor_t *checkpoint_find(const checkpoint_t *checkpoint, const char *name) {
    const safetensors_tensor_t wanted = {.name = name};
    const checkpoint_tensor_t key = {&wanted, 0};
    return bsearch(&key, checkpoint->tensors, checkpoint->n_tensors, sizeof key, compare_tensor_names);
}

/* Opens the file if need be; it stays open at least until release_file. */
static status_t acquire_file(checkpoint_t *checkpoint, size_t file, const char *path, int *fd) {
    status_t status = STATUS_OK;
    pthread_mutex_lock(&checkpoint->lock);
    descriptor_t *descriptor = &checkpoint->descriptors[file];
    if (descriptor->fd < 0) {
        if (checkpoint->n_open >= MAX_OPEN_FILES) close_descriptors(checkpoint);
        descriptor->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (descriptor->fd < 0)
            status = status_fail(STATUS_INPUT, "cannot open %s: %s", path, strerror(errno));
        else
            checkpoint->n_open++;
    }
    if (status == STATUS_OK) descriptor->n_users++;
    *fd = descriptor->fd;
    pthread_mutex_unlock(&checkpoint->lock);
    return status;
}

static void release_file(checkpoint_t *checkpoint, size_t file) {
    pthread_mutex_lock(&checkpoint->lock);
    checkpoint->descriptors[file].n_users--;
    pthread_mutex_unlock(&checkpoint->lock);
}

status_t checkpoint_read(checkpoint_t *checkpoint, const checkpoint_tensor_t *tensor, uint64_t offset, size_t bytes,
                         void *data) {
    char path[PATH_BYTES];
    int fd;
    TRY(file_path(checkpoint, tensor->file, path));
    TRY(acquire_file(checkpoint, tensor->file, path, &fd));
    status_t status = file_read_at(fd, path, data, bytes, tensor->info->offset + offset);
    release_file(checkpoint, tensor->file);
    return status;
}
