/* galvani inspect: which kind of file or directory it is. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/h5.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/options.h"
#include "shard/shard_file.h"
#include "trace/run_mend.h"
#include "trace/run_types.h"

enum { PATH_BYTES = 4096 };

/* An HDF5 file by its format attribute. */
static status_t inspect_h5(const char *path, bool verify) {
    hid_t file;
    char *format;
    TRY(h5_open_for_read(path, &file, NULL));
    status_t status = h5_get_text(file, "format", path, &format);
    H5Fclose(file);
    TRY(status);
    if (strcmp(format, RUN_FORMAT) == 0)
        status = inspect_run(path, verify);
    else if (strcmp(format, SHARD_FORMAT) == 0)
        status = inspect_shard(path, verify);
    else
        status = status_fail(STATUS_INPUT, "%s has the format \"%s\", which is neither a shard nor a run file", path,
                             format);
    memory_free(format);
    return status;
}

static status_t inspect_directory(const char *directory, bool verify) {
    if (inspect_has_shards(directory)) return inspect_shard_directory(directory, verify);
    char config[PATH_BYTES];
    TRY(file_join(directory, "config.json", config, sizeof config));
    if (!file_exists(config))
        return status_fail(STATUS_INPUT,
                           "%s holds neither shards (model.rank<r>of<T>.h5) nor a checkpoint (config.json)", directory);
    return inspect_checkpoint(directory);
}

/* Whether the file begins as HDF5 files do; the rest may be damaged. */
static status_t has_h5_signature(const char *path, bool *has) {
    static const char signature[8] = "\x89HDF\r\n\x1a\n";
    char begin[sizeof signature] = "";
    FILE *file = fopen(path, "rb");
    if (!file) return status_fail(STATUS_INPUT, "cannot open %s: %m", path);
    size_t n = fread(begin, 1, sizeof begin, file);
    fclose(file);
    *has = n == sizeof begin && memcmp(begin, signature, sizeof begin) == 0;
    return STATUS_OK;
}

static bool has_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), n = strlen(suffix);
    return length >= n && strcmp(path + length - n, suffix) == 0;
}

static status_t inspect_path(const char *path, bool verify) {
    if (file_is_directory(path)) return inspect_directory(path, verify);
    bool is_h5;
    TRY(has_h5_signature(path, &is_h5));
    if (is_h5) return inspect_h5(path, verify);
    if (has_suffix(path, ".safetensors")) return inspect_safetensors(path);
    return status_fail(STATUS_INPUT, "%s is neither an HDF5 file (or its beginning is damaged) nor a safetensors file",
                       path);
}

static status_t inspect(options_t *options) {
    if (options->n_words != 1)
        return status_fail(STATUS_USAGE, "galvani inspect takes one file or directory; see galvani inspect --help");
    const char *path = options->words[0];
    if (options->mend) {
        bool was_mended;
        TRY(run_mend(path, &was_mended));
        log_info("%s %s", path, was_mended ? "is mended" : "was closed by its writer and needs no mending");
    }
    return inspect_path(path, options->verify);
}

status_t cli_inspect(int argc, char **argv, comm_t *comm) {
    (void)comm;
    h5_survive_damage();
    return options_run(
        COMMAND_INSPECT,
        "galvani inspect FILE|DIR [--verify] [--mend]\n\n"
        "Says what a shard, a run file, a safetensors file, a directory of shards or a checkpoint holds.",
        argc, argv, inspect);
}
