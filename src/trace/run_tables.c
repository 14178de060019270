#include "trace/run_tables.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/h5.h"
#include "base/hash.h"
#include "base/memory.h"
#include "trace/column.h"
#include "trace/run_header.h"
#include "trace/run_types.h"

enum {
    /* Most that chunk indices, headers and what is written at the end can take, texts aside. */
    METADATA_BYTES = 1 << 18
};

/* The tables that grow by a row a step. The token comes last, so that a flush writes it after all that belongs to it.
 */
typedef enum run_column {
    COLUMN_START,
    COLUMN_WALL,
    COLUMN_DEVICE,
    COLUMN_HOST_GAP,
    COLUMN_PAIRS,
    COLUMN_LOGITS,
    COLUMN_TOP_LOGPROBS,
    COLUMN_TOP_TOKENS,
    COLUMN_PARTS,
    COLUMN_OPS = COLUMN_PARTS + RUN_N_PARTS,
    COLUMN_TOKEN,
    N_COLUMNS
} run_column_t;

struct run_tables {
    char path[PATH_MAX];
    hid_t file;
    int n_ranks;
    bool has_logits, has_ops;
    bool has_failed; /* takes no more rows */
    bool is_broken;  /* HDF5 met the failure, so closing could make the file worse */
    int n_top_logprobs;
    uint64_t flushed_bytes;   /* size of the file after the last flush */
    uint64_t unflushed_bytes; /* most by which it can have grown since */
    uint64_t reserved_bytes;  /* of disk space, from the file's beginning */
    hid_t pair_type, op_type;
    column_t columns[N_COLUMNS];
    float *part_ms; /* [n_ranks] */
};

static status_t create_columns(run_tables_t *file, const run_file_args_t *args) {
    hsize_t n_ranks = (hsize_t)args->n_ranks, vocab_size = (hsize_t)args->vocab_size;
    hsize_t n_top = (hsize_t)args->n_top_logprobs;
    const struct {
        run_column_t column;
        bool is_wanted;
        column_args_t args;
    } tables[] = {
        {COLUMN_START, true, {"/steps/start_ns", H5T_NATIVE_INT64, 0, {0}, "step", "ns", 0}},
        {COLUMN_WALL, true, {"/steps/wall_ns", H5T_NATIVE_INT64, 0, {0}, "step", "ns", 0}},
        {COLUMN_DEVICE, true, {"/steps/device_ns", H5T_NATIVE_INT64, 1, {n_ranks}, "step, rank", "ns", 0}},
        {COLUMN_HOST_GAP, true, {"/steps/host_gap_ns", H5T_NATIVE_INT64, 0, {0}, "step", "ns", 0}},
        {COLUMN_PAIRS, true, {"/sampling/pairs", file->pair_type, 1, {n_ranks}, "step, rank", NULL, 0}},
        {COLUMN_LOGITS,
         args->has_logits,
         {"/sampling/logits", H5T_NATIVE_FLOAT, 1, {vocab_size}, "step, token", NULL, 0}},
        {COLUMN_TOP_LOGPROBS,
         n_top > 0,
         {"/sampling/top_logprobs", H5T_NATIVE_FLOAT, 1, {n_top}, "step, place", "nat", 0}},
        {COLUMN_TOP_TOKENS, n_top > 0, {"/sampling/top_tokens", H5T_NATIVE_INT32, 1, {n_top}, "step, place", NULL, 0}},
        {COLUMN_OPS, args->has_ops, {"/ops", file->op_type, 0, {0}, "op", "ns", SIZE_MAX}},
        {COLUMN_TOKEN, true, {"/tokens/generated", H5T_NATIVE_INT32, 0, {0}, "step", NULL, 0}},
    };
    size_t max_rows = args->max_new > 0 ? (size_t)args->max_new : 1;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (!tables[i].is_wanted) continue;
        column_args_t column = tables[i].args;
        if (column.max_rows == 0) column.max_rows = max_rows;
        TRY(column_create(file->file, file->path, &column, &file->columns[tables[i].column]));
    }
    for (int part = 0; part < RUN_N_PARTS; part++) {
        char name[64];
        snprintf(name, sizeof name, "/decomposition/%s", run_part_name(part));
        column_args_t column = {name, H5T_NATIVE_FLOAT, 1, {n_ranks}, "step, rank", "ms", max_rows};
        TRY(column_create(file->file, file->path, &column, &file->columns[COLUMN_PARTS + part]));
        if (part < OP_N_GROUPS &&
            h5_put_int(file->columns[COLUMN_PARTS + part].dataset, "floor_bytes", (int64_t)args->floor_bytes[part]) < 0)
            return h5_fail(STATUS_DEVICE, "write", file->path);
    }
    return STATUS_OK;
}

