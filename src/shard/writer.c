#include "shard/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/h5.h"
#include "base/hash.h"
#include "base/memory.h"
#include "shard/journal.h"
#include "shard/seal.h"
#include "shard/shard_file.h"

enum {
    STREAM_BUFFER_BYTES = 256 << 10, /* gathers small pieces; larger ones are written from where they are */
    VERIFY_BUFFER_BYTES = 512 << 10
};

struct shard_writer {
    shard_writer_args_t args;
    char path[SHARD_PATH_BYTES], partial[SHARD_PATH_BYTES], journal[SHARD_PATH_BYTES];
    int fd;            /* of the partial file */
    int lock_fd;       /* of the journal, locked against a second process */
    uint64_t *offsets; /* [n_tensors] of the data in the file */
    size_t *bytes;     /* [n_tensors] */
    journal_entry_t *entries;
    unsigned char *read_back; /* [VERIFY_BUFFER_BYTES] */
    pthread_mutex_t lock;     /* for the journal and the spare streams */
    shard_stream_t *spare;    /* ended streams, whose buffers the next ones take over */
};

struct shard_stream {
    shard_writer_t *writer;
    shard_stream_t *next_spare;
    size_t index;
    size_t written; /* bytes of the dataset in the file */
    size_t used;    /* bytes waiting in `buffer` */
    hash_xxh3_t *hash;
    unsigned char buffer[STREAM_BUFFER_BYTES];
};

static status_t set_paths(const shard_writer_args_t *args, shard_writer_t *writer) {
    TRY(shard_file_path(args->directory, args->options->tp_rank, args->options->tp_size, writer->path));
    int n = snprintf(writer->partial, SHARD_PATH_BYTES, "%s.partial", writer->path);
    int m = snprintf(writer->journal, SHARD_PATH_BYTES, "%s.journal", writer->path);
    if (n >= SHARD_PATH_BYTES || m >= SHARD_PATH_BYTES)
        return status_fail(STATUS_USAGE, "the path %s is too long", args->directory);
    return STATUS_OK;
}

/* Opens a whole file of an earlier run, unless its seal is broken. */
static status_t open_whole(const char *path, hid_t *file) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status_fail(STATUS_INPUT, "cannot read %s: %s", path, strerror(errno));
    status_t status = seal_check(fd, path);
    close(fd);
    TRY(status);
    return h5_open_for_read(path, file, NULL);
}

bool shard_writer_is_done(const shard_writer_args_t *args, uint64_t *content) {
    char path[SHARD_PATH_BYTES];
    hid_t file;
    if (shard_file_path(args->directory, args->options->tp_rank, args->options->tp_size, path) != STATUS_OK ||
        open_whole(path, &file) != STATUS_OK) {
        status_clear();
        return false;
    }
    char *conversion = NULL, *text = NULL;
    bool done = h5_get_text(file, "conversion", path, &conversion) == STATUS_OK &&
                h5_get_text(file, "source_content", path, &text) == STATUS_OK &&
                strcmp(conversion, args->conversion) == 0 && sscanf(text, "%16" SCNx64, content) == 1;
    memory_free(conversion);
    memory_free(text);
    H5Fclose(file);
    if (!done) status_clear();
    return done;
}

/* Data of any size begins at a multiple of SHARD_ALIGNMENT. The format of HDF5 1.8 and later has checksums on its own
 * structures, so that damage to them is found. */
static hid_t file_access_list(void) {
    hid_t list = h5_access_list(true);
    H5Pset_alignment(list, 1, SHARD_ALIGNMENT);
    H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
    return list;
}

static status_t put_note(hid_t dataset, const char *path, const schema_tensor_t *tensor, const shard_note_t *note) {
    if (h5_put_text(dataset, "dtype", dtype_name(tensor->dtype)) < 0 ||
        h5_put_text(dataset, "source_name", note->source_name) < 0 || h5_put_text(dataset, "slice", note->slice) < 0 ||
        h5_put_text(dataset, "quantization", shard_file_quantization(tensor)) < 0)
        return h5_fail(STATUS_DEVICE, "write", path);
    return STATUS_OK;
}

