#include "model/runner.h"

#include <string.h>

#include "base/clock.h"

typedef struct recording {
    void *work;       /* the backend's; NULL: not made yet */
    op_mark_t *marks; /* [n_marks]: the stamps that it makes */
    size_t n_marks;
} recording_t;

/* Where the trace does not stamp every op of all steps, it does so in a generation's first decode steps, in one when
 * all is warm, and in every so many-th from there: stamps make a step some tenths longer. */
enum { DETAIL_FIRST = 16, DETAIL_INTERVAL = 512 };

/* In device memory. */
typedef struct advance_state {
    int64_t begin_ns;
    uint64_t n_records;
} advance_state_t;

struct runner {
    runner_args_t args;
    bool record;

    /* The decode step, recorded when it runs the second time: the first loads the device's code, which may not happen
     * while recording. */
    recording_t plain, detailed; /* without and with the trace's stamps */
    bool is_recorded_ahead;      /* they are steps whose token stays on the device */
    op_trace_level_t recorded_level;
    int64_t n_decoded, n_tokens; /* decode steps so far; tokens of the last step */

    /* Where tokens may stay on the device. */
    advance_args_t advance;
    advance_record_t *records; /* the ring as the host sees it */
    uint64_t n_queued, n_awaited;
    bool has_token;  /* the step's input is the choice that was queued last */
    uint64_t marked; /* the number of the choice whose step made stamps that were not read; 0: none */
    bool is_marked_decode;
    bool was_choice_only;          /* the oldest queued choice has no step of its own */
    int64_t end_ns, device_end_ns; /* of the choice before, on this rank's clock and the device's */
    token_pair_t pairs[ADVANCE_MAX_RANKS];
};

static status_t create_advance(runner_t *runner) {
    backend_t *backend = runner->args.backend;
    void *memory;
    TRY(backend->ops->alloc(backend, MEMORY_STATE, sizeof(advance_state_t), &memory));
    advance_state_t *state = memory;
    runner->advance.begin_ns = &state->begin_ns;
    runner->advance.n_records = &state->n_records;
    TRY(backend->ops->alloc(backend, MEMORY_PINNED, ADVANCE_N_RECORDS * sizeof(advance_record_t), &memory));
    runner->advance.records = memory;
    runner->records = backend->ops->host_address(backend, memory);
    return STATUS_OK;
}

status_t runner_create(const runner_args_t *args, runner_t **runner) {
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, 1, sizeof(runner_t), &memory));
    runner_t *created = memory;
    created->args = *args;
    status_t status = args->backend->advance_refusal ? STATUS_OK : create_advance(created);
    if (status != STATUS_OK) {
        runner_destroy(created);
        return status;
    }
    *runner = created;
    return STATUS_OK;
}

static void free_recording(backend_t *backend, recording_t *recording) {
    if (recording->work) backend->ops->record_free(backend, recording->work);
    memory_free(recording->marks);
    *recording = (recording_t){0};
}

void runner_destroy(runner_t *runner) {
    if (!runner) return;
    backend_t *backend = runner->args.backend;
    if (runner_n_ahead(runner) > 0) (void)backend->ops->synchronize(backend);
    runner_forget_recordings(runner);
    backend->ops->free(backend, runner->advance.begin_ns);
    backend->ops->free(backend, runner->advance.records);
    memory_free(runner);
}

void runner_set_record(runner_t *runner, bool record) { runner->record = record; }

void runner_forget_recordings(runner_t *runner) {
    free_recording(runner->args.backend, &runner->plain);
    free_recording(runner->args.backend, &runner->detailed);
}

size_t runner_n_launches(const runner_t *runner) {
    const recording_t *recording = runner->plain.work ? &runner->plain : &runner->detailed;
    return recording->work ? runner->args.backend->ops->record_n_launches(recording->work) : 0;
}

/* A decode step's ops; `is_ahead`: its token is on the device, and so will be the next one. */
static status_t decode_ops(runner_t *runner, bool is_ahead) {
    backend_t *backend = runner->args.backend;
    if (is_ahead) TRY(backend->ops->advance_begin(backend, &runner->advance));
    TRY(step_compute(runner->args.step, runner->args.weights, runner->args.sequence, 1, true));
    return is_ahead ? step_advance(runner->args.step, &runner->advance, 1) : STATUS_OK;
}

static status_t make_recording(runner_t *runner, bool is_ahead, recording_t *recording) {
    backend_t *backend = runner->args.backend;
    op_trace_t *trace = runner->args.trace;
    size_t n_before = trace->n_marks;
    TRY(backend->ops->record_begin(backend));
    status_t status = decode_ops(runner, is_ahead);
    status_t ended = backend->ops->record_end(backend, &recording->work);
    TRY(status != STATUS_OK ? status : ended);
    void *memory;
    recording->n_marks = trace->n_marks - n_before;
    TRY(memory_alloc(MEMORY_OTHER, recording->n_marks, sizeof(op_mark_t), &memory));
    recording->marks = memory;
    memcpy(recording->marks, trace->marks + n_before, recording->n_marks * sizeof(op_mark_t));
    trace->n_marks = n_before;
    return STATUS_OK;
}

/* Those that the trace's level asks for, at once: the one that is needed later would else cost a step its time then. */
static status_t make_recordings(runner_t *runner, bool is_ahead) {
    op_trace_t *trace = runner->args.trace;
    const bool is_detailed = trace->is_detailed, is_quiet = trace->is_quiet;
    status_t status = STATUS_OK;
    runner_forget_recordings(runner);
    runner->is_recorded_ahead = is_ahead;
    runner->recorded_level = trace->level;
    if (trace->level != OP_TRACE_OPS) {
        trace->is_detailed = false;
        trace->is_quiet = is_ahead;
        status = make_recording(runner, is_ahead, &runner->plain);
    }
    if (status == STATUS_OK && trace->level != OP_TRACE_OFF) {
        trace->is_detailed = true;
        trace->is_quiet = false;
        status = make_recording(runner, is_ahead, &runner->detailed);
    }
    trace->is_detailed = is_detailed;
    trace->is_quiet = is_quiet;
    return status;
}

