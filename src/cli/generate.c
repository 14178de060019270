#include "cli/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/recorder.h"
#include "comm/watchdog.h"
#include "text/utf8_stream.h"

/* What rank 0 tells the others about a request. */
typedef struct job {
    int64_t n_prompt, max_new, start_ns;
    sampling_t sampling;
    bool ignore_eos;
    op_trace_level_t trace;
} job_t;

/* The generated text: printed as it comes and kept for the run file. Without a tokenizer the ids are printed. */
typedef struct output {
    bool enabled; /* rank 0 */
    const tokenizer_t *tokenizer;
    utf8_stream_t stream;
    char *text;
    size_t text_bytes, capacity;
} output_t;

typedef struct generation {
    const generate_context_t *context;
    job_t job;
    int32_t *prompt;    /* [n_prompt] */
    int32_t *generated; /* [max_new] */
    int64_t *wall_ns;   /* [max_new]; [0] is the prefill's */
    int64_t n_generated;
    output_t output; /* rank 0 */
    const char *stop_reason;
    generate_result_t *result; /* NULL if nobody asks */
} generation_t;

static status_t allocate(size_t n, size_t item_bytes, void **pointer) {
    return memory_alloc(MEMORY_OTHER, n, item_bytes, pointer);
}

static bool is_rank0(const generation_t *generation) { return comm_tp_rank(generation->context->comm) == 0; }

/* Makes room for `bytes` more and a NUL. */
static status_t output_reserve(output_t *output, size_t bytes) {
    if (output->text_bytes + bytes < output->capacity) return STATUS_OK;
    size_t larger = 2 * (output->text_bytes + bytes + 128);
    void *memory;
    TRY(allocate(larger, 1, &memory));
    if (output->text) memcpy(memory, output->text, output->text_bytes);
    memory_free(output->text);
    output->text = memory;
    output->capacity = larger;
    return STATUS_OK;
}

static void output_print(output_t *output, size_t bytes) {
    fwrite(output->text + output->text_bytes, 1, bytes, stdout);
    fflush(stdout);
    output->text_bytes += bytes;
}

static status_t output_token(output_t *output, int32_t token) {
    if (!output->enabled) return STATUS_OK;
    if (!output->tokenizer) {
        printf("%" PRId32 " ", token);
        fflush(stdout);
        return STATUS_OK;
    }
    if (tokenizer_is_special(output->tokenizer, token)) return STATUS_OK;
    size_t n;
    const char *bytes = tokenizer_token_bytes(output->tokenizer, token, &n);
    if (!bytes) return STATUS_OK;
    TRY(output_reserve(output, UTF8_STREAM_ROOM(n)));
    output_print(output, utf8_stream_push(&output->stream, bytes, n, output->text + output->text_bytes));
    return STATUS_OK;
}

static status_t output_end(output_t *output) {
    if (!output->enabled) return STATUS_OK;
    if (output->tokenizer) {
        TRY(output_reserve(output, UTF8_STREAM_ROOM(0)));
        output_print(output, utf8_stream_flush(&output->stream, output->text + output->text_bytes));
    }
    fputc('\n', stdout);
    fflush(stdout);
    return STATUS_OK;
}

/* Without a run file, and without anybody who asks for the result, nobody would read the times. */
static job_t make_job(const request_t *request, bool is_traced) {
    const options_t *options = &request->options;
    return (job_t){.n_prompt = (int64_t)request->n_tokens,
                   .max_new = options->max_new,
                   .start_ns = clock_now_ns(),
                   .sampling = {.temperature = options->temperature,
                                .top_p = options->top_p,
                                .top_k = options->top_k,
                                .seed = (uint64_t)options->seed,
                                .keep_logits = options->logits,
                                .n_top_logprobs = (int)options->top_logprobs},
                   .ignore_eos = options->ignore_eos,
                   .trace = is_traced ? op_trace_level_from_name(options->trace) : OP_TRACE_OFF};
}

