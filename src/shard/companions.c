#include "shard/companions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "shard/shard_file.h"

static status_t write_file(const char *path, const char *data, size_t bytes) {
    char partial[SHARD_PATH_BYTES + 16];
    snprintf(partial, sizeof partial, "%s.partial", path);
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return status_fail(STATUS_DEVICE, "cannot write %s: %s", partial, strerror(errno));
    status_t status = file_write_at(fd, partial, data, bytes, 0);
    if (close(fd) != 0 && status == STATUS_OK)
        status = status_fail(STATUS_DEVICE, "cannot write %s: %s", partial, strerror(errno));
    if (status == STATUS_OK && rename(partial, path) != 0)
        status = status_fail(STATUS_DEVICE, "cannot rename %s: %s", partial, strerror(errno));
    if (status != STATUS_OK) unlink(partial);
    return status;
}

static status_t copy_file(const char *from, const char *to) {
    struct stat source, target;
    if (stat(from, &source) != 0) return STATUS_OK;
    bool is_same = stat(to, &target) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino;
    if (is_same) return STATUS_OK;
    char *data;
    size_t bytes;
    TRY(file_read_all(from, &data, &bytes));
    status_t status = write_file(to, data, bytes);
    memory_free(data);
    return status;
}

status_t companions_copy(const char *checkpoint, const char *output) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[SHARD_PATH_BYTES], to[SHARD_PATH_BYTES];
        TRY(file_join(checkpoint, names[i], from, sizeof from));
        TRY(file_join(output, names[i], to, sizeof to));
        TRY(copy_file(from, to));
    }
    return STATUS_OK;
}