/* Creates a dataset whose space is reserved and not filled. */
static status_t create_dataset(hid_t file, const char *path, const schema_tensor_t *tensor, const shard_note_t *note) {
    hsize_t dims[SCHEMA_MAX_DIMS];
    for (int i = 0; i < tensor->n_dims; i++)
        dims[i] = (hsize_t)tensor->shape[i];
    hid_t links = H5Pcreate(H5P_LINK_CREATE), properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_layout(properties, H5D_CONTIGUOUS);
    H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(properties, false);
    hid_t space = H5Screate_simple(tensor->n_dims, dims, NULL), type = shard_file_type(tensor->dtype);
    hid_t dataset = H5Dcreate2(file, tensor->path, type, space, links, properties, H5P_DEFAULT);
    status_t status = dataset < 0 ? h5_fail(STATUS_DEVICE, "write", path) : put_note(dataset, path, tensor, note);
    if (dataset >= 0) H5Dclose(dataset);
    H5Tclose(type);
    H5Sclose(space);
    H5Pclose(properties);
    H5Pclose(links);
    return status;
}

static status_t put_root(hid_t file, const shard_writer_args_t *args, const char *path) {
    const schema_options_t *options = args->options;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"format", SHARD_FORMAT},
        {"model_type", args->model_type},
        {"config_json", args->config_json},
        {"source", args->source},
        {"created_by", args->created_by},
        {"conversion", args->conversion},
        {"expert_format", options->expert_format == EXPERTS_NVFP4 ? "nvfp4" : "f16"},
        {"ple_dtype", dtype_name(options->ple_dtype)},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (h5_put_text(file, texts[i].name, texts[i].text) < 0) return h5_fail(STATUS_DEVICE, "write", path);
    }
    if (h5_put_int(file, "format_version", SHARD_FORMAT_VERSION) < 0 ||
        h5_put_int(file, "tp_rank", options->tp_rank) < 0 || h5_put_int(file, "tp_size", options->tp_size) < 0)
        return h5_fail(STATUS_DEVICE, "write", path);
    return STATUS_OK;
}

/* Lays out the file: all datasets without their contents, all attributes but the digests. */
static status_t create_file(const shard_writer_t *writer) {
    h5_init();
    hid_t access = file_access_list();
    hid_t file = H5Fcreate(writer->partial, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    if (file < 0) return h5_fail(STATUS_DEVICE, "create", writer->partial);
    status_t status = put_root(file, &writer->args, writer->partial);
    for (size_t i = 0; status == STATUS_OK && i < writer->args.n_tensors; i++)
        status = create_dataset(file, writer->partial, &writer->args.tensors[i], &writer->args.notes[i]);
    if (H5Fclose(file) < 0 && status == STATUS_OK) status = h5_fail(STATUS_DEVICE, "write", writer->partial);
    return status;
}

static status_t locate_datasets(shard_writer_t *writer) {
    struct stat info;
    if (stat(writer->partial, &info) != 0)
        return status_fail(STATUS_DEVICE, "cannot read back %s: %s", writer->partial, strerror(errno));
    hid_t file;
    TRY(h5_open_for_read(writer->partial, &file, NULL));
    status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < writer->args.n_tensors; i++)
        status = shard_file_locate(file, writer->partial, &writer->args.tensors[i], (uint64_t)info.st_size,
                                   &writer->offsets[i], &writer->bytes[i]);
    H5Fclose(file);
    return status;
}

static status_t open_descriptor(shard_writer_t *writer) {
    writer->fd = open(writer->partial, O_RDWR | O_CLOEXEC);
    if (writer->fd < 0) return status_fail(STATUS_DEVICE, "cannot write %s: %s", writer->partial, strerror(errno));
    return STATUS_OK;
}

