#include "trace/run_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/h5.h"
#include "base/memory.h"
#include "trace/provenance.h"

enum {
    MAX_RANKS = 65536,
    /* Deflate, the best that a repacked file may have, does not shrink further. A dataset that claims more than this
     * times the file is damaged, and no memory is asked for it. */
    MAX_SHRINK = 1100
};

typedef struct source {
    const char *path;
    hid_t file;
    uint64_t file_bytes;
} source_t;

static status_t open_dataset(const source_t *source, const char *name, hid_t *dataset) {
    *dataset = H5Dopen2(source->file, name, H5P_DEFAULT);
    if (*dataset >= 0) return STATUS_OK;
    return status_fail(STATUS_INPUT, "%s: %s is missing or damaged", source->path, name);
}

static bool has_object(const source_t *source, const char *name) {
    htri_t exists = H5Lexists(source->file, name, H5P_DEFAULT);
    return exists > 0;
}

/* Reads a dataset [n_rows, n_columns], or [n_rows] if n_columns is 0, converted to `type`. The caller frees `*data`. */
static status_t read_table(const source_t *source, const char *name, hid_t type, size_t n_columns, void **data,
                           size_t *n_rows) {
    hid_t dataset;
    TRY(open_dataset(source, name, &dataset));
    hsize_t dims[H5S_MAX_RANK] = {0};
    hid_t space = H5Dget_space(dataset);
    int n_dims = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dims, NULL);
    if (space >= 0) H5Sclose(space);

    status_t status = STATUS_OK;
    void *memory = NULL;
    size_t row_items = n_columns ? n_columns : 1, row_bytes;
    if (n_dims != (n_columns ? 2 : 1) || (n_columns && dims[1] != n_columns)) {
        status = status_fail(STATUS_INPUT, "%s: %s has the wrong shape", source->path, name);
        goto done;
    }
    TRY_GOTO(memory_product(H5Tget_size(type), row_items, &row_bytes), done);
    if (dims[0] > MAX_SHRINK * source->file_bytes / row_bytes) {
        status = status_fail(STATUS_INPUT, "%s: %s claims more rows than the file can hold", source->path, name);
        goto done;
    }
    TRY_GOTO(memory_alloc(MEMORY_OTHER, dims[0], row_bytes, &memory), done);
    if (dims[0] && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, memory) < 0) {
        status =
            status_fail(STATUS_INPUT, "%s: %s cannot be read: it is damaged or of another type", source->path, name);
        memory_free(memory);
        goto done;
    }
    *data = memory;
    *n_rows = dims[0];

done:
    H5Dclose(dataset);
    return status;
}

/* Reads a scalar text of either length kind. */
static status_t read_text(const source_t *source, const char *name, char **text, size_t *text_bytes) {
    if (!has_object(source, name)) return STATUS_OK;
    hid_t dataset;
    TRY(open_dataset(source, name, &dataset));
    hid_t type = H5Dget_type(dataset);
    size_t bytes = type < 0 ? 0 : H5Tget_size(type);
    status_t status = STATUS_OK;
    void *memory = NULL;
    if (type < 0 || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 || bytes > source->file_bytes) {
        status = status_fail(STATUS_INPUT, "%s: %s is not a text of fixed length", source->path, name);
        goto done;
    }
    TRY_GOTO(memory_alloc(MEMORY_OTHER, bytes + 1, 1, &memory), done);
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, memory) < 0) {
        memory_free(memory);
        status = h5_fail(STATUS_INPUT, "read", source->path);
        goto done;
    }
    *text = memory;
    /* An empty text is stored as one NUL. */
    *text_bytes = bytes == 1 && **text == '\0' ? 0 : bytes;

done:
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    return status;
}