/* Every rank gets the job and the prompt. */
static status_t generation_begin(generation_t *generation, const request_t *request, const char *path) {
    comm_t *comm = generation->context->comm;
    if (is_rank0(generation)) {
        generation->job = make_job(request, path || generation->result);
        generation->output =
            (output_t){.enabled = !generation->context->silent, .tokenizer = generation->context->tokenizer};
    }
    comm_broadcast(comm, &generation->job, sizeof generation->job);
    const job_t *job = &generation->job;
    void *memory = NULL;
    status_t status = allocate((size_t)job->n_prompt, sizeof(int32_t), &memory);
    generation->prompt = memory;
    if (status == STATUS_OK) {
        status = allocate((size_t)job->max_new, sizeof(int32_t), &memory);
        generation->generated = status == STATUS_OK ? memory : NULL;
    }
    if (status == STATUS_OK) {
        status = allocate((size_t)job->max_new, sizeof(int64_t), &memory);
        generation->wall_ns = status == STATUS_OK ? memory : NULL;
    }
    TRY(comm_agree(comm, status));
    if (is_rank0(generation)) memcpy(generation->prompt, request->tokens, request->n_tokens * sizeof(int32_t));
    comm_broadcast(comm, generation->prompt, (size_t)job->n_prompt * sizeof(int32_t));
    return engine_reset(generation->context->engine);
}

/* Of a token in the middle of what is to be generated: the cache grows a little from token to token. */
static void add_floor(const generation_t *generation, run_file_args_t *file) {
    cost_t cost;
    engine_cost(generation->context->engine, generation->job.n_prompt + generation->job.max_new / 2, &cost);
    for (int group = 0; group < OP_N_GROUPS; group++)
        file->floor_bytes[group] = cost_group_bytes(&cost, (op_group_t)group);
    const cost_device_t *device = cost_find_device(file->gpus);
    file->bytes_per_s = device ? device->bytes_per_s : 0;
}

static status_t generation_open(const generation_t *generation, const request_t *request, const char *path,
                                recorder_t **recorder) {
    const generate_context_t *context = generation->context;
    engine_info_t info = engine_get_info(context->engine);
    run_file_args_t file;
    char *options_text = NULL;
    json_t *options = NULL;
    run_route_t routes[RECORDER_MAX_ROUTES];
    if (path) {
        options = options_to_json(context->command, &request->options);
        options_text = json_dumps(options, JSON_INDENT(1));
        file = (run_file_args_t){.path = path,
                                 .n_ranks = comm_tp_size(context->comm),
                                 .vocab_size = info.vocab_size,
                                 .max_new = generation->job.max_new,
                                 .command_line = context->command_line,
                                 .effective_config_json = options_text,
                                 .model_config_json = info.config_json,
                                 .model_digest = info.model_digest,
                                 .backend = context->backend->ops->name,
                                 .gpus = context->backend->facts.devices,
                                 .driver = context->backend->facts.driver,
                                 .cuda = context->backend->facts.cuda,
                                 .nccl = context->backend->facts.nccl,
                                 .mpi = comm_library(context->comm),
                                 .rank_hosts = comm_hosts(context->comm),
                                 .prompt = generation->prompt,
                                 .n_prompt = (size_t)generation->job.n_prompt,
                                 .prompt_text = request->text,
                                 .has_logits = generation->job.sampling.keep_logits,
                                 .has_ops = generation->job.trace == OP_TRACE_OPS,
                                 .n_top_logprobs = generation->job.sampling.n_top_logprobs,
                                 .routes = routes,
                                 .n_routes = recorder_routes(context->engine, routes)};
    }
    if (path) add_floor(generation, &file);
    recorder_args_t args = {.comm = context->comm,
                            .engine = context->engine,
                            .start_ns = generation->job.start_ns,
                            .trace = generation->job.trace,
                            .file = path ? &file : NULL};
    status_t status = recorder_create(&args, recorder);
    free(options_text);
    json_decref(options);
    return status;
}

/* The step that has just ended, before its times are forgotten. */
static void add_to_result(generation_t *generation, int64_t wall_ns) {
    generate_result_t *result = generation->result;
    if (!result) return;
    result->wall_ns[result->n_generated++] = wall_ns;
    if (result->n_generated <= result->warmup) return;
    const op_trace_t *trace = engine_trace(generation->context->engine);
    int64_t busy_ns = 0;
    for (int group = 0; group < OP_GROUP_HOST_GAP; group++) {
        result->group_ns[group] += trace->group_ns[group];
        busy_ns += trace->group_ns[group];
    }
    result->group_ns[OP_GROUP_HOST_GAP] += wall_ns - busy_ns;
}

