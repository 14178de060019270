#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/h5.h"
#include "base/log.h"
#include "checkpoint/inventory.h"
#include "shard/convert.h"
#include "shard/reader.h"
#include "support/scratch.h"

#define CHECKPOINT "tests/golden/mixed/checkpoint"

static status_t convert(const char *checkpoint, const char *output, int tp_size) {
    status_clear();
    const shard_convert_args_t args = {
        .checkpoint = checkpoint, .output = output, .tp_size = tp_size, .tp_rank = SHARD_ALL_RANKS};
    return shard_convert(&args);
}

static void expect_message(status_t found, status_t expected, const char *word) {
    assert_int_equal(found, expected);
    if (!strstr(status_message(), word)) fail_msg("\"%s\" is not in: %s", word, status_message());
    status_clear();
}

static size_t find_tensor(const shard_reader_t *reader, const char *path) {
    size_t n;
    const schema_tensor_t *tensors = shard_reader_tensors(reader, &n);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(tensors[i].path, path) == 0) return i;
    }
    fail_msg("%s is not there", path);
    return 0;
}

/* The numbers that the oracle's layout has: 31 MTP tensors, 333 of a vision tower of 27 blocks. */
static void test_inventory(void **state) {
    (void)state;
    model_config_t config;
    checkpoint_t *checkpoint;
    inventory_t inventory;
    assert_int_equal(config_read(CHECKPOINT, &config), STATUS_OK);
    assert_int_equal(checkpoint_open(CHECKPOINT, &checkpoint), STATUS_OK);
    assert_int_equal(inventory_check(checkpoint, &config, &inventory), STATUS_OK);
    assert_int_equal(inventory.expert_storage, STORED_NVFP4);
    assert_int_equal(inventory.ple_dtype, DTYPE_F8_E4M3);
    assert_int_equal(inventory.n_table_shards[0], 12);
    assert_int_equal(inventory.mtp.n_tensors, 31);
    assert_int_equal(inventory.visual.n_tensors, 333);
    size_t n_tensors;
    checkpoint_tensors(checkpoint, &n_tensors);
    assert_int_equal(inventory.text.n_tensors + 31 + 333, n_tensors);
    config.num_experts--;
    expect_message(inventory_check(checkpoint, &config, &inventory), STATUS_INPUT, "experts.15.down_proj");
    config.num_experts += 2;
    expect_message(inventory_check(checkpoint, &config, &inventory), STATUS_INPUT, "lacks 96 tensors");
    checkpoint_close(checkpoint);
}

static void test_reader_gives_what_the_checkpoint_holds(void **state) {
    (void)state;
    assert_int_equal(convert(CHECKPOINT, scratch_path("two"), 2), STATUS_OK);
    checkpoint_t *checkpoint;
    shard_reader_t *readers[2];
    assert_int_equal(checkpoint_open(CHECKPOINT, &checkpoint), STATUS_OK);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(shard_reader_open(scratch_path("two"), rank, 2, &readers[rank]), STATUS_OK);
    const shard_info_t *info = shard_reader_info(readers[1]);
    assert_int_equal(info->options.tp_rank, 1);
    assert_int_equal(info->options.expert_format, EXPERTS_NVFP4);
    assert_int_equal(info->config.hidden_size, 64);
    assert_string_equal(info->model_digest, shard_reader_info(readers[0])->model_digest);
    assert_non_null(strstr(info->source, "model-bf16-00001.safetensors"));

    const checkpoint_tensor_t *source = checkpoint_find(checkpoint, "lm_head.weight");
    size_t half = (size_t)source->info->bytes / 2;
    unsigned char *whole = malloc(2 * half), *own = malloc(half);
    assert_int_equal(checkpoint_read(checkpoint, source, 0, 2 * half, whole), STATUS_OK);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(shard_reader_read(readers[rank], find_tensor(readers[rank], "/lm_head"), own), STATUS_OK);
        assert_memory_equal(own, whole + (size_t)rank * half, half);
        assert_int_equal(shard_reader_verify(readers[rank]), STATUS_OK);
        shard_reader_close(readers[rank]);
    }
    free(whole);
    free(own);
    checkpoint_close(checkpoint);
}

/* Pieces of a tensor, put together again. */
typedef struct assembly {
    unsigned char data[1 << 20], pieces[4][37];
    size_t n_bytes;    /* so far */
    size_t fails_from; /* take fails at this offset */
} assembly_t;

static status_t place_piece(void *context, size_t offset, void **memory) {
    assembly_t *assembly = context;
    *memory = assembly->pieces[offset / sizeof assembly->pieces[0] % 4];
    return STATUS_OK;
}