static status_t read_attributes(const source_t *source, run_record_t *record) {
    const struct {
        const char *name;
        char **text;
    } texts[] = {
        {"command_line", &record->command_line},
        {"effective_config", &record->effective_config},
        {"model_digest", &record->model_digest},
        {"git_commit", &record->git_commit},
        {"host", &record->host},
        {"backend", &record->backend},
        {"gpus", &record->gpus},
        {"driver_version", &record->driver_version},
        {"cuda_version", &record->cuda_version},
        {"nccl_version", &record->nccl_version},
        {"mpi_version", &record->mpi_version},
        {"hdf5_version", &record->hdf5_version},
        {"start_time", &record->start_time},
    };
    const struct {
        const char *name;
        char **text;
    } endings[] = {
        {"end_time", &record->end_time},
        {"stop_reason", &record->stop_reason},
        {"token_hash", &record->token_hash},
    };
    int64_t complete;
    TRY(h5_get_int(source->file, "tp_size", source->path, &record->n_ranks));
    TRY(h5_get_int(source->file, "pid", source->path, &record->pid));
    TRY(h5_get_int(source->file, "complete", source->path, &complete));
    if (record->n_ranks < 1 || record->n_ranks > MAX_RANKS)
        return status_fail(STATUS_INPUT, "%s: tp_size is %" PRId64, source->path, record->n_ranks);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        TRY(h5_get_text(source->file, texts[i].name, source->path, texts[i].text));
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (H5Aexists(source->file, endings[i].name) > 0)
            TRY(h5_get_text(source->file, endings[i].name, source->path, endings[i].text));

    char host[PROVENANCE_TEXT_BYTES];
    provenance_host(host);
    if (complete)
        record->state = RUN_COMPLETE;
    else if (!record->is_open_for_write)
        record->state = RUN_STOPPED;
    else if (strcmp(host, record->host) != 0)
        record->state = RUN_ELSEWHERE;
    else
        record->state = kill((pid_t)record->pid, 0) == 0 || errno == EPERM ? RUN_RUNNING : RUN_ABANDONED;
    return STATUS_OK;
}

/* Reads a table of one row a step; n_steps becomes the smallest number of rows seen. */
static status_t read_steps(const source_t *source, const char *name, hid_t type, size_t n_columns, void *data,
                           size_t *n_steps) {
    void *rows;
    size_t n_rows;
    TRY(read_table(source, name, type, n_columns, &rows, &n_rows));
    memcpy(data, &rows, sizeof rows);
    if (n_rows < *n_steps) *n_steps = n_rows;
    return STATUS_OK;
}

/* Files of earlier versions of galvani have none. */
static status_t read_floor(const source_t *source, run_record_t *record) {
    for (int group = 0; group < OP_N_GROUPS; group++) {
        char name[64];
        snprintf(name, sizeof name, "/decomposition/%s", run_part_name(group));
        hid_t dataset;
        TRY(open_dataset(source, name, &dataset));
        status_t status = H5Aexists(dataset, "floor_bytes") > 0
                              ? h5_get_int(dataset, "floor_bytes", source->path, &record->floor_bytes[group])
                              : STATUS_OK;
        H5Dclose(dataset);
        TRY(status);
    }
    if (H5Aexists(source->file, "bytes_per_s") <= 0) return STATUS_OK;
    return h5_get_int(source->file, "bytes_per_s", source->path, &record->bytes_per_s);
}

static status_t read_all_steps(const source_t *source, run_record_t *record) {
    size_t n_ranks = (size_t)record->n_ranks, n = SIZE_MAX;
    TRY(read_steps(source, "/tokens/generated", H5T_NATIVE_INT32, 0, &record->generated, &n));
    TRY(read_steps(source, "/steps/start_ns", H5T_NATIVE_INT64, 0, &record->start_ns, &n));
    TRY(read_steps(source, "/steps/wall_ns", H5T_NATIVE_INT64, 0, &record->wall_ns, &n));
    TRY(read_steps(source, "/steps/host_gap_ns", H5T_NATIVE_INT64, 0, &record->host_gap_ns, &n));
    TRY(read_steps(source, "/steps/device_ns", H5T_NATIVE_INT64, n_ranks, &record->device_ns, &n));
    for (int part = 0; part < RUN_N_PARTS; part++) {
        char name[64];
        snprintf(name, sizeof name, "/decomposition/%s", run_part_name(part));
        TRY(read_steps(source, name, H5T_NATIVE_FLOAT, n_ranks, &record->part_ms[part], &n));
    }
    record->n_steps = n;
    return STATUS_OK;
}

/* Width of the widest text of /routes, 0 if one of its three members is not a text. */
static size_t route_width(hid_t type) {
    size_t width = 0;
    if (H5Tget_class(type) != H5T_COMPOUND || H5Tget_nmembers(type) != 3) return 0;
    for (unsigned i = 0; i < 3; i++) {
        hid_t member = H5Tget_member_type(type, i);
        bool is_text = H5Tget_class(member) == H5T_STRING && H5Tis_variable_str(member) == 0;
        size_t bytes = H5Tget_size(member);
        H5Tclose(member);
        if (!is_text || bytes > UINT16_MAX) return 0;
        if (bytes > width) width = bytes;
    }
    return width;
}

