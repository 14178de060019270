#include "trace/column.h"

#include <string.h>

#include "base/h5.h"
#include "base/memory.h"

enum {
    /* A flush rewrites the last chunk of every column, so chunks are small. */
    CHUNK_BYTES = 1 << 16,
    CHUNK_ROWS = 1024
};

/* Rows of a chunk, also of the buffer. */
static size_t chunk_rows(size_t row_bytes, size_t max_rows) {
    size_t rows = CHUNK_BYTES / (row_bytes ? row_bytes : 1);
    if (rows > CHUNK_ROWS) rows = CHUNK_ROWS;
    if (rows > max_rows) rows = max_rows;
    return rows ? rows : 1;
}

static hid_t create_dataset(hid_t file, const column_args_t *args, const column_t *column) {
    hsize_t limits[COLUMN_MAX_DIMS], chunk[COLUMN_MAX_DIMS];
    for (int i = 0; i < column->n_dims; i++)
        limits[i] = chunk[i] = column->dims[i];
    limits[0] = H5S_UNLIMITED;
    chunk[0] = column->capacity;
    hid_t space = H5Screate_simple(column->n_dims, column->dims, limits);
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    hid_t dataset = H5I_INVALID_HID;
    if (H5Pset_chunk(list, column->n_dims, chunk) >= 0)
        dataset = H5Dcreate2(file, args->dataset, args->type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    H5Pclose(list);
    H5Sclose(space);
    if (dataset < 0) return dataset;
    herr_t result = h5_put_text(dataset, "dims", args->dims);
    if (result >= 0 && args->unit) result = h5_put_text(dataset, "unit", args->unit);
    if (result >= 0) return dataset;
    H5Dclose(dataset);
    return H5I_INVALID_HID;
}

status_t column_create(hid_t file, const char *file_path, const column_args_t *args, column_t *column) {
    column_t created = {.path = file_path, .type = args->type, .n_dims = args->n_row_dims + 1};
    created.row_bytes = H5Tget_size(args->type);
    for (int i = 0; i < args->n_row_dims; i++) {
        created.dims[i + 1] = args->row_dims[i];
        TRY(memory_product(created.row_bytes, args->row_dims[i], &created.row_bytes));
    }
    created.capacity = chunk_rows(created.row_bytes, args->max_rows);
    created.dataset = create_dataset(file, args, &created);
    if (created.dataset < 0) return h5_fail(STATUS_DEVICE, "write", file_path);
    void *memory;
    status_t status = memory_alloc(MEMORY_OTHER, created.capacity, created.row_bytes, &memory);
    if (status != STATUS_OK) {
        H5Dclose(created.dataset);
        return status;
    }
    created.pending = memory;
    *column = created;
    return STATUS_OK;
}

void column_append(column_t *column, const void *row) {
    memcpy(column->pending + column->n_pending * column->row_bytes, row, column->row_bytes);
    column->n_pending++;
}

bool column_is_full(const column_t *column) { return column->pending && column->n_pending == column->capacity; }

size_t column_growth(const column_t *column) {
    if (!column->pending) return 0;
    size_t n_chunks = (column->dims[0] + column->capacity - 1) / column->capacity;
    size_t n_needed = (column->dims[0] + column->n_pending + column->capacity - 1) / column->capacity;
    return (n_needed - n_chunks) * column->capacity * column->row_bytes;
}

status_t column_write(column_t *column) {
    if (!column->pending || column->n_pending == 0) return STATUS_OK;
    hsize_t dims[COLUMN_MAX_DIMS], start[COLUMN_MAX_DIMS] = {column->dims[0]}, count[COLUMN_MAX_DIMS];
    memcpy(dims, column->dims, sizeof dims);
    memcpy(count, column->dims, sizeof count);
    dims[0] += column->n_pending;
    count[0] = column->n_pending;
    if (H5Dset_extent(column->dataset, dims) < 0) return h5_fail(STATUS_DEVICE, "write", column->path);
    hid_t target = H5Dget_space(column->dataset);
    hid_t source = H5Screate_simple(column->n_dims, count, NULL);
    herr_t result = H5Sselect_hyperslab(target, H5S_SELECT_SET, start, NULL, count, NULL);
    if (result >= 0) result = H5Dwrite(column->dataset, column->type, source, target, H5P_DEFAULT, column->pending);
    H5Sclose(source);
    H5Sclose(target);
    if (result < 0) return h5_fail(STATUS_DEVICE, "write", column->path);
    column->dims[0] = dims[0];
    column->n_pending = 0;
    return STATUS_OK;
}

void column_close(column_t *column) {
    if (column->pending) H5Dclose(column->dataset);
    memory_free(column->pending);
    *column = (column_t){0};
}
