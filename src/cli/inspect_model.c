/* What a shard, a directory of shards, a checkpoint or a safetensors file holds. */
#include <dirent.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/inventory.h"
#include "cli/inspect.h"
#include "cli/tensor_table.h"
#include "shard/reader.h"
#include "shard/shard_file.h"

static void print_config(const model_config_t *config) {
    int64_t n_qsa = 0;
    for (int64_t i = 0; i < config->num_hidden_layers; i++)
        n_qsa += config->layer_types[i] == LAYER_QSA;
    printf("%-12s %" PRId64 " layers (%" PRId64 " GDN, %" PRId64 " QSA, %" PRId64 " with PLE), hidden %" PRId64
           ", vocabulary %" PRId64 ", context %" PRId64 "\n",
           "model", config->num_hidden_layers, config->num_hidden_layers - n_qsa, n_qsa, config->n_ple_layers,
           config->hidden_size, config->vocab_size, config->max_position_embeddings);
    printf("%-12s %" PRId64 " a layer, %" PRId64 " a token, width %" PRId64 "; shared expert width %" PRId64 "\n",
           "experts", config->num_experts, config->num_experts_per_tok, config->moe_intermediate_size,
           config->shared_expert_intermediate_size);
    printf("%-12s GDN %" PRId64 " key, %" PRId64 " value; attention %" PRId64 " query, %" PRId64
           " key-value of width %" PRId64 "\n",
           "heads", config->linear_num_key_heads, config->linear_num_value_heads, config->num_attention_heads,
           config->num_key_value_heads, config->head_dim);
}

static uint64_t file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

/* Rank and size of a file named model.rank<r>of<T>.h5. */
static bool parse_shard_name(const char *name, int *tp_rank, int *tp_size) {
    int used = 0;
    return sscanf(name, "model.rank%dof%d.h5%n", tp_rank, tp_size, &used) == 2 && used > 0 && name[used] == '\0';
}

static status_t verify_shard(shard_reader_t *reader, const char *path, bool verify) {
    if (!verify) return STATUS_OK;
    TRY(shard_reader_verify(reader));
    size_t n_tensors;
    shard_reader_tensors(reader, &n_tensors);
    printf("%-12s %s: the digest of every tensor (%zu) is right\n", "verified", path, n_tensors);
    return STATUS_OK;
}

static status_t print_shard(shard_reader_t *reader, const char *path, bool verify) {
    const shard_info_t *info = shard_reader_info(reader);
    char text[BYTES_TEXT_BYTES];
    printf("%-12s %s, %s\n", "shard", path, bytes_text(file_bytes(path), text));
    print_config(&info->config);
    printf("%-12s %d of %d\n", "rank", info->options.tp_rank, info->options.tp_size);
    printf("%-12s experts %s, PLE table %s\n", "stored as",
           info->options.expert_format == EXPERTS_NVFP4 ? "NVFP4" : "F16", dtype_name(info->options.ple_dtype));
    printf("%-12s %s\n", "model digest", info->model_digest);
    printf("%-12s %s\n\n", "made by", info->created_by);

    tensor_table_t *table;
    TRY(tensor_table_create(&table));
    size_t n_tensors, bytes;
    const schema_tensor_t *tensors = shard_reader_tensors(reader, &n_tensors);
    status_t status = STATUS_OK;
    for (size_t i = 0; i < n_tensors && status == STATUS_OK; i++) {
        status = schema_tensor_bytes(&tensors[i], &bytes);
        if (status == STATUS_OK)
            tensor_table_add(table, tensors[i].path, tensors[i].dtype, tensors[i].n_dims, tensors[i].shape, bytes);
    }
    if (status == STATUS_OK) tensor_table_print(table);
    tensor_table_destroy(table);
    TRY(status);
    return verify_shard(reader, path, verify);
}

status_t inspect_shard(const char *path, bool verify) {
    char directory[SHARD_PATH_BYTES], name[SHARD_PATH_BYTES];
    if (strlen(path) >= sizeof directory) return status_fail(STATUS_USAGE, "the path %s is too long", path);
    strcpy(directory, path);
    strcpy(name, path);
    int tp_rank, tp_size;
    if (!parse_shard_name(basename(name), &tp_rank, &tp_size))
        return status_fail(STATUS_INPUT, "%s is a shard, but is not named model.rank<r>of<T>.h5: rename it back", path);
    shard_reader_t *reader;
    TRY(shard_reader_open(dirname(directory), tp_rank, tp_size, &reader));
    status_t status = print_shard(reader, path, verify);
    shard_reader_close(reader);
    return status;
}

/* The number of ranks of the shards in a directory, 0 if there are none. Where files of several numbers lie side by
 * side, the largest. */
static int find_tp_size(const char *directory) {
    DIR *entries = opendir(directory);
    if (!entries) return 0;
    const struct dirent *entry;
    int largest = 0, tp_rank, tp_size;
    while ((entry = readdir(entries)) != NULL)
        if (parse_shard_name(entry->d_name, &tp_rank, &tp_size) && tp_size > largest) largest = tp_size;
    closedir(entries);
    return largest;
}