static status_t read_routes(const source_t *source, run_record_t *record) {
    hid_t dataset;
    TRY(open_dataset(source, "/routes", &dataset));
    hid_t file_type = H5Dget_type(dataset);
    size_t width = route_width(file_type);
    H5Tclose(file_type);
    H5Dclose(dataset);
    if (width == 0) return status_fail(STATUS_INPUT, "%s: /routes is not a table of three texts", source->path);

    /* One byte more than the widest, so that every text ends. */
    width++;
    hid_t text = run_text_type(width), type = H5Tcreate(H5T_COMPOUND, 3 * width);
    H5Tinsert(type, "name", 0, text);
    H5Tinsert(type, "chosen", width, text);
    H5Tinsert(type, "reason", 2 * width, text);
    void *texts = NULL, *routes;
    status_t status = read_table(source, "/routes", type, 0, &texts, &record->n_routes);
    H5Tclose(text);
    H5Tclose(type);
    TRY(status);
    record->route_texts = texts;
    TRY(memory_alloc(MEMORY_OTHER, record->n_routes, sizeof(run_route_t), &routes));
    record->routes = routes;
    for (size_t i = 0; i < record->n_routes; i++) {
        const char *row = record->route_texts + i * 3 * width;
        record->routes[i] = (run_route_t){.name = row, .chosen = row + width, .reason = row + 2 * width};
    }
    return STATUS_OK;
}

/* Reads a compound table and closes its type. */
static status_t read_compound(const source_t *source, const char *name, hid_t type, size_t n_columns, void *data,
                              size_t *n_rows) {
    void *rows = NULL;
    status_t status = read_table(source, name, type, n_columns, &rows, n_rows);
    H5Tclose(type);
    if (status == STATUS_OK) memcpy(data, &rows, sizeof rows);
    return status;
}

static status_t read_clocks(const source_t *source, const char *name, const run_record_t *record,
                            clock_offset_t **clocks) {
    size_t n_rows;
    if (!has_object(source, "/clocks") || !has_object(source, name)) return STATUS_OK;
    TRY(read_compound(source, name, run_clock_type(), 0, clocks, &n_rows));
    if (n_rows == (size_t)record->n_ranks) return STATUS_OK;
    return status_fail(STATUS_INPUT, "%s: %s has %zu rows, but there are %" PRId64 " ranks", source->path, name, n_rows,
                       record->n_ranks);
}

/* The writer knows a clock's offset at the start alone. What the offset has grown by at the end has come evenly. */
static void correct_drift(run_record_t *record) {
    if (!record->clocks || !record->clocks_end || record->n_steps == 0) return;
    size_t last = record->n_steps - 1;
    double length_ns = (double)(record->start_ns[last] + record->wall_ns[last]);
    for (size_t i = 0; i < record->n_ops; i++) {
        run_op_t *op = &record->ops[i];
        if (op->rank < 0 || op->rank >= record->n_ranks || !(length_ns > 0)) continue;
        double drift_ns = (double)(record->clocks_end[op->rank].offset_ns - record->clocks[op->rank].offset_ns);
        op->start_ns -= (int64_t)(drift_ns * ((double)op->start_ns / length_ns));
    }
}

static status_t read_content(const source_t *source, bool with_ops, run_record_t *record) {
    TRY(read_attributes(source, record));
    void *prompt;
    TRY(read_table(source, "/tokens/prompt", H5T_NATIVE_INT32, 0, &prompt, &record->n_prompt));
    record->prompt = prompt;
    TRY(read_text(source, "/text/prompt", &record->prompt_text, &record->prompt_text_bytes));
    TRY(read_text(source, "/text/generated", &record->text, &record->text_bytes));
    TRY(read_all_steps(source, record));
    TRY(read_floor(source, record));
    size_t n_ranks = (size_t)record->n_ranks, n_rows;
    TRY(read_compound(source, "/sampling/pairs", run_pair_type(), n_ranks, &record->pairs, &record->n_pairs));
    if (record->n_pairs > record->n_steps) record->n_pairs = record->n_steps;
    if (record->state == RUN_COMPLETE) {
        TRY(read_compound(source, "/memory", run_memory_type(), 0, &record->memory, &n_rows));
        if (n_rows != n_ranks)
            return status_fail(STATUS_INPUT, "%s: /memory has %zu rows, but there are %zu ranks", source->path, n_rows,
                               n_ranks);
    }
    record->has_logits = has_object(source, "/sampling/logits");
    record->has_ops = has_object(source, "/ops");
    if (record->has_ops && with_ops) TRY(read_compound(source, "/ops", run_op_type(), 0, &record->ops, &record->n_ops));
    TRY(read_clocks(source, "/clocks/start", record, &record->clocks));
    TRY(read_clocks(source, "/clocks/end", record, &record->clocks_end));
    correct_drift(record);
    return read_routes(source, record);
}

