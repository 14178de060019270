#include "model/tensor_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "model/synthetic.h"
#include "shard/shard_file.h"

struct tensor_source {
    shard_reader_t *reader; /* NULL: synthetic, and then what follows is set */
    uint64_t seed;
    shard_info_t info;
    char *config_json;
    char source[96];
    schema_tensor_t *tensors;
    size_t n_tensors;
};

static status_t open_synthetic(const tensor_source_args_t *args, tensor_source_t *source) {
    const char *name = args->model + strlen(TENSOR_SOURCE_SYNTHETIC);
    shard_info_t *info = &source->info;
    source->seed = args->seed;
    TRY(synthetic_config(name, &info->config, &source->config_json));
    info->options = (schema_options_t){
        .tp_rank = args->tp_rank, .tp_size = args->tp_size, .expert_format = EXPERTS_NVFP4, .ple_dtype = DTYPE_F8_E4M3};
    TRY(schema_check(&info->config, &info->options, STATUS_USAGE));
    TRY(schema_build(&info->config, &info->options, &source->tensors, &source->n_tensors));
    snprintf(source->source, sizeof source->source, "[{\"name\": \"synthetic\", \"seed\": %" PRIu64 "}]", args->seed);
    info->config_json = source->config_json;
    info->source = source->source;
    info->created_by = "galvani";
    return shard_file_model_digest(source->config_json, EXPERTS_NVFP4,
                                   hash_xxh3(source->source, strlen(source->source)), info->model_digest);
}

status_t tensor_source_open(const tensor_source_args_t *args, tensor_source_t **source) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(tensor_source_t), &memory));
    tensor_source_t *opened = memory;
    status_t status;
    if (strncmp(args->model, TENSOR_SOURCE_SYNTHETIC, strlen(TENSOR_SOURCE_SYNTHETIC)) == 0)
        status = open_synthetic(args, opened);
    else
        status = shard_reader_open(args->model, args->tp_rank, args->tp_size, &opened->reader);
    if (status != STATUS_OK) {
        tensor_source_close(opened);
        return status;
    }
    *source = opened;
    return STATUS_OK;
}

void tensor_source_close(tensor_source_t *source) {
    if (!source) return;
    shard_reader_close(source->reader);
    memory_free(source->config_json);
    memory_free(source->tensors);
    memory_free(source);
}

const shard_info_t *tensor_source_info(const tensor_source_t *source) {
    return source->reader ? shard_reader_info(source->reader) : &source->info;
}

const schema_tensor_t *tensor_source_tensors(const tensor_source_t *source, size_t *n_tensors) {
    if (source->reader) return shard_reader_tensors(source->reader, n_tensors);
    *n_tensors = source->n_tensors;
    return source->tensors;
}

static status_t fill_args(const tensor_source_t *source, size_t index, void *data, fill_args_t *fill) {
    const shard_info_t *info = &source->info;
    TRY(synthetic_tensor(&info->config, &info->options, source->seed, &source->tensors[index], fill));
    fill->data = data;
    return STATUS_OK;
}

status_t tensor_source_read(tensor_source_t *source, size_t index, void *host) {
    if (source->reader) return shard_reader_read(source->reader, index, host);
    fill_args_t fill;
    TRY(fill_args(source, index, host, &fill));
    return fill_cpu(&fill);
}

static status_t fill(tensor_source_t *source, size_t index, backend_t *backend, void *destination) {
    fill_args_t args;
    TRY(fill_args(source, index, destination, &args));
    return backend->ops->fill(backend, &args);
}

/* Where pieces go: to their places where the host can write there, else through the backend's stages. */
typedef struct upload {
    backend_t *backend;
    unsigned char *destination;
    bool is_host;
} upload_t;

static int stage_of(size_t offset) { return (int)(offset / BACKEND_STAGE_BYTES % BACKEND_N_STAGES); }

static status_t place_piece(void *context, size_t offset, void **memory) {
    const upload_t *upload = context;
    if (!upload->is_host) return upload->backend->ops->stage(upload->backend, stage_of(offset), memory);
    *memory = upload->destination + offset;
    return STATUS_OK;
}

static status_t upload_piece(void *context, size_t offset, size_t bytes, void *memory) {
    const upload_t *upload = context;
    (void)memory;
    if (upload->is_host) return STATUS_OK;
    return upload->backend->ops->stage_upload(upload->backend, stage_of(offset), upload->destination + offset, bytes);
}

status_t tensor_source_load(tensor_source_t *source, size_t index, backend_t *backend, void *destination) {
    if (!source->reader) return fill(source, index, backend, destination);
    void *host = backend->ops->host_address(backend, destination);
    upload_t upload = {.backend = backend, .destination = host ? host : destination, .is_host = host != NULL};
    /* One stage less than there are: the piece taken last is still being copied. */
    const shard_sink_t sink = {.context = &upload,
                               .piece_bytes = BACKEND_STAGE_BYTES,
                               .n_pieces = BACKEND_N_STAGES - 1,
                               .place = place_piece,
                               .take = upload_piece};
    return shard_reader_stream(source->reader, index, &sink);
}
