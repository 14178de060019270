/* A shard file with damage. The input is a list of changes, five bytes each: a place in the file and the byte to stand
 * there. Whatever is changed, the file is either refused or reads as the original does. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "shard/convert.h"
#include "shard/reader.h"

enum { CHANGE_BYTES = 5, MAX_CHANGES = 64 };

static char directory[] = "/tmp/galvani-fuzz-XXXXXX";
static char path[sizeof directory + 32];
static char digest[65];
static int fd;
static uint32_t file_bytes;

static void remove_directory(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", directory);
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, status_message());
    abort();
}

/* HDF5 1.10 leaks where its own structures are damaged. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return 1; }

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes the undamaged file. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    log_set_level(LOG_ERROR);
    if (!mkdtemp(directory)) fail("no directory");
    atexit(remove_directory);
    const shard_convert_args_t args = {
        .checkpoint = "tests/golden/ties/checkpoint", .output = directory, .tp_size = 1, .tp_rank = 0};
    if (shard_convert(&args) != STATUS_OK) fail("no shard");
    snprintf(path, sizeof path, "%s/model.rank0of1.h5", directory);
    fd = open(path, O_RDWR);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) fail("no file");
    file_bytes = (uint32_t)info.st_size;
    shard_reader_t *reader;
    if (shard_reader_open(directory, 0, 1, &reader) != STATUS_OK) fail("no reader");
    strcpy(digest, shard_reader_info(reader)->model_digest);
    shard_reader_close(reader);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t places[MAX_CHANGES];
    uint8_t kept[MAX_CHANGES];
    size_t n = size / CHANGE_BYTES;
    if (n > MAX_CHANGES) n = MAX_CHANGES;
    for (size_t i = 0; i < n; i++) {
        memcpy(&places[i], data + i * CHANGE_BYTES, sizeof places[i]);
        places[i] %= file_bytes;
        if (pread(fd, &kept[i], 1, places[i]) != 1 || pwrite(fd, &data[i * CHANGE_BYTES + 4], 1, places[i]) != 1)
            fail("cannot change the file");
    }
    status_clear();
    shard_reader_t *reader = NULL;
    status_t status = shard_reader_open(directory, 0, 1, &reader);
    if (status == STATUS_OK) {
        if (strcmp(shard_reader_info(reader)->model_digest, digest) != 0) fail("another model");
        status = shard_reader_verify(reader);
    }
    shard_reader_close(reader);
    if (status != STATUS_OK && status_message()[0] == '\0') fail("a failure without a reason");
    for (size_t i = n; i-- > 0;) {
        if (pwrite(fd, &kept[i], 1, places[i]) != 1) fail("cannot restore the file");
    }
    return 0;
}