/* Checks that an open HDF5 file is a run file of a version that is known here. */
static status_t check_format(const source_t *source, int64_t *format_version) {
    char *format;
    TRY(h5_get_text(source->file, "format", source->path, &format));
    bool is_run = strcmp(format, RUN_FORMAT) == 0;
    memory_free(format);
    if (!is_run) return status_fail(STATUS_INPUT, "%s is not a run file (its format is another)", source->path);
    TRY(h5_get_int(source->file, "format_version", source->path, format_version));
    if (*format_version != RUN_FORMAT_VERSION)
        return status_fail(STATUS_INPUT, "%s has format_version %" PRId64 ", but this program reads version %d",
                           source->path, *format_version, RUN_FORMAT_VERSION);
    return STATUS_OK;
}

status_t run_record_load(const char *path, bool with_ops, run_record_t **record) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(run_record_t), &memory));
    run_record_t *loaded = memory;
    source_t source = {.path = path, .file = H5I_INVALID_HID};
    struct stat info;
    status_t status = h5_open_for_read(path, &source.file, &loaded->is_open_for_write);
    if (status == STATUS_OK) {
        source.file_bytes = stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
        status = check_format(&source, &loaded->format_version);
        if (status == STATUS_OK) status = read_content(&source, with_ops, loaded);
        H5Fclose(source.file);
    }
    if (status != STATUS_OK) {
        run_record_free(loaded);
        return status;
    }
    *record = loaded;
    return STATUS_OK;
}

void run_record_free(run_record_t *record) {
    if (!record) return;
    char *texts[] = {record->command_line, record->effective_config,
                     record->model_digest, record->git_commit,
                     record->host,         record->backend,
                     record->gpus,         record->driver_version,
                     record->cuda_version, record->nccl_version,
                     record->mpi_version,  record->hdf5_version,
                     record->start_time,   record->end_time,
                     record->stop_reason,  record->token_hash,
                     record->prompt_text,  record->text,
                     record->route_texts};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        memory_free(texts[i]);
    for (int part = 0; part < RUN_N_PARTS; part++)
        memory_free(record->part_ms[part]);
    void *tables[] = {record->prompt,      record->generated, record->start_ns, record->wall_ns,
                      record->host_gap_ns, record->device_ns, record->pairs,    record->memory,
                      record->routes,      record->ops,       record->clocks,   record->clocks_end};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        memory_free(tables[i]);
    memory_free(record);
}

const char *run_state_text(run_state_t state) {
    static const char *const texts[] = {
        [RUN_COMPLETE] = "complete",
        [RUN_RUNNING] = "being written",
        [RUN_STOPPED] = "ended early, closed by its writer",
        [RUN_ABANDONED] = "ended early, its writer died",
        [RUN_ELSEWHERE] = "not closed; its writer runs or died on another host",
    };
    return texts[state];
}

bool run_file_is_complete(const char *path) {
    source_t source = {.path = path};
    int64_t version, complete = 0;
    char *reason = NULL;
    status_t status = h5_open_for_read(path, &source.file, NULL);
    if (status == STATUS_OK) {
        status = check_format(&source, &version);
        if (status == STATUS_OK) status = h5_get_int(source.file, "complete", path, &complete);
        if (status == STATUS_OK && complete) status = h5_get_text(source.file, "stop_reason", path, &reason);
        H5Fclose(source.file);
    }
    bool is_whole = status == STATUS_OK && complete == 1 && strcmp(reason, "signal") != 0;
    memory_free(reason);
    /* That there is no such file is an answer, not a fault. */
    if (status != STATUS_OK) status_clear();
    return is_whole;
}