static status_t take_piece(void *context, size_t offset, size_t bytes, void *memory) {
    assembly_t *assembly = context;
    assert_int_equal(offset, assembly->n_bytes);
    if (offset >= assembly->fails_from) return status_fail(STATUS_DEVICE, "no room");
    memcpy(assembly->data + offset, memory, bytes);
    assembly->n_bytes += bytes;
    return STATUS_OK;
}

static void flip_byte(const char *path, const unsigned char *pattern, size_t bytes) {
    static unsigned char file[4 << 20];
    FILE *stream = fopen(path, "r+b");
    size_t n = fread(file, 1, sizeof file, stream);
    const unsigned char *found = memmem(file, n, pattern, bytes);
    assert_non_null(found);
    fseek(stream, found - file + (long)bytes / 2, SEEK_SET);
    fputc(found[bytes / 2] ^ 4, stream);
    fclose(stream);
}

static void test_stream_gives_the_same_in_order(void **state) {
    (void)state;
    static assembly_t assembly;
    const shard_sink_t sink = {.context = &assembly,
                               .piece_bytes = sizeof assembly.pieces[0],
                               .n_pieces = 3,
                               .place = place_piece,
                               .take = take_piece};
    assert_int_equal(convert(CHECKPOINT, scratch_path("stream"), 1), STATUS_OK);
    shard_reader_t *reader;
    assert_int_equal(shard_reader_open(scratch_path("stream"), 0, 1, &reader), STATUS_OK);
    size_t index = find_tensor(reader, "/lm_head"), n_tensors, bytes;
    assert_int_equal(schema_tensor_bytes(&shard_reader_tensors(reader, &n_tensors)[index], &bytes), STATUS_OK);
    unsigned char *whole = malloc(bytes);
    assert_int_equal(shard_reader_read(reader, index, whole), STATUS_OK);

    /* A sink that fails ends the reading of one tensor, not the reader. */
    assembly = (assembly_t){.fails_from = bytes / 2};
    expect_message(shard_reader_stream(reader, index, &sink), STATUS_DEVICE, "no room");
    assert_in_range(assembly.n_bytes, bytes / 2, bytes / 2 + sizeof assembly.pieces[0]);
    assembly = (assembly_t){.fails_from = SIZE_MAX};
    assert_int_equal(shard_reader_stream(reader, index, &sink), STATUS_OK);
    assert_int_equal(assembly.n_bytes, bytes);
    assert_memory_equal(assembly.data, whole, bytes);

    flip_byte(scratch_path("stream/model.rank0of1.h5"), whole, bytes);
    assembly = (assembly_t){.fails_from = SIZE_MAX};
    expect_message(shard_reader_stream(reader, index, &sink), STATUS_INPUT, "dataset /lm_head does not fit its digest");
    shard_reader_close(reader);
    free(whole);
}

static void test_reader_says_how_many_ranks(void **state) {
    (void)state;
    shard_reader_t *reader;
    expect_message(shard_reader_open(scratch_path("two"), 0, 4, &reader), STATUS_INPUT, "mpirun -np 2");
    expect_message(shard_reader_open(scratch_path("nowhere"), 0, 4, &reader), STATUS_INPUT, "nowhere");
    mkdir(scratch_path("empty"), 0777);
    expect_message(shard_reader_open(scratch_path("empty"), 0, 4, &reader), STATUS_INPUT, "galvani shard");
}

static void copy_shard(const char *name) {
    char command[2 * SCRATCH_PATH_BYTES];
    mkdir(scratch_path(name), 0777);
    snprintf(command, sizeof command, "cp %s/two/model.rank0of2.h5 %s/%s/", scratch_directory, scratch_directory, name);
    assert_int_equal(system(command), 0);
}

static status_t reopen(const char *name) {
    shard_reader_t *reader = NULL;
    status_clear();
    status_t status = shard_reader_open(scratch_path(name), 0, 2, &reader);
    if (status == STATUS_OK) status = shard_reader_verify(reader);
    shard_reader_close(reader);
    return status;
}