/* Prefill, then a token a step until a stop. */
static status_t generation_loop(generation_t *generation, recorder_t *recorder) {
    const generate_context_t *context = generation->context;
    const job_t *job = &generation->job;
    int64_t begin_ns = clock_now_ns();
    decode_args_t decode = {.sampling = &job->sampling}; /* its `outside` is rank 0's own, told to the others there */
    TRY(engine_forward(context->engine, generation->prompt, (size_t)job->n_prompt));
    if (generation->result) {
        TRY(context->backend->ops->synchronize(context->backend));
        generation->result->prefill_ns = clock_now_ns() - begin_ns;
    }
    while (generation->n_generated < job->max_new) {
        if (is_rank0(generation) && decode.outside == STATUS_OK && interrupt_signal())
            decode.outside = status_fail(STATUS_INTERRUPTED, "stopped by signal %d after %" PRId64 " tokens",
                                         interrupt_signal(), generation->n_generated);
        decode.is_last = generation->n_generated + 1 == job->max_new;
        sample_t sample;
        TRY(engine_decode_next(context->engine, &decode, &sample));
        TRY(watchdog_check());
        int64_t wall_ns = sample.end_ns - begin_ns;
        generation->generated[generation->n_generated] = sample.token;
        generation->wall_ns[generation->n_generated++] = wall_ns;
        add_to_result(generation, wall_ns);
        decode.outside = recorder_add(recorder, &sample, begin_ns, sample.end_ns);
        begin_ns = sample.end_ns;
        if (!job->ignore_eos && generation_config_is_eos(&context->stops, sample.token)) {
            generation->stop_reason = "eos";
            break;
        }
        status_t printed = output_token(&generation->output, sample.token);
        if (decode.outside == STATUS_OK) decode.outside = printed;
    }
    return comm_agree(context->comm, decode.outside);
}

static int compare_ns(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Latency as a user reads it: first token, then the steady rate and its spread. Sorts wall_ns. */
static void print_summary(generation_t *generation, const char *path) {
    const generate_context_t *context = generation->context;
    int64_t *decode_ns = generation->wall_ns + 1;
    int64_t n = generation->n_generated - 1;
    double ttft_ms = (double)generation->wall_ns[0] / 1e6;
    log_info("prefill  %" PRId64 " tokens in %.1f ms (TTFT), %.1f tokens/s", generation->job.n_prompt, ttft_ms,
             (double)generation->job.n_prompt / ttft_ms * 1e3);
    if (n > 0) {
        int64_t total_ns = 0;
        for (int64_t i = 0; i < n; i++)
            total_ns += decode_ns[i];
        qsort(decode_ns, (size_t)n, sizeof *decode_ns, compare_ns);
        log_info("decode   %" PRId64 " tokens, %.1f tokens/s; TPOT mean %.2f ms, median %.2f, p99 %.2f", n,
                 (double)n / (double)total_ns * 1e9, (double)total_ns / (double)n / 1e6, (double)decode_ns[n / 2] / 1e6,
                 (double)decode_ns[n * 99 / 100] / 1e6);
    }
    char hash[HASH_SHA256_TEXT_BYTES];
    if (hash_sha256_text(generation->generated, (size_t)generation->n_generated * sizeof(int32_t), hash) == STATUS_OK)
        log_info("tokens   %" PRId64 " generated, stopped by %s, hash %.16s", generation->n_generated,
                 generation->stop_reason, hash);
    log_info("ran on   %d rank%s, %s backend%s%s", comm_tp_size(context->comm),
             comm_tp_size(context->comm) == 1 ? "" : "s", context->backend->ops->name, path ? "; run file " : "",
             path ? path : "");
}

status_t generate(const generate_context_t *context, const request_t *request, const char *path,
                  generate_result_t *result) {
    generation_t generation = {.context = context, .stop_reason = "length", .result = result};
    recorder_t *recorder = NULL;
    status_t status;
    TRY_GOTO(generation_begin(&generation, request, path), out);
    TRY_GOTO(generation_open(&generation, request, path, &recorder), out);
    status = generation_loop(&generation, recorder);
    if (status == STATUS_OK || status == STATUS_INTERRUPTED) {
        if (status == STATUS_INTERRUPTED) generation.stop_reason = "signal";
        status_t printed = output_end(&generation.output);
        status_t ended =
            recorder_finish(recorder, generation.output.text, generation.output.text_bytes, generation.stop_reason);
        ended = comm_agree(context->comm, printed != STATUS_OK ? printed : ended);
        if (status == STATUS_OK) status = ended;
    }
    if (status == STATUS_OK && result)
        status = hash_sha256_text(generation.generated, (size_t)generation.n_generated * sizeof(int32_t),
                                  result->token_hash);
    if (status == STATUS_OK && is_rank0(&generation) && !context->silent) print_summary(&generation, path);
out:
    recorder_destroy(recorder);
    memory_free(generation.output.text);
    memory_free(generation.prompt);
    memory_free(generation.generated);
    memory_free(generation.wall_ns);
    return status;
}