/* Takes the space now, where the file system can, so that a full disk shows before the work rather than after it. */
static status_t reserve_space(const shard_writer_t *writer) {
    struct stat info;
    struct statvfs disk;
    if (fstat(writer->fd, &info) != 0 || fallocate(writer->fd, 0, 0, info.st_size) == 0) return STATUS_OK;
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return STATUS_OK;
    int reason = errno;
    double available = fstatvfs(writer->fd, &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize : 0.0;
    return status_fail(STATUS_DEVICE, "cannot write %s: %s (%.1f MB needed, %.1f MB available)", writer->partial,
                       strerror(reason), (double)info.st_size / 1e6, available / 1e6);
}

static status_t digest_dataset(const shard_writer_t *writer, size_t index, uint64_t *xxh3) {
    hash_xxh3_t *hash;
    TRY(hash_xxh3_create(&hash));
    status_t status = STATUS_OK;
    for (size_t done = 0; status == STATUS_OK && done < writer->bytes[index];) {
        size_t left = writer->bytes[index] - done;
        size_t n = left < VERIFY_BUFFER_BYTES ? left : VERIFY_BUFFER_BYTES;
        status = file_read_at(writer->fd, writer->partial, writer->read_back, n, writer->offsets[index] + done);
        if (status == STATUS_OK) hash_xxh3_update(hash, writer->read_back, n);
        done += n;
    }
    *xxh3 = hash_xxh3_value(hash);
    hash_xxh3_destroy(hash);
    return status;
}

/* Goes on with the file of an earlier run. False if there is none that fits. */
static bool resume(shard_writer_t *writer, const char *conversion) {
    size_t n = writer->args.n_tensors;
    bool found = file_exists(writer->partial) && journal_read(writer->journal, conversion, writer->entries, n) &&
                 locate_datasets(writer) == STATUS_OK && open_descriptor(writer) == STATUS_OK;
    for (size_t i = 0; found && i < n; i++) {
        uint64_t xxh3;
        if (!writer->entries[i].is_done) continue;
        if (digest_dataset(writer, i, &xxh3) != STATUS_OK || xxh3 != writer->entries[i].xxh3)
            writer->entries[i] = (journal_entry_t){0};
    }
    status_clear();
    if (found) return true;
    memset(writer->entries, 0, n * sizeof *writer->entries);
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
    return false;
}

static status_t start(shard_writer_t *writer, const char *conversion) {
    TRY(journal_create(writer->journal, ""));
    TRY(create_file(writer));
    TRY(locate_datasets(writer));
    TRY(open_descriptor(writer));
    TRY(reserve_space(writer));
    return journal_create(writer->journal, conversion);
}

/* File systems without locks do without. */
static status_t lock(shard_writer_t *writer) {
    writer->lock_fd = open(writer->journal, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (writer->lock_fd < 0) return status_fail(STATUS_DEVICE, "cannot write %s: %s", writer->journal, strerror(errno));
    if (flock(writer->lock_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return STATUS_OK;
    close(writer->lock_fd);
    writer->lock_fd = -1;
    return status_fail(STATUS_DEVICE, "%s is being written by another process", writer->path);
}

static status_t open_writer(shard_writer_t *writer) {
    void *memory;
    size_t n = writer->args.n_tensors;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *writer->offsets, &memory));
    writer->offsets = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *writer->bytes, &memory));
    writer->bytes = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *writer->entries, &memory));
    writer->entries = memory;
    TRY(memory_alloc(MEMORY_OTHER, VERIFY_BUFFER_BYTES, 1, &memory));
    writer->read_back = memory;
    char conversion[128];
    snprintf(conversion, sizeof conversion, "%s %s", writer->args.conversion, writer->args.journal_kind);
    if (resume(writer, conversion)) return STATUS_OK;
    return start(writer, conversion);
}

status_t shard_writer_open(const shard_writer_args_t *args, shard_writer_t **writer) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(shard_writer_t), &memory));
    shard_writer_t *opened = memory;
    opened->args = *args;
    opened->fd = opened->lock_fd = -1;
    pthread_mutex_init(&opened->lock, NULL);
    status_t status = set_paths(args, opened);
    if (status == STATUS_OK) status = lock(opened);
    if (status != STATUS_OK) {
        memory_free(opened);
        return status;
    }
    status = open_writer(opened);
    if (status != STATUS_OK) {
        shard_writer_discard(opened);
        return status;
    }
    *writer = opened;
    return STATUS_OK;
}

