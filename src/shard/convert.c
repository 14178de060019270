#include "shard/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "shard/companions.h"
#include "shard/shard_file.h"
#include "shard/transfer.h"

/* What one process tells the others at the end. */
typedef struct findings {
    uint64_t has_content, content; /* the source's checksum, where it is known */
    uint64_t part;                 /* of that checksum: what this process answers for */
    uint64_t n_overflow, n_inexact;
} findings_t;

/* All that one conversion holds. */
typedef struct conversion_job {
    const shard_convert_args_t *args;
    checkpoint_t *checkpoint;
    model_config_t config;
    char *config_json, *source, *model_type;
    plan_options_t plan;
    int n_targets;
    transfer_target_t *targets;     /* [n_targets] */
    schema_options_t *rank_options; /* [n_targets] */
    schema_tensor_t **rank_tensors; /* [n_targets] */
    shard_note_t **rank_notes;      /* [n_targets] */
    findings_t *findings;           /* [tp_size] */
    size_t n_tensors;
    char identity[HASH_SHA256_TEXT_BYTES];
    bool has_content; /* a file was whole already, so the source's checksum is known */
    uint64_t content;
} job_t;

/* The root attribute `source`: what the conversion read, as a JSON list. */
static status_t describe_source(job_t *job) {
    size_t n_files;
    const checkpoint_file_t *files = checkpoint_files(job->checkpoint, &n_files);
    json_t *list = json_array();
    for (size_t i = 0; i < n_files; i++) {
        char digest[HASH_XXH3_TEXT_BYTES];
        hash_xxh3_text(files[i].header_xxh3, digest);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s, s:I}", "name", files[i].name, "bytes",
                                              (json_int_t)files[i].bytes, "digest", digest, "modified_ns",
                                              (json_int_t)files[i].modified_ns));
    }
    char *text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    if (!text) return status_fail(STATUS_MEMORY, "no memory for the list of source files");
    void *memory;
    status_t status = memory_alloc(MEMORY_OTHER, strlen(text) + 1, 1, &memory);
    if (status == STATUS_OK) job->source = strcpy(memory, text);
    free(text);
    return status;
}

static status_t read_config(job_t *job) {
    char path[SHARD_PATH_BYTES];
    size_t bytes;
    TRY(file_join(job->args->checkpoint, "config.json", path, sizeof path));
    TRY(file_read_all(path, &job->config_json, &bytes));
    json_t *root;
    TRY(json_read_text(job->config_json, bytes, path, &root));
    status_t status = config_parse(root, path, STATUS_INPUT, &job->config);
    void *memory;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (status == STATUS_OK) status = memory_alloc(MEMORY_OTHER, strlen(type) + 1, 1, &memory);
    if (status == STATUS_OK) job->model_type = strcpy(memory, type);
    json_decref(root);
    return status;
}

static status_t read_checkpoint(job_t *job) {
    TRY(read_config(job));
    TRY(schema_check_tp(&job->config, job->args->tp_size, STATUS_USAGE));
    TRY(checkpoint_open(job->args->checkpoint, &job->checkpoint));
    inventory_t *inventory = &job->plan.inventory;
    TRY(inventory_check(job->checkpoint, &job->config, inventory));
    bool is_nvfp4 = inventory->expert_storage == STORED_NVFP4 || job->args->quantize_experts;
    job->plan.tp_size = job->args->tp_size;
    job->plan.expert_format = is_nvfp4 ? EXPERTS_NVFP4 : EXPERTS_F16;
    if (inventory->expert_storage == STORED_NVFP4 && job->args->quantize_experts)
        log_info("the experts are NVFP4 already: nothing to quantise");
    log_info("%s: %zu text tensors (%.2f GB); skipped: %zu of MTP (%.2f GB), %zu of vision (%.2f GB)",
             job->args->checkpoint, inventory->text.n_tensors, (double)inventory->text.bytes / 1e9,
             inventory->mtp.n_tensors, (double)inventory->mtp.bytes / 1e9, inventory->visual.n_tensors,
             (double)inventory->visual.bytes / 1e9);
    return describe_source(job);
}

/* Everything that decides the contents of the files, as one digest. */
static status_t identify(job_t *job) {
    size_t bytes = strlen(job->source) + strlen(job->config_json) + 128;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, bytes, 1, &memory));
    char *text = memory;
    int used =
        snprintf(text, bytes, "%d %d %d %d\n%s\n%s", SHARD_FORMAT_VERSION, job->plan.tp_size,
                 (int)job->plan.expert_format, (int)job->plan.inventory.ple_dtype, job->source, job->config_json);
    status_t status = hash_sha256_text(text, (size_t)used, job->identity);
    memory_free(text);
    return status;
}

