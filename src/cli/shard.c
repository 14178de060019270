/* galvani shard. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "shard/convert.h"
#include "trace/provenance.h"

static status_t agree(void *context, status_t status) { return comm_agree(context, status); }

static void all_gather(void *context, const void *data, size_t bytes, void *gathered) {
    comm_all_gather(context, data, bytes, gathered);
}

static status_t check_options(const options_t *options, int n_ranks) {
    if (!options->checkpoint) return status_fail(STATUS_USAGE, "--checkpoint is missing; see galvani shard --help");
    if (!options->out) return status_fail(STATUS_USAGE, "--out is missing; see galvani shard --help");
    if (options->tp < 1) return status_fail(STATUS_USAGE, "--tp is missing; see galvani shard --help");
    if (n_ranks != 1 && n_ranks != options->tp)
        return status_fail(STATUS_USAGE,
                           "galvani shard --tp %d runs as one process, or as %d under mpirun -np %d, not as %d",
                           (int)options->tp, (int)options->tp, (int)options->tp, n_ranks);
    return STATUS_OK;
}

static status_t convert(const options_t *options, comm_t *comm) {
    int n_ranks = comm_tp_size(comm);
    TRY(check_options(options, n_ranks));
    char created_by[128];
    snprintf(created_by, sizeof created_by, "galvani %s", provenance_commit());
    const shard_group_t group = {comm, agree, all_gather};
    const shard_convert_args_t args = {
        .checkpoint = options->checkpoint,
        .output = options->out,
        .created_by = created_by,
        .tp_size = (int)options->tp,
        .n_threads = comm_local_cores(comm),
        .tp_rank = n_ranks > 1 ? comm_tp_rank(comm) : SHARD_ALL_RANKS,
        .quantize_experts = options->quantize_experts != NULL,
        .show_progress = !options->quiet && comm_tp_rank(comm) == 0,
        .group = n_ranks > 1 ? &group : NULL,
    };
    return shard_convert(&args);
}

status_t cli_shard(int argc, char **argv, comm_t *comm) {
    option_store_t *store;
    TRY(option_store_create(&store));
    options_t options;
    status_t status = comm_agree(comm, options_parse(store, COMMAND_SHARD, argc, argv, &options));
    if (status == STATUS_OK && options.help) {
        if (comm_tp_rank(comm) == 0)
            options_help(stdout, COMMAND_SHARD, "[mpirun -np T] galvani shard --checkpoint DIR --out DIR --tp T");
    } else if (status == STATUS_OK) {
        options_apply(&options);
        status = convert(&options, comm);
    }
    option_store_destroy(store);
    return status;
}
