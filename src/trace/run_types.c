#include "trace/run_types.h"

#include <stddef.h>
#include <string.h>

#include "base/h5.h"
#include "base/memory.h"

static const char *const memory_names[RUN_N_MEMORY] = {
    "weights", "kv_cache", "state", "workspace", "cuda_graph", "pinned_host", "peak_device", "peak_host_rss",
};

_Static_assert(sizeof(run_memory_t) == RUN_N_MEMORY * sizeof(int64_t), "run_memory_t has a member without a name");

const char *run_part_name(int part) {
    return part == RUN_PART_REMAINDER ? "remainder" : op_group_name((op_group_t)part);
}

hid_t run_text_type(size_t bytes) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes ? bytes : 1);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

hid_t run_pair_type(void) {
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(token_pair_t));
    H5Tinsert(type, "value", offsetof(token_pair_t, value), H5T_NATIVE_FLOAT);
    H5Tinsert(type, "token", offsetof(token_pair_t, token), H5T_NATIVE_INT32);
    return type;
}

hid_t run_op_type(void) {
    hid_t op = run_text_type(RUN_OP_BYTES), group = run_text_type(RUN_GROUP_BYTES);
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(run_op_t));
    H5Tinsert(type, "step", offsetof(run_op_t, step), H5T_NATIVE_INT32);
    H5Tinsert(type, "rank", offsetof(run_op_t, rank), H5T_NATIVE_INT32);
    H5Tinsert(type, "layer", offsetof(run_op_t, layer), H5T_NATIVE_INT32);
    H5Tinsert(type, "op", offsetof(run_op_t, op), op);
    H5Tinsert(type, "group", offsetof(run_op_t, group), group);
    H5Tinsert(type, "start_ns", offsetof(run_op_t, start_ns), H5T_NATIVE_INT64);
    H5Tinsert(type, "dur_ns", offsetof(run_op_t, dur_ns), H5T_NATIVE_INT64);
    H5Tclose(op);
    H5Tclose(group);
    return type;
}

hid_t run_memory_type(void) {
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(run_memory_t));
    for (int i = 0; i < RUN_N_MEMORY; i++)
        H5Tinsert(type, memory_names[i], (size_t)i * sizeof(int64_t), H5T_NATIVE_INT64);
    return type;
}

hid_t run_clock_type(void) {
    hid_t type = H5Tcreate(H5T_COMPOUND, sizeof(clock_offset_t));
    H5Tinsert(type, "offset_ns", offsetof(clock_offset_t, offset_ns), H5T_NATIVE_INT64);
    H5Tinsert(type, "round_trip_ns", offsetof(clock_offset_t, round_trip_ns), H5T_NATIVE_INT64);
    return type;
}

const char *run_memory_name(int index) { return memory_names[index]; }

herr_t run_put_dataset(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims, const void *data) {
    hid_t space = n_dims ? H5Screate_simple(n_dims, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = dataset < 0 ? -1 : 0;
    if (result >= 0 && data) result = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    if (dataset >= 0) H5Dclose(dataset);
    H5Sclose(space);
    return result;
}

herr_t run_put_rank_table(hid_t file, const char *name, hid_t type, int n_ranks, const void *data, const char *unit) {
    herr_t result = run_put_dataset(file, name, type, 1, &(hsize_t){(hsize_t)n_ranks}, data);
    H5Tclose(type);
    if (result < 0) return result;
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    result = h5_put_text(dataset, "unit", unit);
    H5Dclose(dataset);
    return result;
}

herr_t run_put_text(hid_t file, const char *name, const char *text, size_t bytes) {
    hid_t type = run_text_type(bytes);
    herr_t result = run_put_dataset(file, name, type, 0, NULL, bytes ? text : "");
    H5Tclose(type);
    return result;
}

herr_t run_put_routes(hid_t file, const run_route_t *routes, size_t n_routes) {
    enum { N_FIELDS = 3 };
    static const char *const names[N_FIELDS] = {"name", "chosen", "reason"};
    size_t width[N_FIELDS] = {1, 1, 1}, row_bytes = 0;
    for (size_t i = 0; i < n_routes; i++) {
        const char *const texts[N_FIELDS] = {routes[i].name, routes[i].chosen, routes[i].reason};
        for (int f = 0; f < N_FIELDS; f++)
            if (strlen(texts[f]) > width[f]) width[f] = strlen(texts[f]);
    }
    for (int f = 0; f < N_FIELDS; f++)
        row_bytes += width[f];

    void *memory;
    if (memory_alloc(MEMORY_OTHER, n_routes, row_bytes, &memory) != STATUS_OK) return -1;
    char *next = memory;
    for (size_t i = 0; i < n_routes; i++) {
        const char *const texts[N_FIELDS] = {routes[i].name, routes[i].chosen, routes[i].reason};
        for (int f = 0; f < N_FIELDS; next += width[f++])
            memcpy(next, texts[f], strlen(texts[f]));
    }
    hid_t type = H5Tcreate(H5T_COMPOUND, row_bytes);
    size_t offset = 0;
    for (int f = 0; f < N_FIELDS; offset += width[f++]) {
        hid_t text = run_text_type(width[f]);
        H5Tinsert(type, names[f], offset, text);
        H5Tclose(text);
    }
    herr_t result = run_put_dataset(file, "/routes", type, 1, &(hsize_t){n_routes}, n_routes ? memory : NULL);
    H5Tclose(type);
    memory_free(memory);
    return result;
}
