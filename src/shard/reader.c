#include "shard/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/h5.h"
#include "base/hash.h"
#include "base/memory.h"
#include "shard/piece_reader.h"
#include "shard/seal.h"
#include "shard/shard_file.h"

enum { VERIFY_BUFFER_BYTES = 512 << 10, N_READ_THREADS = 4 };

struct shard_reader {
    char path[SHARD_PATH_BYTES];
    int fd;
    shard_info_t info;
    char *config_json, *source, *created_by;
    schema_tensor_t *tensors;
    size_t n_tensors;
    uint64_t *offsets;      /* [n_tensors] */
    size_t *bytes;          /* [n_tensors] */
    uint64_t *digests;      /* [n_tensors] XXH3-64 */
    piece_reader_t *pieces; /* NULL until a tensor is streamed */
};

/* Why the file of this rank is not there: the directory may hold shards for another number of ranks. */
static status_t fail_missing(const char *directory, const char *path, int tp_size) {
    DIR *entries = opendir(directory);
    if (!entries) return status_fail(STATUS_INPUT, "there is no model directory %s", directory);
    int rank, other = 0, used;
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        int size;
        used = 0;
        if (sscanf(entry->d_name, "model.rank%dof%d.h5%n", &rank, &size, &used) == 2 && used > 0 &&
            entry->d_name[used] == '\0' && size != tp_size && size > other)
            other = size;
    }
    closedir(entries);
    if (other)
        return status_fail(STATUS_INPUT,
                           "%s is missing: %s holds a model for %d ranks, and this run has %d. Start it with "
                           "mpirun -np %d, or convert the checkpoint with galvani shard --tp %d",
                           path, directory, other, tp_size, other, tp_size);
    return status_fail(STATUS_INPUT, "%s is missing: galvani shard makes it from a checkpoint", path);
}

static status_t get_text_equal(hid_t file, const char *path, const char *name, const char *expected) {
    char *text;
    TRY(h5_get_text(file, name, path, &text));
    bool same = strcmp(text, expected) == 0;
    status_t status = STATUS_OK;
    if (!same)
        status = status_fail(STATUS_INPUT, "%s: its attribute %s is \"%s\", not \"%s\"", path, name, text, expected);
    memory_free(text);
    return status;
}

/* A text attribute that is one of two words; `*which` is 0 or 1. */
static status_t get_choice(hid_t file, const char *path, const char *name, const char *const words[2], int *which) {
    char *text;
    TRY(h5_get_text(file, name, path, &text));
    *which = strcmp(text, words[1]) == 0;
    status_t status = STATUS_OK;
    if (strcmp(text, words[*which]) != 0)
        status = status_fail(STATUS_INPUT, "%s: its attribute %s is \"%s\"", path, name, text);
    memory_free(text);
    return status;
}

static status_t check_format(hid_t file, const char *path) {
    TRY(get_text_equal(file, path, "format", SHARD_FORMAT));
    int64_t version;
    TRY(h5_get_int(file, "format_version", path, &version));
    if (version != SHARD_FORMAT_VERSION)
        return status_fail(STATUS_INPUT,
                           "%s has format version %" PRId64 "; this galvani reads version %d. Convert the checkpoint "
                           "again",
                           path, version, SHARD_FORMAT_VERSION);
    return STATUS_OK;
}

static status_t read_options(hid_t file, const char *path, int tp_rank, int tp_size, schema_options_t *options) {
    int64_t rank, size;
    TRY(h5_get_int(file, "tp_rank", path, &rank));
    TRY(h5_get_int(file, "tp_size", path, &size));
    if (rank != tp_rank || size != tp_size)
        return status_fail(STATUS_INPUT, "%s says that it is rank %" PRId64 " of %" PRId64, path, rank, size);
    static const char *const formats[2] = {"nvfp4", "f16"}, *const dtypes[2] = {"F8_E4M3", "BF16"};
    int is_f16, is_bf16;
    TRY(get_choice(file, path, "expert_format", formats, &is_f16));
    TRY(get_choice(file, path, "ple_dtype", dtypes, &is_bf16));
    options->tp_rank = tp_rank;
    options->tp_size = tp_size;
    options->expert_format = is_f16 ? EXPERTS_F16 : EXPERTS_NVFP4;
    options->ple_dtype = is_bf16 ? DTYPE_BF16 : DTYPE_F8_E4M3;
    return STATUS_OK;
}