/* Whether there is a recording for such a step. */
static bool is_made(const runner_t *runner, bool is_ahead, bool is_detailed) {
    const recording_t *recording = is_detailed ? &runner->detailed : &runner->plain;
    return recording->work && runner->is_recorded_ahead == is_ahead &&
           runner->recorded_level == runner->args.trace->level;
}

/* Whether the decode step that comes now may be a recording. */
static bool may_record(const runner_t *runner) {
    return runner->n_decoded > 0 && runner->record && runner->args.backend->can_record &&
           !step_is_observed(runner->args.step);
}

/* decode_ops, by a recording where that may be; it is made here if there is none. */
static status_t decode(runner_t *runner, bool is_ahead) {
    backend_t *backend = runner->args.backend;
    op_trace_t *trace = runner->args.trace;
    recording_t *recording = trace->is_detailed ? &runner->detailed : &runner->plain;
    bool is_recordable = may_record(runner);
    runner->n_decoded++;
    trace->n_decoded++;
    if (!is_recordable) return decode_ops(runner, is_ahead);
    if (!is_made(runner, is_ahead, trace->is_detailed)) TRY(make_recordings(runner, is_ahead));
    TRY(backend->ops->replay(backend, recording->work));
    op_trace_replay(trace, recording->marks, recording->n_marks);
    return STATUS_OK;
}

/* Whether the trace stamps every op of a decode step that comes now. */
static bool wants_detail(const runner_t *runner) {
    op_trace_level_t level = runner->args.trace->level;
    if (level != OP_TRACE_STEPS) return level == OP_TRACE_OPS;
    int64_t n_decoded = runner->args.trace->n_decoded;
    return n_decoded <= 1 || n_decoded % DETAIL_INTERVAL == DETAIL_FIRST;
}

status_t runner_run(runner_t *runner, const int32_t *tokens, int64_t n_tokens, bool want_logits) {
    op_trace_t *trace = runner->args.trace;
    sequence_t *sequence = runner->args.sequence;
    runner->has_token = false;
    trace->is_detailed = (n_tokens > 1 && trace->level == OP_TRACE_STEPS) || wants_detail(runner);
    TRY(step_upload(runner->args.step, sequence, tokens, n_tokens));
    if (n_tokens == 1 && want_logits)
        TRY(decode(runner, false));
    else
        TRY(step_compute(runner->args.step, runner->args.weights, sequence, n_tokens, want_logits));
    op_trace_stamp(trace, OP_GROUP_OTHER, "end");
    runner->n_tokens = n_tokens;
    sequence_advance(sequence, tokens, n_tokens);
    return STATUS_OK;
}

status_t runner_queue_choice(runner_t *runner) {
    TRY(step_advance(runner->args.step, &runner->advance, runner->n_tokens));
    runner->has_token = true;
    runner->marked = ++runner->n_queued;
    runner->is_marked_decode = runner->n_tokens == 1;
    runner->was_choice_only = true;
    return STATUS_OK;
}

status_t runner_queue_step(runner_t *runner) {
    op_trace_t *trace = runner->args.trace;
    trace->is_detailed = wants_detail(runner);
    trace->is_quiet = !trace->is_detailed; /* the device's records have its begin and end */
    status_t status = decode(runner, true);
    trace->is_quiet = false;
    TRY(status);
    runner->n_queued++;
    if (!trace->is_detailed) return STATUS_OK;
    runner->marked = runner->n_queued;
    runner->is_marked_decode = true;
    return STATUS_OK;
}

bool runner_can_queue_step(const runner_t *runner) {
    return runner->marked == 0 && may_record(runner) && is_made(runner, true, wants_detail(runner));
}

bool runner_has_token(const runner_t *runner) { return runner->has_token; }

int runner_n_ahead(const runner_t *runner) { return (int)(runner->n_queued - runner->n_awaited); }

status_t runner_await(runner_t *runner, int32_t token, choice_t *choice) {
    backend_t *backend = runner->args.backend;
    op_trace_t *trace = runner->args.trace;
    uint64_t number = runner->n_awaited + 1;
    const advance_record_t *record = &runner->records[(number - 1) % ADVANCE_N_RECORDS];
    TRY(backend->ops->await(backend, &record->number, number));
    runner->n_awaited = number;
    /* Nothing is queued behind a choice with stamps, so it is seen as it comes: there the two clocks are put together.
     */
    if (number != runner->marked) {
        runner->end_ns += record->end_ns - runner->device_end_ns;
        op_trace_share(trace, record->end_ns - record->begin_ns);
    } else {
        runner->end_ns = clock_now_ns();
        runner->marked = 0;
        TRY(op_trace_collect(trace, runner->is_marked_decode));
    }
    runner->device_end_ns = record->end_ns;
    if (!runner->was_choice_only) sequence_advance(runner->args.sequence, &token, 1);
    memcpy(runner->pairs, record->pairs, sizeof runner->pairs);
    runner->was_choice_only = false;
    *choice = (choice_t){.token = record->token, .pairs = runner->pairs, .end_ns = runner->end_ns};
    return STATUS_OK;
}

void runner_drop(runner_t *runner) {
    runner->n_awaited = runner->n_queued;
    runner->has_token = false;
    runner->marked = 0;
    op_trace_drop(runner->args.trace);
}