/* `target` is `path`, behind symbolic links. What stands there may be replaced if it is a regular file that HDF5 wrote
 * or that is empty. */
static status_t resolve_path(const char *path, char target[PATH_MAX]) {
    if (strlen(path) >= PATH_MAX - sizeof ".part") return status_fail(STATUS_USAGE, "the path %s is too long", path);
    struct stat info;
    if (stat(path, &info) != 0 || !realpath(path, target)) {
        strcpy(target, path);
        return STATUS_OK;
    }
    if (S_ISDIR(info.st_mode)) return status_fail(STATUS_DEVICE, "cannot write %s: it is a directory", path);
    if (!S_ISREG(info.st_mode)) return status_fail(STATUS_DEVICE, "cannot write %s: it is not a regular file", path);
    if (info.st_size > 0 && H5Fis_hdf5(path) <= 0)
        return status_fail(STATUS_USAGE, "%s is there and is not a run file: remove it or choose another name", path);
    return STATUS_OK;
}

enum { PART_PATH_BYTES = PATH_MAX + sizeof ".part" };

static void part_of(const char *target, char part_path[PART_PATH_BYTES]) {
    snprintf(part_path, PART_PATH_BYTES, "%s.part", target);
}

status_t run_tables_check_path(const char *path) {
    char target[PATH_MAX], part_path[PART_PATH_BYTES];
    TRY(resolve_path(path, target));
    part_of(target, part_path);
    return file_check_writable(part_path);
}

static hid_t access_list(bool lock) {
    hid_t list = h5_access_list(lock);
    /* SWMR needs the 1.10 format; a later one would shut out readers with HDF5 1.10. */
    H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110);
    return list;
}

/* Makes everything under another name first, so that the path only ever holds a file that can be read. */
static status_t create_file(run_tables_t *file, const run_file_args_t *args) {
    TRY(resolve_path(args->path, file->path));
    file->pair_type = run_pair_type();
    file->op_type = run_op_type();
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)args->n_ranks, sizeof(float), &memory));
    file->part_ms = memory;

    char part_path[PART_PATH_BYTES];
    part_of(file->path, part_path);
    hid_t list = access_list(true);
    file->file = H5Fcreate(part_path, H5F_ACC_TRUNC, H5P_DEFAULT, list);
    H5Pclose(list);
    if (file->file < 0) return h5_fail(STATUS_DEVICE, "create", args->path);

    status_t status = run_header_write(file->file, args);
    if (status == STATUS_OK) status = create_columns(file, args);
    if (status == STATUS_OK && (H5Fflush(file->file, H5F_SCOPE_GLOBAL) < 0 || H5Fstart_swmr_write(file->file) < 0))
        status = h5_fail(STATUS_DEVICE, "write", args->path);
    hsize_t size;
    if (status == STATUS_OK && H5Fget_filesize(file->file, &size) < 0)
        status = h5_fail(STATUS_DEVICE, "write", args->path);
    if (status == STATUS_OK) file->flushed_bytes = size;
    if (status == STATUS_OK && rename(part_path, file->path) != 0)
        status = status_fail(STATUS_DEVICE, "cannot create %s: %s", args->path, strerror(errno));
    if (status != STATUS_OK) unlink(part_path);
    return status;
}

status_t run_tables_create(const run_file_args_t *args, run_tables_t **file) {
    h5_init();
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(run_tables_t), &memory));
    run_tables_t *created = memory;
    created->file = created->pair_type = created->op_type = H5I_INVALID_HID;
    created->n_ranks = args->n_ranks;
    created->has_logits = args->has_logits;
    created->has_ops = args->has_ops;
    created->n_top_logprobs = args->n_top_logprobs;
    status_t status = create_file(created, args);
    if (status != STATUS_OK) {
        created->has_failed = true;
        run_tables_abandon(created);
        return status;
    }
    *file = created;
    return STATUS_OK;
}

/* Takes the disk space that the next writes may need before HDF5 is asked to write: a full disk is then met while the
 * file is still sound. HDF5 itself would go on and leave tables whose last rows are missing. */
static status_t reserve(int fd, uint64_t offset, uint64_t bytes, const char *path) {
    int error;
    do {
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    } while (error == EINTR);
    /* That a file system cannot reserve is no failure. */
    if (error == ENOSPC || error == EFBIG || error == EDQUOT || error == EIO)
        return status_fail(STATUS_DEVICE, "cannot write %s: %s", path, strerror(error));
    return STATUS_OK;
}