bool inspect_has_shards(const char *directory) { return find_tp_size(directory) > 0; }

/* Prints one rank's line; the first rank's digest is kept in `digest`, the others must equal it. */
static status_t print_rank(const char *directory, int tp_rank, int tp_size, bool verify, char digest[65]) {
    char path[SHARD_PATH_BYTES], text[BYTES_TEXT_BYTES];
    TRY(shard_file_path(directory, tp_rank, tp_size, path));
    shard_reader_t *reader;
    TRY(shard_reader_open(directory, tp_rank, tp_size, &reader));
    const shard_info_t *info = shard_reader_info(reader);
    status_t status = STATUS_OK;
    if (tp_rank == 0) {
        print_config(&info->config);
        printf("%-12s %s\n%-12s %s\n", "model digest", info->model_digest, "made by", info->created_by);
        strcpy(digest, info->model_digest);
    } else if (strcmp(digest, info->model_digest) != 0) {
        status = status_fail(STATUS_INPUT, "%s is of another model than rank 0's file: convert all ranks again", path);
    }
    if (status == STATUS_OK) {
        size_t n_tensors;
        shard_reader_tensors(reader, &n_tensors);
        printf("rank %-7d %s, %zu tensors, %s\n", tp_rank, path, n_tensors, bytes_text(file_bytes(path), text));
        status = verify_shard(reader, path, verify);
    }
    shard_reader_close(reader);
    return status;
}

status_t inspect_shard_directory(const char *directory, bool verify) {
    int tp_size = find_tp_size(directory);
    char digest[65] = "";
    printf("%-12s %s, for %d rank%s\n", "shards", directory, tp_size, tp_size == 1 ? "" : "s");
    for (int rank = 0; rank < tp_size; rank++)
        TRY(print_rank(directory, rank, tp_size, verify, digest));
    return STATUS_OK;
}

static void print_count(const char *what, const inventory_count_t *count) {
    char text[BYTES_TEXT_BYTES];
    printf("%-12s %zu tensors, %s\n", what, count->n_tensors, bytes_text(count->bytes, text));
}

static status_t print_checkpoint(checkpoint_t *checkpoint) {
    const char *directory = checkpoint_directory(checkpoint);
    size_t n_files, n_tensors;
    const checkpoint_file_t *files = checkpoint_files(checkpoint, &n_files);
    const checkpoint_tensor_t *tensors = checkpoint_tensors(checkpoint, &n_tensors);
    char text[BYTES_TEXT_BYTES];
    uint64_t bytes = 0;
    for (size_t i = 0; i < n_files; i++)
        bytes += files[i].bytes;
    printf("%-12s %s: %zu file%s, %s\n", "checkpoint", directory, n_files, n_files == 1 ? "" : "s",
           bytes_text(bytes, text));

    tensor_table_t *table;
    TRY(tensor_table_create(&table));
    for (size_t i = 0; i < n_tensors; i++) {
        const safetensors_tensor_t *tensor = tensors[i].info;
        tensor_table_add(table, tensor->name, tensor->dtype, tensor->n_dims, tensor->shape, tensor->bytes);
    }
    tensor_table_print(table);
    tensor_table_destroy(table);
    printf("\n");

    model_config_t config;
    inventory_t inventory;
    TRY(config_read(directory, &config));
    print_config(&config);
    TRY(inventory_check(checkpoint, &config, &inventory));
    static const char *const storages[] = {
        [STORED_NVFP4] = "NVFP4", [STORED_BF16] = "BF16", [STORED_BF16_FUSED] = "BF16, fused by layer"};
    printf("%-12s experts %s, PLE table %s\n", "stored as", storages[inventory.expert_storage],
           dtype_name(inventory.ple_dtype));
    print_count("text tower", &inventory.text);
    print_count("MTP", &inventory.mtp);
    print_count("vision", &inventory.visual);
    printf("%-12s every tensor of the text tower is there, of the right shape and type; MTP and vision are not used\n",
           "whole");
    return STATUS_OK;
}

status_t inspect_checkpoint(const char *directory) {
    checkpoint_t *checkpoint;
    TRY(checkpoint_open(directory, &checkpoint));
    status_t status = print_checkpoint(checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

status_t inspect_safetensors(const char *path) {
    safetensors_header_t header;
    TRY(safetensors_read(path, &header));
    char text[BYTES_TEXT_BYTES];
    printf("%-12s %s, %s\n", "safetensors", path, bytes_text(header.file_bytes, text));
    tensor_table_t *table;
    status_t status = tensor_table_create(&table);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < header.n_tensors; i++) {
            const safetensors_tensor_t *tensor = &header.tensors[i];
            tensor_table_add(table, tensor->name, tensor->dtype, tensor->n_dims, tensor->shape, tensor->bytes);
        }
        tensor_table_print(table);
        tensor_table_destroy(table);
    }
    safetensors_free(&header);
    return status;
}
