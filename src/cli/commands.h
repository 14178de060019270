#ifndef GALVANI_CLI_COMMANDS_H
#define GALVANI_CLI_COMMANDS_H

#include "base/status.h"
#include "comm/comm.h"

/* The subcommands, one file each. argv[0] is the subcommand's name. `comm` is NULL for those that run without MPI;
 * those with it run on every rank, return each rank's own status, and leave the agreement on it to main. */
status_t cli_run(int argc, char **argv, comm_t *comm);
status_t cli_bench(int argc, char **argv, comm_t *comm);
status_t cli_microbench(int argc, char **argv, comm_t *comm);
status_t cli_shard(int argc, char **argv, comm_t *comm);
status_t cli_model(int argc, char **argv, comm_t *comm);
status_t cli_inspect(int argc, char **argv, comm_t *comm);
status_t cli_trace(int argc, char **argv, comm_t *comm);

#endif