/* Hands all pending rows to HDF5, which may keep them in its caches. */
static status_t write_columns(run_tables_t *file) {
    for (int i = 0; i < N_COLUMNS; i++)
        file->unflushed_bytes += column_growth(&file->columns[i]);
    uint64_t needed = file->unflushed_bytes + METADATA_BYTES;
    if (file->flushed_bytes + needed > file->reserved_bytes) {
        void *fd;
        if (H5Fget_vfd_handle(file->file, H5P_DEFAULT, &fd) < 0) return h5_fail(STATUS_DEVICE, "write", file->path);
        TRY(reserve(*(const int *)fd, file->flushed_bytes, needed, file->path));
        file->reserved_bytes = file->flushed_bytes + needed;
    }
    for (int i = 0; i < N_COLUMNS; i++) {
        status_t status = column_write(&file->columns[i]);
        if (status != STATUS_OK) {
            file->is_broken = true;
            return status;
        }
    }
    return STATUS_OK;
}

/* Whether rows are still taken; the message of the failure stands since it happened. */
static status_t check_open(const run_tables_t *file) {
    return file->has_failed ? status_fail(STATUS_DEVICE, "cannot write %s after a failure", file->path) : STATUS_OK;
}

/* No rows are taken after a failure. */
static status_t note(run_tables_t *file, status_t status) {
    if (status != STATUS_OK) file->has_failed = true;
    return status;
}

static status_t write_and_flush(run_tables_t *file) {
    TRY(write_columns(file));
    hsize_t size;
    if (H5Fflush(file->file, H5F_SCOPE_LOCAL) < 0 || H5Fget_filesize(file->file, &size) < 0) {
        file->is_broken = true;
        return h5_fail(STATUS_DEVICE, "write", file->path);
    }
    file->flushed_bytes = size;
    file->unflushed_bytes = 0;
    return STATUS_OK;
}

status_t run_tables_flush(run_tables_t *file) {
    TRY(check_open(file));
    return note(file, write_and_flush(file));
}

/* What the groups leave of the step's wall time, on one rank. */
static int64_t remainder_ns(const run_step_t *step, int rank) {
    int64_t rest = step->wall_ns;
    for (int group = 0; group < OP_N_GROUPS; group++)
        rest -= step->group_ns[rank * OP_N_GROUPS + group];
    return rest;
}

static void append_parts(run_tables_t *file, const run_step_t *step) {
    for (int part = 0; part < RUN_N_PARTS; part++) {
        for (int rank = 0; rank < file->n_ranks; rank++) {
            int64_t ns = part < OP_N_GROUPS ? step->group_ns[rank * OP_N_GROUPS + part] : remainder_ns(step, rank);
            file->part_ms[rank] = (float)((double)ns / 1e6);
        }
        column_append(&file->columns[COLUMN_PARTS + part], file->part_ms);
    }
}

status_t run_tables_append(run_tables_t *file, const run_step_t *step) {
    TRY(check_open(file));
    column_t *columns = file->columns;
    column_append(&columns[COLUMN_START], &step->start_ns);
    column_append(&columns[COLUMN_WALL], &step->wall_ns);
    column_append(&columns[COLUMN_DEVICE], step->device_ns);
    column_append(&columns[COLUMN_HOST_GAP], &step->host_gap_ns);
    if (step->pairs) column_append(&columns[COLUMN_PAIRS], step->pairs);
    if (file->has_logits && step->logits) column_append(&columns[COLUMN_LOGITS], step->logits);
    if (file->n_top_logprobs && step->top_logprobs) {
        column_append(&columns[COLUMN_TOP_LOGPROBS], step->top_logprobs);
        column_append(&columns[COLUMN_TOP_TOKENS], step->top_tokens);
    }
    append_parts(file, step);
    column_append(&columns[COLUMN_TOKEN], &step->token);

    bool is_full = false;
    for (int i = 0; i < N_COLUMNS; i++)
        is_full |= column_is_full(&columns[i]);
    return is_full ? note(file, write_columns(file)) : STATUS_OK;
}

status_t run_tables_append_ops(run_tables_t *file, int64_t step, int rank, const op_record_t *records,
                               size_t n_records) {
    TRY(check_open(file));
    if (!file->has_ops) return STATUS_OK;
    column_t *column = &file->columns[COLUMN_OPS];
    for (size_t i = 0; i < n_records; i++) {
        run_op_t row = {.step = (int32_t)step,
                        .rank = rank,
                        .layer = records[i].layer,
                        .start_ns = records[i].start_ns,
                        .dur_ns = records[i].dur_ns};
        snprintf(row.op, sizeof row.op, "%s", records[i].op);
        snprintf(row.group, sizeof row.group, "%s", op_group_name(records[i].group));
        column_append(column, &row);
        if (column_is_full(column)) TRY(note(file, write_columns(file)));
    }
    return STATUS_OK;
}

