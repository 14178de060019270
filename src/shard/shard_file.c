#include "shard/shard_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

status_t shard_file_path(const char *directory, int tp_rank, int tp_size, char path[SHARD_PATH_BYTES]) {
    char name[64];
    snprintf(name, sizeof name, "model.rank%dof%d.h5", tp_rank, tp_size);
    return file_join(directory, name, path, SHARD_PATH_BYTES);
}

const char *shard_file_quantization(const schema_tensor_t *tensor) {
    const char *leaf = strrchr(tensor->path, '/') + 1;
    if (strncmp(leaf, "gate_up", 7) == 0 || strncmp(leaf, "down", 4) == 0)
        return tensor->dtype == DTYPE_F16 ? "f16" : "nvfp4";
    return tensor->dtype == DTYPE_F8_E4M3 ? "fp8_e4m3" : "none";
}

/* IEEE 754 half: sign 1, exponent 5 with bias 15, mantissa 10. */
static hid_t half_type(void) {
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

hid_t shard_file_type(dtype_t dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DTYPE_BF16:
        return H5Tcopy(H5T_STD_U16LE);
    case DTYPE_F16:
        return half_type();
    case DTYPE_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DTYPE_I64:
        return H5Tcopy(H5T_STD_I64LE);
    default:
        return H5Tcopy(H5T_STD_U8LE);
    }
}

static bool has_shape(hid_t dataset, const schema_tensor_t *tensor) {
    hid_t space = H5Dget_space(dataset);
    if (space < 0) return false;
    hsize_t dims[SCHEMA_MAX_DIMS] = {0};
    bool same = H5Sget_simple_extent_ndims(space) == tensor->n_dims;
    if (same) H5Sget_simple_extent_dims(space, dims, NULL);
    for (int i = 0; same && i < tensor->n_dims; i++)
        same = dims[i] == (hsize_t)tensor->shape[i];
    H5Sclose(space);
    return same;
}

static bool has_type(hid_t dataset, dtype_t dtype) {
    hid_t type = H5Dget_type(dataset), wanted = shard_file_type(dtype);
    bool same = type >= 0 && H5Tequal(type, wanted) > 0;
    if (type >= 0) H5Tclose(type);
    H5Tclose(wanted);
    return same;
}

static bool is_contiguous(hid_t dataset) {
    hid_t properties = H5Dget_create_plist(dataset);
    if (properties < 0) return false;
    bool contiguous = H5Pget_layout(properties) == H5D_CONTIGUOUS && H5Pget_external_count(properties) == 0;
    H5Pclose(properties);
    return contiguous;
}

static status_t locate(hid_t dataset, const char *where, const schema_tensor_t *tensor, uint64_t file_bytes,
                       uint64_t *offset, size_t *bytes) {
    if (!has_shape(dataset, tensor))
        return status_fail(STATUS_INPUT, "%s: dataset %s has not the shape that the config asks for", where,
                           tensor->path);
    if (!has_type(dataset, tensor->dtype))
        return status_fail(STATUS_INPUT, "%s: dataset %s is not of type %s", where, tensor->path,
                           dtype_name(tensor->dtype));
    if (!is_contiguous(dataset))
        return status_fail(STATUS_INPUT, "%s: dataset %s is not stored in one piece", where, tensor->path);
    haddr_t address = H5Dget_offset(dataset);
    size_t length;
    TRY(schema_tensor_bytes(tensor, &length));
    if (address == HADDR_UNDEF || address > file_bytes || length > file_bytes - address)
        return status_fail(STATUS_INPUT, "%s is truncated: dataset %s lies beyond its end", where, tensor->path);
    *offset = (uint64_t)address;
    *bytes = length;
    return STATUS_OK;
}

status_t shard_file_locate(hid_t file, const char *where, const schema_tensor_t *tensor, uint64_t file_bytes,
                           uint64_t *offset, size_t *bytes) {
    hid_t dataset = H5Dopen2(file, tensor->path, H5P_DEFAULT);
    if (dataset < 0) return status_fail(STATUS_INPUT, "%s lacks the dataset %s", where, tensor->path);
    status_t status = locate(dataset, where, tensor, file_bytes, offset, bytes);
    H5Dclose(dataset);
    return status;
}

status_t shard_file_model_digest(const char *config_json, expert_format_t expert_format, uint64_t content,
                                 char digest[65]) {
    size_t bytes = strlen(config_json) + 128;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    char *text = memory;
    int used = snprintf(text, bytes, "galvani-model %d\n%s\n%016" PRIx64 "\n%s", SHARD_FORMAT_VERSION,
                        expert_format == EXPERTS_NVFP4 ? "nvfp4" : "f16", content, config_json);
    status_t status = hash_sha256_text(text, (size_t)used, digest);
    memory_free(text);
    return status;
}