static void describe_dataset(const job_t *job, const plan_dataset_t *dataset, int tp_rank, shard_note_t *note) {
    plan_slice_text(dataset, tp_rank, job->plan.tp_size, note->slice, sizeof note->slice);
    if (dataset->n_sources == 0) return;
    plan_source_t first, last;
    char first_name[ROLE_NAME_BYTES], last_name[ROLE_NAME_BYTES];
    plan_source(&job->config, &job->plan, dataset, 0, &first);
    plan_source(&job->config, &job->plan, dataset, dataset->n_sources - 1, &last);
    role_name(first.place, first_name);
    role_name(last.place, last_name);
    bool same = strcmp(first_name, last_name) == 0;
    snprintf(note->source_name, sizeof note->source_name, "%s%s%s", first_name, same ? "" : " ... ",
             same ? "" : last_name);
}

static status_t prepare_target(job_t *job, int target, int tp_rank) {
    schema_options_t *options = &job->rank_options[target];
    *options = (schema_options_t){tp_rank, job->plan.tp_size, job->plan.expert_format, job->plan.inventory.ple_dtype};
    TRY(schema_build(&job->config, options, &job->rank_tensors[target], &job->n_tensors));
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, job->n_tensors, sizeof(shard_note_t), &memory));
    job->rank_notes[target] = memory;
    for (size_t i = 0; i < job->n_tensors; i++) {
        plan_dataset_t dataset;
        TRY(plan_dataset(&job->config, &job->plan, job->rank_tensors[target][i].path, &dataset));
        describe_dataset(job, &dataset, tp_rank, &job->rank_notes[target][i]);
    }
    const shard_writer_args_t writer_args = {
        .directory = job->args->output,
        .options = options,
        .tensors = job->rank_tensors[target],
        .notes = job->rank_notes[target],
        .n_tensors = job->n_tensors,
        .config_json = job->config_json,
        .model_type = job->model_type,
        .source = job->source,
        .created_by = job->args->created_by ? job->args->created_by : "galvani",
        .conversion = job->identity,
        .journal_kind = job->n_targets == job->plan.tp_size ? "by one process" : "by one process per rank",
    };
    job->targets[target].tp_rank = tp_rank;
    if (shard_writer_is_done(&writer_args, &job->content)) {
        job->has_content = true;
        return STATUS_OK;
    }
    return shard_writer_open(&writer_args, &job->targets[target].writer);
}

static status_t prepare(job_t *job) {
    const shard_convert_args_t *args = job->args;
    TRY(read_checkpoint(job));
    TRY(identify(job));
    if (mkdir(args->output, 0777) != 0 && errno != EEXIST)
        return status_fail(STATUS_DEVICE, "cannot create the directory %s: %s", args->output, strerror(errno));
    bool all = args->tp_rank == SHARD_ALL_RANKS;
    size_t n = all ? (size_t)args->tp_size : 1;
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *job->targets, &memory));
    job->targets = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *job->rank_options, &memory));
    job->rank_options = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *job->rank_tensors, &memory));
    job->rank_tensors = memory;
    TRY(memory_alloc(MEMORY_OTHER, n, sizeof *job->rank_notes, &memory));
    job->rank_notes = memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)args->tp_size, sizeof *job->findings, &memory));
    job->findings = memory;
    job->n_targets = (int)n;
    for (int i = 0; i < job->n_targets; i++)
        TRY(prepare_target(job, i, all ? i : args->tp_rank));
    return STATUS_OK;
}

static void release(job_t *job, bool discard) {
    for (int i = 0; i < job->n_targets; i++) {
        if (discard)
            shard_writer_discard(job->targets[i].writer);
        else
            shard_writer_close(job->targets[i].writer);
        memory_free(job->rank_tensors[i]);
        memory_free(job->rank_notes[i]);
    }
    memory_free(job->targets);
    memory_free(job->rank_options);
    memory_free(job->rank_tensors);
    memory_free(job->rank_notes);
    memory_free(job->findings);
    memory_free(job->config_json);
    memory_free(job->model_type);
    memory_free(job->source);
    checkpoint_close(job->checkpoint);
}

static status_t agree(const job_t *job, status_t status) {
    const shard_group_t *group = job->args->group;
    return group ? group->agree(group->context, status) : status;
}

/* Bytes of one rank's file. */
static status_t file_data_bytes(const job_t *job, uint64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < job->n_tensors; i++) {
        size_t tensor_bytes;
        TRY(schema_tensor_bytes(&job->rank_tensors[0][i], &tensor_bytes));
        *bytes += tensor_bytes;
    }
    return STATUS_OK;
}

static int n_unfinished(const job_t *job) {
    int n = 0;
    for (int i = 0; i < job->n_targets; i++)
        n += job->targets[i].writer != NULL;
    return n;
}

/* Adds up what the processes found. Where any file was whole before, it tells the source's checksum; the others may
 * then have read only part of the source. */