/* The digest ties config, expert format and source together, so that none of them can be damaged unseen. */
static status_t read_digest(hid_t file, shard_reader_t *reader) {
    char *text, expected[HASH_SHA256_TEXT_BYTES];
    uint64_t content;
    TRY(h5_get_text(file, "source_content", reader->path, &text));
    bool is_number = sscanf(text, "%16" SCNx64, &content) == 1;
    memory_free(text);
    if (!is_number) return status_fail(STATUS_INPUT, "%s: its attribute source_content is no number", reader->path);
    TRY(shard_file_model_digest(reader->config_json, reader->info.options.expert_format, content, expected));
    TRY(h5_get_text(file, "model_digest", reader->path, &text));
    bool same = strcmp(text, expected) == 0;
    memory_free(text);
    if (!same) return status_fail(STATUS_INPUT, "%s is damaged: its attributes do not fit its digest", reader->path);
    strcpy(reader->info.model_digest, expected);
    return STATUS_OK;
}

static status_t read_attributes(hid_t file, int tp_rank, int tp_size, shard_reader_t *reader) {
    const char *path = reader->path;
    TRY(check_format(file, path));
    TRY(read_options(file, path, tp_rank, tp_size, &reader->info.options));
    TRY(h5_get_text(file, "config_json", path, &reader->config_json));
    TRY(h5_get_text(file, "source", path, &reader->source));
    TRY(h5_get_text(file, "created_by", path, &reader->created_by));
    TRY(read_digest(file, reader));
    reader->info.config_json = reader->config_json;
    reader->info.source = reader->source;
    reader->info.created_by = reader->created_by;

    char where[SHARD_PATH_BYTES + 32];
    snprintf(where, sizeof where, "%s: config_json", path);
    json_t *root;
    TRY(json_read_text(reader->config_json, strlen(reader->config_json), where, &root));
    status_t status = config_parse(root, where, STATUS_INPUT, &reader->info.config);
    json_decref(root);
    return status;
}

/* HDF5 gives the digest as text; other digits than 16 hexadecimal ones are damage. */
static status_t read_dataset_digest(hid_t file, const shard_reader_t *reader, size_t index, uint64_t *digest) {
    const char *dataset_path = reader->tensors[index].path;
    hid_t dataset = H5Dopen2(file, dataset_path, H5P_DEFAULT);
    if (dataset < 0) return h5_fail(STATUS_INPUT, "read", reader->path);
    char *text;
    status_t status = h5_get_text(dataset, "xxh3_64", reader->path, &text);
    H5Dclose(dataset);
    TRY(status);
    char again[HASH_XXH3_TEXT_BYTES] = "";
    if (sscanf(text, "%16" SCNx64, digest) == 1) hash_xxh3_text(*digest, again);
    bool same = strcmp(text, again) == 0;
    memory_free(text);
    if (!same) return status_fail(STATUS_INPUT, "%s: the digest of %s is damaged", reader->path, dataset_path);
    return STATUS_OK;
}

static status_t read_tensors(hid_t file, shard_reader_t *reader) {
    TRY(schema_check(&reader->info.config, &reader->info.options, STATUS_INPUT));
    TRY(schema_build(&reader->info.config, &reader->info.options, &reader->tensors, &reader->n_tensors));
    void *memory;
    size_t n = reader->n_tensors;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *reader->offsets, &memory));
    reader->offsets = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *reader->bytes, &memory));
    reader->bytes = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *reader->digests, &memory));
    reader->digests = memory;
    struct stat info;
    if (fstat(reader->fd, &info) != 0)
        return status_fail(STATUS_INPUT, "cannot read %s: %s", reader->path, strerror(errno));
    for (size_t i = 0; i < n; i++) {
        TRY(shard_file_locate(file, reader->path, &reader->tensors[i], (uint64_t)info.st_size, &reader->offsets[i],
                              &reader->bytes[i]));
        TRY(read_dataset_digest(file, reader, i, &reader->digests[i]));
    }
    return STATUS_OK;
}

static status_t open_reader(const char *directory, int tp_rank, int tp_size, shard_reader_t *reader) {
    TRY(shard_file_path(directory, tp_rank, tp_size, reader->path));
    if (!file_exists(reader->path)) return fail_missing(directory, reader->path, tp_size);
    reader->fd = open(reader->path, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0) return status_fail(STATUS_INPUT, "cannot read %s: %s", reader->path, strerror(errno));
    TRY(seal_check(reader->fd, reader->path));
    hid_t file;
    TRY(h5_open_for_read(reader->path, &file, NULL));
    status_t status = read_attributes(file, tp_rank, tp_size, reader);
    if (status == STATUS_OK) status = read_tensors(file, reader);
    H5Fclose(file);
    return status;
}

status_t shard_reader_open(const char *directory, int tp_rank, int tp_size, shard_reader_t **reader) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(shard_reader_t), &memory));
    shard_reader_t *opened = memory;
    opened->fd = -1;
    status_t status = open_reader(directory, tp_rank, tp_size, opened);
    if (status != STATUS_OK) {
        shard_reader_close(opened);
        return status;
    }
    *reader = opened;
    return STATUS_OK;
}