void shard_writer_close(shard_writer_t *writer) {
    if (!writer) return;
    if (writer->fd >= 0) close(writer->fd);
    if (writer->lock_fd >= 0) close(writer->lock_fd);
    memory_free(writer->offsets);
    memory_free(writer->bytes);
    memory_free(writer->entries);
    memory_free(writer->read_back);
    while (writer->spare) {
        shard_stream_t *stream = writer->spare;
        writer->spare = stream->next_spare;
        memory_free(stream);
    }
    pthread_mutex_destroy(&writer->lock);
    memory_free(writer);
}

void shard_writer_discard(shard_writer_t *writer) {
    if (!writer) return;
    unlink(writer->partial);
    unlink(writer->journal);
    shard_writer_close(writer);
}

bool shard_writer_has(const shard_writer_t *writer, size_t index, uint64_t *content) {
    if (writer->entries[index].is_done) *content = writer->entries[index].content;
    return writer->entries[index].is_done;
}

/* A stream that is free, with nothing in it but its buffer. */
static status_t take_stream(shard_writer_t *writer, shard_stream_t **stream) {
    pthread_mutex_lock(&writer->lock);
    shard_stream_t *spare = writer->spare;
    if (spare) writer->spare = spare->next_spare;
    pthread_mutex_unlock(&writer->lock);
    void *memory = spare;
    if (!spare) TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(shard_stream_t), &memory));
    *stream = memory;
    return STATUS_OK;
}

static void give_back(shard_writer_t *writer, shard_stream_t *stream) {
    pthread_mutex_lock(&writer->lock);
    stream->next_spare = writer->spare;
    writer->spare = stream;
    pthread_mutex_unlock(&writer->lock);
}

status_t shard_stream_open(shard_writer_t *writer, size_t index, shard_stream_t **stream) {
    shard_stream_t *opened;
    TRY(take_stream(writer, &opened));
    opened->writer = writer;
    opened->index = index;
    opened->written = opened->used = 0;
    status_t status = hash_xxh3_create(&opened->hash);
    if (status != STATUS_OK) {
        give_back(writer, opened);
        return status;
    }
    *stream = opened;
    return STATUS_OK;
}

/* Writes at the stream's place in the file. */
static status_t put_bytes(shard_stream_t *stream, const void *data, size_t bytes) {
    shard_writer_t *writer = stream->writer;
    uint64_t offset = writer->offsets[stream->index] + stream->written;
    TRY(file_write_at(writer->fd, writer->partial, data, bytes, offset));
    stream->written += bytes;
    return STATUS_OK;
}

static status_t flush(shard_stream_t *stream) {
    size_t bytes = stream->used;
    stream->used = 0;
    return put_bytes(stream, stream->buffer, bytes);
}

status_t shard_stream_append(shard_stream_t *stream, const void *data, size_t bytes) {
    size_t total = stream->writer->bytes[stream->index];
    if (bytes > total - stream->written - stream->used)
        return status_fail(STATUS_INPUT, "dataset %s would get more than its %zu bytes",
                           stream->writer->args.tensors[stream->index].path, total);
    hash_xxh3_update(stream->hash, data, bytes);
    if (bytes > STREAM_BUFFER_BYTES - stream->used) TRY(flush(stream));
    if (bytes > STREAM_BUFFER_BYTES) return put_bytes(stream, data, bytes);
    memcpy(stream->buffer + stream->used, data, bytes);
    stream->used += bytes;
    return STATUS_OK;
}

static status_t end_dataset(shard_stream_t *stream, uint64_t content) {
    shard_writer_t *writer = stream->writer;
    TRY(flush(stream));
    if (stream->written != writer->bytes[stream->index])
        return status_fail(STATUS_INPUT, "dataset %s got %zu of its %zu bytes",
                           writer->args.tensors[stream->index].path, stream->written, writer->bytes[stream->index]);
    /* The disk starts now rather than at the final sync. */
    sync_file_range(writer->fd, (off_t)writer->offsets[stream->index], (off_t)stream->written, SYNC_FILE_RANGE_WRITE);
    journal_entry_t *entry = &writer->entries[stream->index];
    *entry = (journal_entry_t){true, hash_xxh3_value(stream->hash), content};
    pthread_mutex_lock(&writer->lock);
    status_t status = journal_append(writer->journal, stream->index, entry);
    pthread_mutex_unlock(&writer->lock);
    return status;
}