static void combine(job_t *job, transfer_t *transfer) {
    findings_t own = {job->has_content, job->content, transfer->content, transfer->n_overflow, transfer->n_inexact};
    const shard_group_t *group = job->args->group;
    int n = group ? job->plan.tp_size : 1;
    if (group)
        group->all_gather(group->context, &own, sizeof own, job->findings);
    else
        job->findings[0] = own;
    findings_t sum = {0};
    for (int i = 0; i < n; i++) {
        const findings_t *found = &job->findings[i];
        if (found->has_content) sum.has_content = 1, sum.content = found->content;
        sum.part += found->part;
        sum.n_overflow += found->n_overflow;
        sum.n_inexact += found->n_inexact;
    }
    job->content = sum.has_content ? sum.content : sum.part;
    transfer->n_overflow = sum.n_overflow;
    transfer->n_inexact = sum.n_inexact;
}

/* The datasets one after another by one thread, or the next one to whoever is free. */
static status_t transfer_datasets(job_t *job, transfer_t *transfer, size_t *next) {
    TRY(transfer_begin(transfer));
    for (;;) {
        size_t index;
#pragma omp atomic capture
        index = (*next)++;
        if (index >= job->n_tensors) return STATUS_OK;
        TRY(transfer_dataset(transfer, index));
    }
}

/* `transfer` is where each thread starts from, and holds the sum of their results in the end. */
static status_t transfer_all(job_t *job, transfer_t *transfer) {
    TRY(verifier_start(job->n_tensors * (size_t)job->n_targets, &transfer->verifier));
    const transfer_t start = *transfer;
    status_t status = STATUS_OK;
    size_t next = 0;
    int n_threads = job->args->n_threads > 1 && !job->args->group ? job->args->n_threads : 1;
#pragma omp parallel num_threads(n_threads)
    {
        transfer_t own = start;
        status_t own_status = transfer_datasets(job, &own, &next);
        transfer_end(&own);
        if (own_status != STATUS_OK) {
#pragma omp atomic write
            next = job->n_tensors;
        }
#pragma omp critical
        {
            transfer->content += own.content;
            transfer->n_overflow += own.n_overflow;
            transfer->n_inexact += own.n_inexact;
            transfer->has_agreed_on_failure |= own.has_agreed_on_failure;
            if (status == STATUS_OK) status = own_status;
        }
    }
    return status;
}

static status_t finish_all(job_t *job) {
    for (int i = 0; i < job->n_targets; i++) {
        if (job->targets[i].writer) TRY(shard_writer_finish(job->targets[i].writer, job->content));
    }
    bool is_first = job->args->tp_rank <= 0;
    return is_first ? companions_copy(job->args->checkpoint, job->args->output) : STATUS_OK;
}

static void report(const job_t *job, const transfer_t *transfer, uint64_t bytes, double seconds, double sync_seconds) {
    if (transfer->n_overflow || transfer->n_inexact)
        log_warning("experts in FP16: %" PRIu64 " values lay beyond its range and became the largest FP16, %" PRIu64
                    " lay below its normal range and were rounded",
                    transfer->n_overflow, transfer->n_inexact);
    int n = job->args->group ? job->plan.tp_size : n_unfinished(job);
    if (n == 0) {
        log_info("%s is up to date", job->args->output);
        return;
    }
    double gigabytes = (double)bytes * n / 1e9;
    log_info(
        "%s: %d files, %.2f GB, read back and compared, in %.1f s (%.0f MB/s), of which %.1f s waiting for the disk "
        "at the end; peak memory %.0f MB a process",
        job->args->output, n, gigabytes, seconds, 1e3 * gigabytes / seconds, sync_seconds,
        (double)memory_peak_rss_bytes() / 1e6);
}

static status_t convert(job_t *job) {
    uint64_t bytes = 0;
    status_t status = prepare(job);
    if (status == STATUS_OK) status = file_data_bytes(job, &bytes);
    TRY(agree(job, status));

    progress_t progress;
    transfer_t transfer = {
        .checkpoint = job->checkpoint,
        .config = &job->config,
        .options = &job->plan,
        .tensors = job->rank_tensors[0],
        .n_tensors = job->n_tensors,
        .targets = job->targets,
        .n_targets = job->n_targets,
        .group = job->args->group,
        .progress = &progress,
    };
    int n_files = n_unfinished(job);
    bool show = job->args->show_progress && n_files > 0;
    int64_t start_ns = clock_now_ns();
    progress_start(&progress, "writing", bytes * (uint64_t)n_files, show);
    status = transfer_all(job, &transfer);
    progress_end(&progress);
    status_t verified = verifier_finish(transfer.verifier, status != STATUS_OK);
    if (status == STATUS_OK) status = verified;
    if (!transfer.has_agreed_on_failure) status = agree(job, status);
    TRY(status);

    int64_t written_ns = clock_now_ns();
    combine(job, &transfer);
    TRY(agree(job, finish_all(job)));
    int64_t end_ns = clock_now_ns();
    report(job, &transfer, bytes, (double)(end_ns - start_ns) / 1e9, (double)(end_ns - written_ns) / 1e9);
    return STATUS_OK;
}

status_t shard_convert(const shard_convert_args_t *args) {
    job_t job = {.args = args};
    status_t status = convert(&job);
    release(&job, status != STATUS_OK && status != STATUS_INTERRUPTED);
    return status;
}
