#include "trace/run_header.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/h5.h"
#include "trace/provenance.h"
#include "trace/run_types.h"

/* Root attributes of what is known at the start. */
static herr_t put_attributes(hid_t file, const run_file_args_t *args) {
    char host[PROVENANCE_TEXT_BYTES], hdf5[PROVENANCE_TEXT_BYTES], time[32];
    provenance_host(host);
    provenance_hdf5(hdf5);
    clock_utc_text(time, sizeof time);
    const struct {
        const char *name, *value;
    } texts[] = {
        {"format", RUN_FORMAT},
        {"command_line", args->command_line},
        {"effective_config", args->effective_config_json},
        {"model_config", args->model_config_json},
        {"model_digest", args->model_digest},
        {"git_commit", provenance_commit()},
        {"host", host},
        {"rank_hosts", args->rank_hosts},
        {"backend", args->backend},
        {"gpus", args->gpus},
        {"driver_version", args->driver},
        {"cuda_version", args->cuda},
        {"nccl_version", args->nccl},
        {"mpi_version", args->mpi},
        {"hdf5_version", hdf5},
        {"start_time", time},
    };
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"format_version", RUN_FORMAT_VERSION},      {"tp_size", args->n_ranks}, {"pid", getpid()}, {"complete", 0},
        {"bytes_per_s", (int64_t)args->bytes_per_s},
    };
    herr_t result = 0;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && result >= 0; i++)
        result = h5_put_text(file, texts[i].name, texts[i].value ? texts[i].value : "");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && result >= 0; i++)
        result = h5_put_int(file, numbers[i].name, numbers[i].value);
    provenance_fact_t facts[PROVENANCE_MAX_FACTS];
    size_t n_facts = provenance_slurm(facts);
    for (size_t i = 0; i < n_facts && result >= 0; i++)
        result = h5_put_text(file, facts[i].name, facts[i].value);
    return result;
}

static herr_t put_groups(hid_t file) {
    static const char *const names[] = {"/tokens", "/text", "/steps", "/sampling", "/decomposition", "/clocks"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        hid_t group = H5Gcreate2(file, names[i], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        if (group < 0) return -1;
        H5Gclose(group);
    }
    return 0;
}

status_t run_header_write(hid_t file, const run_file_args_t *args) {
    herr_t result = put_attributes(file, args);
    if (result >= 0) result = put_groups(file);
    if (result >= 0)
        result = run_put_dataset(file, "/tokens/prompt", H5T_NATIVE_INT32, 1, &(hsize_t){args->n_prompt}, args->prompt);
    if (result >= 0 && args->prompt_text)
        result = run_put_text(file, "/text/prompt", args->prompt_text, strlen(args->prompt_text));
    if (result >= 0) result = run_put_routes(file, args->routes, args->n_routes);
    if (result >= 0)
        result = run_put_rank_table(file, "/clocks/start", run_clock_type(), args->n_ranks, args->clocks, "ns");
    return result < 0 ? h5_fail(STATUS_DEVICE, "write", args->path) : STATUS_OK;
}
