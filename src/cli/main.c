/* The program: starts MPI for the subcommands that need it, calls one, and says what failed. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/cpu.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "comm/comm.h"
#include "comm/watchdog.h"
#include "trace/provenance.h"

typedef struct command {
    const char *name;
    status_t (*run)(int argc, char **argv, comm_t *comm);
    bool needs_mpi;
    const char *summary;
} command_t;

static const command_t commands[] = {
    {"shard", cli_shard, true, "convert a Hugging Face checkpoint to one HDF5 file a rank"},
    {"run", cli_run, true, "generate text and leave a run file; start it with mpirun -np T"},
    {"bench", cli_bench, true,
     "measure prefill and steady decode on a prompt of made-up tokens; start it with mpirun -np T"},
    {"microbench", cli_microbench, true,
     "measure one operator at a time against FP64 and against the bytes it must move"},
    {"model", cli_model, false, "model a decode step: bytes, launches and time of each part"},
    {"inspect", cli_inspect, false, "say what a shard, a run file or a checkpoint holds"},
    {"trace", cli_trace, false, "report, compare, export, plot or watch run files"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *stream) {
    fputs("usage: galvani COMMAND [options]; galvani COMMAND --help lists them\n\n", stream);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stream, "  %-10s  %s\n", commands[i].name, commands[i].summary);
    fputs("\ngalvani --version prints the version of the program and its libraries.\n", stream);
}

static const command_t *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* Text and tables that did not reach their file are lost, although every call to print them went well. */
static status_t check_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "standard output could not be written; is its disk full?");
}

int main(int argc, char **argv) {
    cpu_sleep_when_idle(argv);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help(stdout);
        return STATUS_OK;
    }
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
        provenance_print_version(stdout);
        backend_print_version(stdout);
        return STATUS_OK;
    }
    const command_t *command = argc >= 2 ? find_command(argv[1]) : NULL;
    /* A wrong command line is told by one rank of several, which needs MPI to know which one it is. */
    comm_t *comm = NULL;
    status_t status = STATUS_OK;
    if (!command || command->needs_mpi) {
        interrupt_install();
        status = watchdog_start(argc, argv);
        if (status == STATUS_OK) status = comm_init(&comm);
        if (comm && comm_tp_rank(comm) == 0) interrupt_acknowledge();
    }
    if (status == STATUS_OK) {
        if (command)
            status = command->run(argc - 1, argv + 1, comm);
        else if (argc < 2)
            status = status_fail(STATUS_USAGE, "no command given; see galvani --help");
        else
            status = status_fail(STATUS_USAGE, "\"%s\" is not a command; see galvani --help", argv[1]);
    }
    if (status == STATUS_OK) status = check_output();
    if (comm) status = comm_agree_at_end(comm, status);
    if (status != STATUS_OK && (!comm || comm_tp_rank(comm) == 0)) log_error("%s", status_message());
    if (comm) comm_finalize(comm);
    return (int)status;
}