status_t shard_stream_close(shard_stream_t *stream, uint64_t content) {
    status_t status = end_dataset(stream, content);
    shard_stream_abandon(stream);
    return status;
}

void shard_stream_abandon(shard_stream_t *stream) {
    if (!stream) return;
    hash_xxh3_destroy(stream->hash);
    give_back(stream->writer, stream);
}

status_t shard_writer_verify(shard_writer_t *writer, size_t index) {
    uint64_t xxh3;
    TRY(digest_dataset(writer, index, &xxh3));
    if (xxh3 != writer->entries[index].xxh3)
        return status_fail(STATUS_DEVICE, "%s: dataset %s does not read back as it was written", writer->partial,
                           writer->args.tensors[index].path);
    return STATUS_OK;
}

static status_t put_digests(hid_t file, const shard_writer_t *writer, uint64_t content) {
    for (size_t i = 0; i < writer->args.n_tensors; i++) {
        char text[HASH_XXH3_TEXT_BYTES];
        hash_xxh3_text(writer->entries[i].xxh3, text);
        hid_t dataset = H5Dopen2(file, writer->args.tensors[i].path, H5P_DEFAULT);
        herr_t put = dataset < 0 ? -1 : h5_put_text(dataset, "xxh3_64", text);
        if (dataset >= 0) H5Dclose(dataset);
        if (put < 0) return h5_fail(STATUS_DEVICE, "write", writer->partial);
    }
    char text[HASH_XXH3_TEXT_BYTES], digest[HASH_SHA256_TEXT_BYTES];
    hash_xxh3_text(content, text);
    TRY(shard_file_model_digest(writer->args.config_json, writer->args.options->expert_format, content, digest));
    if (h5_put_text(file, "source_content", text) < 0 || h5_put_text(file, "model_digest", digest) < 0)
        return h5_fail(STATUS_DEVICE, "write", writer->partial);
    return STATUS_OK;
}

static status_t sync_path(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    bool synced = fd >= 0 && fsync(fd) == 0;
    int reason = errno;
    if (fd >= 0) close(fd);
    if (!synced) return status_fail(STATUS_DEVICE, "cannot sync %s: %s", path, strerror(reason));
    return STATUS_OK;
}

/* The datasets' own digests cover their bytes; the seal covers the rest of the file. */
static status_t seal(const shard_writer_t *writer) {
    size_t n = writer->args.n_tensors;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof(seal_range_t), &memory));
    seal_range_t *ranges = memory;
    for (size_t i = 0; i < n; i++)
        ranges[i] = (seal_range_t){.offset = writer->offsets[i], .bytes = writer->bytes[i]};
    status_t status = seal_write(writer->fd, writer->partial, ranges, n);
    memory_free(ranges);
    return status;
}

status_t shard_writer_finish(shard_writer_t *writer, uint64_t content) {
    /* A stop while HDF5 changes its structures may leave them torn, so from then on the file is not gone on with. The
     * data, which takes time, is synced before. */
    TRY(sync_path(writer->partial, O_RDWR));
    TRY(journal_create(writer->journal, ""));
    h5_init();
    hid_t access = file_access_list();
    hid_t file = H5Fopen(writer->partial, H5F_ACC_RDWR, access);
    H5Pclose(access);
    if (file < 0) return h5_fail(STATUS_DEVICE, "write", writer->partial);
    status_t status = put_digests(file, writer, content);
    if (H5Fclose(file) < 0 && status == STATUS_OK) status = h5_fail(STATUS_DEVICE, "write", writer->partial);
    TRY(status);
    TRY(seal(writer));
    TRY(sync_path(writer->partial, O_RDWR));
    if (rename(writer->partial, writer->path) != 0)
        return status_fail(STATUS_DEVICE, "cannot rename %s: %s", writer->partial, strerror(errno));
    unlink(writer->journal);
    return sync_path(writer->args.directory, O_RDONLY | O_DIRECTORY);
}