void shard_reader_close(shard_reader_t *reader) {
    if (!reader) return;
    piece_reader_destroy(reader->pieces);
    if (reader->fd >= 0) close(reader->fd);
    memory_free(reader->config_json);
    memory_free(reader->source);
    memory_free(reader->created_by);
    memory_free(reader->tensors);
    memory_free(reader->offsets);
    memory_free(reader->bytes);
    memory_free(reader->digests);
    memory_free(reader);
}

const shard_info_t *shard_reader_info(const shard_reader_t *reader) { return &reader->info; }

const schema_tensor_t *shard_reader_tensors(const shard_reader_t *reader, size_t *n_tensors) {
    *n_tensors = reader->n_tensors;
    return reader->tensors;
}

static status_t check_digest(const shard_reader_t *reader, size_t index, uint64_t digest) {
    if (digest == reader->digests[index]) return STATUS_OK;
    return status_fail(STATUS_INPUT,
                       "%s is damaged: dataset %s does not fit its digest. Convert the checkpoint "
                       "again",
                       reader->path, reader->tensors[index].path);
}

/* Reads tensor `index` in pieces of `step` bytes and checks its digest. Piece i goes to data + i * step, or each to the
 * same place if `data_stays`. */
static status_t read_pieces(shard_reader_t *reader, size_t index, unsigned char *data, size_t step, bool data_stays) {
    hash_xxh3_t *hash;
    TRY(hash_xxh3_create(&hash));
    status_t status = STATUS_OK;
    for (size_t done = 0; status == STATUS_OK && done < reader->bytes[index];) {
        size_t left = reader->bytes[index] - done, n = left < step ? left : step;
        unsigned char *piece = data_stays ? data : data + done;
        status = file_read_at(reader->fd, reader->path, piece, n, reader->offsets[index] + done);
        if (status == STATUS_OK) hash_xxh3_update(hash, piece, n);
        done += n;
    }
    if (status == STATUS_OK) status = check_digest(reader, index, hash_xxh3_value(hash));
    hash_xxh3_destroy(hash);
    return status;
}

status_t shard_reader_read(shard_reader_t *reader, size_t index, void *data) {
    return read_pieces(reader, index, data, VERIFY_BUFFER_BYTES, false);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Keeps n_pieces in work. After a failure nothing is submitted, but all is waited for. */
static status_t stream_pieces(shard_reader_t *reader, size_t index, const shard_sink_t *sink, hash_xxh3_t *hash) {
    size_t bytes = reader->bytes[index], step = sink->piece_bytes, submitted = 0, done = 0;
    void *memory[PIECE_READER_MOST];
    int first = 0, n = 0; /* the oldest in work, and how many */
    status_t status = STATUS_OK;
    while (status == STATUS_OK ? done < bytes : n > 0) {
        while (status == STATUS_OK && n < sink->n_pieces && submitted < bytes) {
            size_t piece = smaller(step, bytes - submitted);
            void **place = &memory[(first + n) % PIECE_READER_MOST];
            status = sink->place(sink->context, submitted, place);
            if (status != STATUS_OK) break;
            const piece_t next = {
                .memory = *place, .bytes = piece, .offset = reader->offsets[index] + submitted, .hash = hash};
            piece_reader_submit(reader->pieces, &next);
            submitted += piece;
            n++;
        }
        if (n == 0) continue;
        status_t read = piece_reader_wait(reader->pieces);
        size_t piece = smaller(step, bytes - done);
        if (status == STATUS_OK) status = read;
        if (status == STATUS_OK && sink->take) status = sink->take(sink->context, done, piece, memory[first]);
        done += piece;
        first = (first + 1) % PIECE_READER_MOST;
        n--;
    }
    return status == STATUS_OK ? check_digest(reader, index, hash_xxh3_value(hash)) : status;
}

status_t shard_reader_stream(shard_reader_t *reader, size_t index, const shard_sink_t *sink) {
    hash_xxh3_t *hash;
    if (!reader->pieces) TRY(piece_reader_create(reader->fd, reader->path, N_READ_THREADS, &reader->pieces));
    TRY(hash_xxh3_create(&hash));
    status_t status = stream_pieces(reader, index, sink, hash);
    hash_xxh3_destroy(hash);
    return status;
}

status_t shard_reader_verify(shard_reader_t *reader) {
    void *buffer;
    TRY(memory_alloc(MEMORY_OTHER, VERIFY_BUFFER_BYTES, 1, &buffer));
    status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < reader->n_tensors; i++)
        status = read_pieces(reader, i, buffer, VERIFY_BUFFER_BYTES, true);
    memory_free(buffer);
    return status;
}