/* Closes the HDF5 file and what was made for it; the struct stays. A file that HDF5 could not write is left as a killed
 * process leaves it: closing would declare it whole. */
static herr_t close_file(run_tables_t *file) {
    if (file->is_broken) {
        for (int i = 0; i < N_COLUMNS; i++)
            memory_free(file->columns[i].pending);
        return 0;
    }
    for (int i = 0; i < N_COLUMNS; i++)
        column_close(&file->columns[i]);
    if (file->pair_type >= 0) H5Tclose(file->pair_type);
    if (file->op_type >= 0) H5Tclose(file->op_type);
    herr_t result = file->file >= 0 ? H5Fclose(file->file) : 0;
    file->file = file->pair_type = file->op_type = H5I_INVALID_HID;
    return result;
}

static void destroy(run_tables_t *file) {
    memory_free(file->part_ms);
    memory_free(file);
}

/* SHA-256 of /tokens/generated as it stands in the file. */
static status_t hash_tokens(const run_tables_t *file, char text[HASH_SHA256_TEXT_BYTES]) {
    const column_t *column = &file->columns[COLUMN_TOKEN];
    void *tokens;
    TRY(memory_alloc(MEMORY_OTHER, column->dims[0], sizeof(int32_t), &tokens));
    status_t status = STATUS_OK;
    if (column->dims[0] && H5Dread(column->dataset, H5T_STD_I32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens) < 0)
        status = h5_fail(STATUS_DEVICE, "read", file->path);
    if (status == STATUS_OK) status = hash_sha256_text(tokens, column->dims[0] * sizeof(int32_t), text);
    memory_free(tokens);
    return status;
}

/* Reserves `bytes` more behind the end of a closed file. */
static status_t reserve_at_end(const char *path, uint64_t bytes) {
    struct stat info;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        status_t status = status_fail(STATUS_DEVICE, "cannot finish %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    status_t status = reserve(fd, (uint64_t)info.st_size, bytes, path);
    close(fd);
    return status;
}

/* What is known at the end only. */
static herr_t put_ending(hid_t file, int n_ranks, const run_end_t *end, const char *token_hash) {
    char time[32];
    clock_utc_text(time, sizeof time);
    herr_t result = run_put_rank_table(file, "/memory", run_memory_type(), n_ranks, end->memory, "bytes");
    if (result >= 0 && end->clocks)
        result = run_put_rank_table(file, "/clocks/end", run_clock_type(), n_ranks, end->clocks, "ns");
    if (result >= 0 && end->text) result = run_put_text(file, "/text/generated", end->text, end->text_bytes);
    if (result >= 0) result = H5Ldelete(file, "/routes", H5P_DEFAULT);
    if (result >= 0) result = run_put_routes(file, end->routes, end->n_routes);
    if (result >= 0) result = h5_put_text(file, "token_hash", token_hash);
    if (result >= 0) result = h5_put_text(file, "stop_reason", end->stop_reason);
    if (result >= 0) result = h5_put_text(file, "end_time", time);
    if (result >= 0) result = h5_put_int(file, "complete", 1);
    return result;
}

/* Opens the file again, no longer in SWMR mode, so that objects and attributes may be added. HDF5 gives back at the end
 * what was reserved and not used. */
static status_t write_ending(const run_tables_t *file, const run_end_t *end, const char *token_hash) {
    TRY(reserve_at_end(file->path, METADATA_BYTES + end->text_bytes));
    hid_t list = access_list(false);
    hid_t reopened = H5Fopen(file->path, H5F_ACC_RDWR, list);
    H5Pclose(list);
    if (reopened < 0) return h5_fail(STATUS_DEVICE, "finish", file->path);
    status_t status = put_ending(reopened, file->n_ranks, end, token_hash) < 0
                          ? h5_fail(STATUS_DEVICE, "finish", file->path)
                          : STATUS_OK;
    if (H5Fclose(reopened) < 0 && status == STATUS_OK) status = h5_fail(STATUS_DEVICE, "finish", file->path);
    return status;
}

status_t run_tables_finish(run_tables_t *file, const run_end_t *end) {
    char token_hash[HASH_SHA256_TEXT_BYTES];
    status_t status = run_tables_flush(file);
    if (status == STATUS_OK) status = hash_tokens(file, token_hash);
    if (close_file(file) < 0 && status == STATUS_OK) status = h5_fail(STATUS_DEVICE, "write", file->path);
    if (status == STATUS_OK) status = write_ending(file, end, token_hash);
    destroy(file);
    return status;
}

void run_tables_abandon(run_tables_t *file) {
    if (!file) return;
    if (!file->has_failed) run_tables_flush(file);
    close_file(file);
    destroy(file);
}
