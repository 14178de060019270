#include "trace/run_mend.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/h5.h"
#include "base/hash.h"
#include "base/memory.h"
#include "trace/run_reader.h"

enum {
    NAME_BYTES = 256,
    /* A file of another host that was not written to for so long is taken for left behind. */
    SILENT_SECONDS = 600
};

static status_t check_writer(const run_record_t *record, const char *path) {
    if (record->state == RUN_RUNNING)
        return status_fail(STATUS_USAGE, "%s is being written by process %" PRId64 ": mend it when that has ended",
                           path, record->pid);
    struct stat info;
    if (record->state == RUN_ELSEWHERE && stat(path, &info) == 0 && time(NULL) - info.st_mtime < SILENT_SECONDS)
        return status_fail(STATUS_USAGE,
                           "%s was written to less than %d minutes ago on host %s: its run may still be going on", path,
                           SILENT_SECONDS / 60, record->host);
    return STATUS_OK;
}

/* Root attributes are texts and whole numbers. */
static status_t copy_attributes(hid_t from, hid_t to, const char *path) {
    hid_t root = H5Gopen2(from, "/", H5P_DEFAULT);
    int n = root < 0 ? -1 : H5Aget_num_attrs(root);
    if (root >= 0) H5Gclose(root);
    if (n < 0) return h5_fail(STATUS_INPUT, "read", path);
    for (int i = 0; i < n; i++) {
        char name[NAME_BYTES];
        hid_t attribute = H5Aopen_by_idx(from, ".", H5_INDEX_NAME, H5_ITER_INC, (hsize_t)i, H5P_DEFAULT, H5P_DEFAULT);
        if (attribute < 0) return h5_fail(STATUS_INPUT, "read", path);
        H5Aget_name(attribute, sizeof name, name);
        hid_t type = H5Aget_type(attribute);
        H5T_class_t class = H5Tget_class(type);
        H5Tclose(type);
        H5Aclose(attribute);
        herr_t result;
        if (class == H5T_STRING) {
            char *text;
            TRY(h5_get_text(from, name, path, &text));
            result = h5_put_text(to, name, text);
            memory_free(text);
        } else {
            int64_t value;
            TRY(h5_get_int(from, name, path, &value));
            result = h5_put_int(to, name, value);
        }
        if (result < 0) return h5_fail(STATUS_DEVICE, "mend", path);
    }
    return STATUS_OK;
}

/* Name of the i-th link of a group; false at the end. */
static bool link_name(hid_t file, const char *group, hsize_t i, char name[NAME_BYTES]) {
    H5G_info_t info;
    if (H5Gget_info_by_name(file, group, &info, H5P_DEFAULT) < 0 || i >= info.nlinks) return false;
    return H5Lget_name_by_idx(file, group, H5_INDEX_NAME, H5_ITER_INC, i, name, NAME_BYTES, H5P_DEFAULT) >= 0;
}

static herr_t cut_dataset(hid_t file, const char *name, size_t n_rows) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    if (dataset < 0) return -1;
    hsize_t dims[H5S_MAX_RANK] = {0}, limits[H5S_MAX_RANK] = {0};
    hid_t space = H5Dget_space(dataset);
    herr_t result = H5Sget_simple_extent_dims(space, dims, limits) < 0 ? -1 : 0;
    H5Sclose(space);
    if (result >= 0 && limits[0] == H5S_UNLIMITED && dims[0] > n_rows) {
        dims[0] = n_rows;
        result = H5Dset_extent(dataset, dims);
    }
    H5Dclose(dataset);
    return result;
}

/* Cuts every table of one row a step to `n_steps` rows. */
static herr_t cut_tables(hid_t file, size_t n_steps) {
    static const char *const groups[] = {"/tokens", "/steps", "/sampling", "/decomposition"};
    char name[NAME_BYTES], path[NAME_BYTES + 16];
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++)
        for (hsize_t i = 0; link_name(file, groups[g], i, name); i++) {
            snprintf(path, sizeof path, "%s/%s", groups[g], name);
            if (cut_dataset(file, path, n_steps) < 0) return -1;
        }
    return 0;
}

static status_t copy_content(hid_t from, hid_t to, const run_record_t *record, const char *path) {
    TRY(copy_attributes(from, to, path));
    char name[NAME_BYTES], hash[HASH_SHA256_TEXT_BYTES];
    for (hsize_t i = 0; link_name(from, "/", i, name); i++)
        if (H5Ocopy(from, name, to, name, H5P_DEFAULT, H5P_DEFAULT) < 0) return h5_fail(STATUS_DEVICE, "mend", path);
    TRY(hash_sha256_text(record->generated, record->n_steps * sizeof(int32_t), hash));
    if (cut_tables(to, record->n_steps) < 0 || h5_put_text(to, "token_hash", hash) < 0 ||
        h5_put_text(to, "stop_reason", "killed") < 0)
        return h5_fail(STATUS_DEVICE, "mend", path);
    return STATUS_OK;
}

static status_t copy_file(const char *path, const run_record_t *record) {
    char new_path[PATH_MAX];
    if (snprintf(new_path, sizeof new_path, "%s.part", path) >= (int)sizeof new_path)
        return status_fail(STATUS_USAGE, "the path %s is too long", path);
    hid_t from;
    TRY(h5_open_for_read(path, &from, NULL));
    hid_t list = h5_access_list(true);
    H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t to = H5Fcreate(new_path, H5F_ACC_TRUNC, H5P_DEFAULT, list);
    status_t status = to < 0 ? h5_fail(STATUS_DEVICE, "create", new_path) : copy_content(from, to, record, path);
    H5Pclose(list);
    H5Fclose(from);
    if (to >= 0 && H5Fclose(to) < 0 && status == STATUS_OK) status = h5_fail(STATUS_DEVICE, "write", new_path);
    run_record_t *copy;
    if (status == STATUS_OK) {
        status = run_record_load(new_path, false, &copy);
        if (status == STATUS_OK) run_record_free(copy);
    }
    if (status == STATUS_OK && rename(new_path, path) != 0)
        status = status_fail(STATUS_DEVICE, "cannot replace %s: %s", path, strerror(errno));
    if (status != STATUS_OK) unlink(new_path);
    return status;
}

/* A writer that died while it finished the file has left a mark that no reader passes. This is what h5clear -s does. */
static status_t clear_mark(const char *path) {
    h5_init();
    hbool_t clear = true;
    hid_t list = h5_access_list(true);
    H5Pset(list, "clear_status_flags", &clear);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, list);
    status_t status = file < 0 ? h5_fail(STATUS_INPUT, "mend", path) : STATUS_OK;
    H5Pclose(list);
    if (file >= 0 && H5Fclose(file) < 0) status = h5_fail(STATUS_DEVICE, "write", path);
    return status;
}

status_t run_mend(const char *path, bool *was_mended) {
    run_record_t *record;
    *was_mended = false;
    status_t status = run_record_load(path, false, &record);
    if (status != STATUS_OK) {
        hid_t file;
        if (h5_open_for_read(path, &file, NULL) == STATUS_OK) {
            H5Fclose(file);
            return status;
        }
        status_clear();
        TRY(clear_mark(path));
        TRY(run_record_load(path, false, &record));
        *was_mended = true;
    } else if (record->is_open_for_write) {
        status = check_writer(record, path);
        if (status == STATUS_OK) status = copy_file(path, record);
        *was_mended = status == STATUS_OK;
    }
    run_record_free(record);
    return *was_mended ? STATUS_OK : status;
}