static hid_t edit(const char *name) {
    char path[SCRATCH_PATH_BYTES];
    copy_shard(name);
    snprintf(path, sizeof path, "%s/%s/model.rank0of2.h5", scratch_directory, name);
    h5_init();
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

static void test_changed_attributes(void **state) {
    (void)state;
    static const struct {
        const char *name, *text, *word;
    } texts[] = {
        {"format", "galvani-run", "format"},
        {"expert_format", "f16", "damaged"},
        {"expert_format", "int4", "int4"},
        {"ple_dtype", "F32", "F32"},
        {"config_json", "{}", "damaged"},
        {"model_digest", "0", "damaged"},
        {"source_content", "word", "source_content"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        hid_t file = edit("edited");
        assert_true(h5_put_text(file, texts[i].name, texts[i].text) >= 0);
        H5Fclose(file);
        expect_message(reopen("edited"), STATUS_INPUT, texts[i].word);
        file = edit("edited");
        assert_true(H5Adelete(file, texts[i].name) >= 0);
        H5Fclose(file);
        expect_message(reopen("edited"), STATUS_INPUT, texts[i].name);
    }
    static const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"format_version", 2}, {"tp_rank", 1}, {"tp_size", 4}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        hid_t file = edit("edited");
        assert_true(h5_put_int(file, numbers[i].name, numbers[i].value) >= 0);
        H5Fclose(file);
        assert_int_equal(reopen("edited"), STATUS_INPUT);
    }
    status_clear();
}

static void replace_dataset(hid_t file, const char *path, hid_t type, hsize_t length, H5D_layout_t layout) {
    assert_true(H5Ldelete(file, path, H5P_DEFAULT) >= 0);
    hid_t space = H5Screate_simple(1, &length, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(properties, layout);
    if (layout == H5D_CHUNKED) H5Pset_chunk(properties, 1, &length);
    H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    hid_t dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    assert_true(dataset >= 0);
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
}

static void test_changed_datasets(void **state) {
    (void)state;
    const char *path = "/layers/00/gdn/norm"; /* BF16 [16] */
    hid_t file = edit("edited");
    assert_true(H5Ldelete(file, path, H5P_DEFAULT) >= 0);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, path);
    file = edit("edited");
    replace_dataset(file, path, H5T_STD_U16LE, 15, H5D_CONTIGUOUS);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, "shape");
    file = edit("edited");
    replace_dataset(file, path, H5T_STD_I16LE, 16, H5D_CONTIGUOUS);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, "type");
    file = edit("edited");
    replace_dataset(file, path, H5T_STD_U16LE, 16, H5D_CHUNKED);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, "one piece");
    file = edit("edited");
    replace_dataset(file, path, H5T_STD_U16LE, 16, H5D_CONTIGUOUS);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, "xxh3_64");
    file = edit("edited");
    hid_t dataset = H5Dopen2(file, path, H5P_DEFAULT);
    assert_true(h5_put_text(dataset, "xxh3_64", "123") >= 0);
    H5Dclose(dataset);
    H5Fclose(file);
    expect_message(reopen("edited"), STATUS_INPUT, "digest");
}

static void test_flipped_bits_and_cuts(void **state) {
    (void)state;
    hid_t file = edit("edited");
    hid_t dataset = H5Dopen2(file, "/ple/01/table", H5P_DEFAULT);
    off_t offset = (off_t)H5Dget_offset(dataset) + 77;
    H5Dclose(dataset);
    H5Fclose(file);
    FILE *data = fopen(scratch_path("edited/model.rank0of2.h5"), "r+b");
    fseeko(data, offset, SEEK_SET);
    int byte = fgetc(data);
    fseeko(data, offset, SEEK_SET);
    fputc(byte ^ 1, data);
    fseeko(data, 0, SEEK_END);
    off_t length = ftello(data);
    fclose(data);
    expect_message(reopen("edited"), STATUS_INPUT, "/ple/01/table");

    copy_shard("edited");
    static const double kept[] = {0, 0.001, 0.5, 0.999};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        copy_shard("edited");
        assert_int_equal(truncate(scratch_path("edited/model.rank0of2.h5"), (off_t)((double)length * kept[i])), 0);
        assert_int_equal(reopen("edited"), STATUS_INPUT);
    }
    status_clear();
}

static void test_failures_leave_nothing(void **state) {
    (void)state;
    const char *output = scratch_path("refused");
    expect_message(convert(CHECKPOINT, output, 3), STATUS_USAGE, "3 ranks");
    expect_message(convert("tests/golden/absent", output, 1), STATUS_INPUT, "absent");
    expect_message(convert(CHECKPOINT, scratch_path("absent/refused"), 1), STATUS_DEVICE, "refused");
    assert_int_equal(access(scratch_path("refused/model.rank0of1.h5"), F_OK), -1);
}

static int prepare(void **state) {
    log_set_level(LOG_ERROR);
    return scratch_create(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inventory),
        cmocka_unit_test(test_reader_gives_what_the_checkpoint_holds),
        cmocka_unit_test(test_stream_gives_the_same_in_order),
        cmocka_unit_test(test_reader_says_how_many_ranks),
        cmocka_unit_test(test_changed_attributes),
        cmocka_unit_test(test_changed_datasets),
        cmocka_unit_test(test_flipped_bits_and_cuts),
        cmocka_unit_test(test_failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, prepare, scratch_remove);
}
