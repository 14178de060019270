/* What a run file holds, and whether its parts agree. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "cli/inspect.h"
#include "cli/tensor_table.h"
#include "trace/summary.h"

enum { TEXT_SHOWN_BYTES = 200 };

static void print_line(const char *label, const char *text) {
    if (text && text[0]) printf("%-12s %s\n", label, text);
}

/* One line of a text: control characters as blanks, cut between UTF-8 characters. */
static void print_text(const char *label, size_t n_tokens, const char *text, size_t text_bytes) {
    printf("%-12s %zu token%s", label, n_tokens, n_tokens == 1 ? "" : "s");
    if (text) {
        size_t n = text_bytes < TEXT_SHOWN_BYTES ? text_bytes : TEXT_SHOWN_BYTES;
        while (n < text_bytes && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        fputs(": \"", stdout);
        for (size_t i = 0; i < n; i++)
            putchar((unsigned char)text[i] < ' ' ? ' ' : text[i]);
        fputs(n < text_bytes ? "...\"" : "\"", stdout);
    }
    putchar('\n');
}

static void print_versions(const run_record_t *record) {
    const struct {
        const char *name, *text;
    } versions[] = {{"MPI", record->mpi_version},       {"HDF5", record->hdf5_version}, {"CUDA", record->cuda_version},
                    {"driver", record->driver_version}, {"NCCL", record->nccl_version}, {"GPUs", record->gpus}};
    printf("%-12s git %s", "program", record->git_commit);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (versions[i].text[0]) printf(", %s %s", versions[i].name, versions[i].text);
    putchar('\n');
}

static void print_memory(const run_record_t *record) {
    if (!record->memory) return;
    printf("\n%-12s", "memory");
    for (int i = 0; i < RUN_N_MEMORY; i++)
        printf(" %13s", run_memory_name(i));
    putchar('\n');
    for (int64_t rank = 0; rank < record->n_ranks; rank++) {
        int64_t bytes[RUN_N_MEMORY];
        memcpy(bytes, &record->memory[rank], sizeof bytes);
        printf("rank %-7" PRId64, rank);
        char text[BYTES_TEXT_BYTES];
        for (int i = 0; i < RUN_N_MEMORY; i++)
            printf(" %13s", bytes[i] ? bytes_text((uint64_t)bytes[i], text) : "-");
        putchar('\n');
    }
}

static void print_tables(const run_record_t *record) {
    printf("%-12s /tokens /steps /decomposition", "holds");
    if (record->n_pairs) printf(" /sampling/pairs");
    if (record->has_logits) printf(" /sampling/logits");
    if (record->has_ops) printf(" /ops (%zu rows)", record->n_ops);
    if (record->memory) printf(" /memory");
    printf(" /routes (%zu rows)\n", record->n_routes);
    for (size_t i = 0; i < record->n_routes; i++)
        printf("%-12s %s: %s (%s)\n", "route", record->routes[i].name, record->routes[i].chosen,
               record->routes[i].reason);
}

static status_t print_run(const run_record_t *record, const char *path) {
    printf("%-12s %s: %s\n", "run file", path, run_state_text(record->state));
    if (record->is_open_for_write)
        printf("%-12s other programs must open it as SWMR reader (h5py: swmr=True)%s\n", "note",
               record->state == RUN_RUNNING ? "" : "; galvani inspect --mend makes it an ordinary file");
    print_line("command", record->command_line);
    printf("%-12s %s on %s, %" PRId64 " rank%s, backend %s\n", "started", record->start_time, record->host,
           record->n_ranks, record->n_ranks == 1 ? "" : "s", record->backend);
    if (record->end_time) printf("%-12s %s, stopped by: %s\n", "ended", record->end_time, record->stop_reason);
    print_versions(record);
    print_line("model digest", record->model_digest);
    print_text("prompt", record->n_prompt, record->prompt_text, record->prompt_text_bytes);
    print_text("generated", record->n_steps, record->text, record->text_bytes);
    print_line("token_hash", record->token_hash);
    run_summary_t summary;
    TRY(summary_build(record, summary_first_step(record, -1), &summary));
    if (record->n_steps) printf("%-12s first token %.2f ms", "time", summary.ttft);
    if (summary.tpot.n)
        printf(", then %.3f ms a token (%.2f tokens/s) over steps %zu to %zu", summary.tpot.mean,
               1e3 / summary.tpot.mean, summary.tpot.first, record->n_steps - 1);
    if (record->n_steps) putchar('\n');
    summary_release(&summary);
    print_tables(record);
    print_memory(record);
    return STATUS_OK;
}

/* Whether the parts of every step add up to its wall time on every rank, within 1 %. */
static status_t verify_parts(const run_record_t *record, const char *path) {
    size_t n_ranks = (size_t)record->n_ranks;
    for (size_t at = 0; at < record->n_steps * n_ranks; at++) {
        double sum = 0, wall = (double)record->wall_ns[at / n_ranks] / 1e6;
        for (int part = 0; part < RUN_N_PARTS; part++)
            sum += (double)record->part_ms[part][at];
        if (!(fabs(sum - wall) <= 0.01 * fabs(wall)))
            return status_fail(STATUS_INPUT, "%s: /decomposition of step %zu, rank %zu adds up to %g ms, not %g", path,
                               at / n_ranks, at % n_ranks, sum, wall);
    }
    return STATUS_OK;
}

static status_t verify_run(const run_record_t *record, const char *path) {
    if (record->token_hash) {
        char hash[HASH_SHA256_TEXT_BYTES];
        TRY(hash_sha256_text(record->generated, record->n_steps * sizeof(int32_t), hash));
        if (strcmp(hash, record->token_hash) != 0)
            return status_fail(STATUS_INPUT, "%s: /tokens/generated has the hash %s, not token_hash %s", path, hash,
                               record->token_hash);
    }
    TRY(verify_parts(record, path));
    printf("%-12s %sthe parts of every step add up\n", "verified",
           record->token_hash ? "token_hash is that of /tokens/generated; " : "");
    return STATUS_OK;
}

status_t inspect_run(const char *path, bool verify) {
    run_record_t *record;
    TRY(run_record_load(path, true, &record));
    status_t status = print_run(record, path);
    if (status == STATUS_OK && verify) status = verify_run(record, path);
    run_record_free(record);
    return status;
}
