#include "shard/transfer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/interrupt.h"
#include "base/memory.h"
#include "checkpoint/nvfp4.h"

enum {
    READ_BYTES = 512 << 10,  /* bytes read at a time, as whole rows */
    AGREE_BYTES = 128 << 20, /* a failure elsewhere is seen after that many bytes */
    MAX_OUTPUTS = 3          /* codes, scales and scale_2 */
};

/* The datasets that one pass over some sources fills: one, or the three parts of quantised experts. */
typedef struct pass {
    plan_dataset_t dataset;
    size_t first_index;
    int n_outputs;
    shard_stream_t **streams; /* [n_targets, MAX_OUTPUTS], NULL where the file has the dataset already */
} pass_t;

/* What becomes of a BF16 word in FP16; a table of all words is ten times as fast as rounding each value. */
typedef struct narrowing {
    uint16_t half;
    uint8_t overflows, is_inexact;
} narrowing_t;

static void fill_narrowing(narrowing_t *table) {
    for (uint32_t bits = 0; bits < 1 << 16; bits++) {
        float value = bf16_to_float((uint16_t)bits);
        uint16_t half = f16_from_float(value);
        bool overflows = (half & 0x7C00) == 0x7C00;
        if (overflows) half = (uint16_t)((half & 0x8000) | 0x7BFF);
        table[bits] = (narrowing_t){half, overflows, !overflows && f16_to_float(half) != value};
    }
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Values of an expert's matrix, where experts are quantised: it must be in memory whole. */
static size_t matrix_values(const transfer_t *transfer) {
    if (transfer->options->expert_format != EXPERTS_NVFP4 ||
        transfer->options->inventory.expert_storage == STORED_NVFP4)
        return 0;
    return (size_t)transfer->config->hidden_size * (size_t)transfer->config->moe_intermediate_size;
}

/* Room for many rows, and for at least one of any source. No source has longer rows than the ranks' parts of a dataset
 * together, or wider items than FP32. */
static size_t rows_bytes(const transfer_t *transfer) {
    size_t bytes = larger(READ_BYTES, matrix_values(transfer) * sizeof(uint16_t));
    for (size_t i = 0; i < transfer->n_tensors; i++) {
        const schema_tensor_t *tensor = &transfer->tensors[i];
        size_t row_items = (size_t)tensor->shape[tensor->n_dims - 1] * (size_t)transfer->options->tp_size;
        bytes = larger(bytes, row_items * sizeof(float));
    }
    return bytes;
}

status_t transfer_begin(transfer_t *transfer) {
    transfer->rows_bytes = rows_bytes(transfer);
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, transfer->rows_bytes, 1, &memory));
    transfer->rows = memory;
    TRY(memory_alloc(MEMORY_OTHER, transfer->rows_bytes, 1, &memory));
    transfer->gathered = memory;
    TRY(memory_alloc(MEMORY_OTHER, transfer->rows_bytes, 2, &memory)); /* BF16 widens to FP32 */
    transfer->converted = memory;
    TRY(memory_alloc(MEMORY_OTHER, matrix_values(transfer) / 2, 1, &memory));
    transfer->codes = memory;
    TRY(memory_alloc(MEMORY_OTHER, matrix_values(transfer) / NVFP4_BLOCK, 1, &memory));
    transfer->scales = memory;
    if (transfer->options->expert_format == EXPERTS_NVFP4) return STATUS_OK;
    TRY(memory_alloc(MEMORY_OTHER, 1 << 16, sizeof(narrowing_t), &memory));
    transfer->narrowing = memory;
    fill_narrowing(transfer->narrowing);
    return STATUS_OK;
}

void transfer_end(transfer_t *transfer) {
    memory_free(transfer->rows);
    memory_free(transfer->gathered);
    memory_free(transfer->converted);
    memory_free(transfer->codes);
    memory_free(transfer->scales);
    memory_free(transfer->narrowing);
}

/* Whether codes, scales or numbers of that role must be finite. */
static bool is_checked(role_t role) {
    return (role >= ROLE_EXPERT_GATE && role <= ROLE_EXPERTS_DOWN) ||
           (role >= ROLE_PLE_TABLE_SHARD && role <= ROLE_PLE_TABLE_SCALE);
}

static bool is_bad_item(dtype_t dtype, const unsigned char *data, size_t i) {
    uint16_t half;
    float single;
    switch (dtype) {
    case DTYPE_F8_E4M3:
        return (data[i] & 0x7F) == 0x7F;
    case DTYPE_BF16:
        memcpy(&half, data + 2 * i, sizeof half);
        return (half & 0x7F80) == 0x7F80;
    case DTYPE_F32:
        memcpy(&single, data + 4 * i, sizeof single);
        return !isfinite(single);
    default:
        return false;
    }
}

/* The same for many, in loops that the compiler makes vectors of. */
static bool has_bad_item(dtype_t dtype, const unsigned char *data, size_t n) {
    unsigned bad = 0;
    if (dtype == DTYPE_F8_E4M3) {
        for (size_t i = 0; i < n; i++)
            bad |= (unsigned)((data[i] & 0x7F) == 0x7F);
    } else if (dtype != DTYPE_U8) {
        for (size_t i = 0; i < n; i++)
            bad |= (unsigned)is_bad_item(dtype, data, i);
    }
    return bad != 0;
}

static status_t check_rows(const checkpoint_tensor_t *tensor, const unsigned char *data, int64_t first_row,
                           int64_t n_rows, int64_t row_items) {
    dtype_t dtype = tensor->info->dtype;
    size_t n = (size_t)(n_rows * row_items), i = 0;
    if (!has_bad_item(dtype, data, n)) return STATUS_OK;
    while (!is_bad_item(dtype, data, i))
        i++;
    int64_t row = first_row + (int64_t)i / row_items, column = (int64_t)i % row_items;
    return status_fail(STATUS_INPUT, "tensor %s holds %s at row %" PRId64 ", column %" PRId64, tensor->info->name,
                       dtype == DTYPE_F8_E4M3 ? "the FP8 code of NaN" : "NaN or infinity", row, column);
}

/* The checksum of a source is a sum over its rows, each hashed with its tensor's name and its number, so that the
 * processes that share the reading can add up their parts, however many they are. */
static void account_rows(transfer_t *transfer, const checkpoint_tensor_t *tensor, const unsigned char *data,
                         int64_t first_row, int64_t n_rows, size_t row_bytes) {
    uint64_t seed = hash_xxh3(tensor->info->name, strlen(tensor->info->name));
    for (int64_t i = 0; i < n_rows; i++)
        transfer->dataset_content +=
            hash_xxh3_seeded(data + (size_t)i * row_bytes, row_bytes, seed + (uint64_t)(first_row + i));
}

/* Whether this process answers for what it reads of a source; exactly one process does. */
static bool is_accountable(const transfer_t *transfer, const plan_dataset_t *dataset, int64_t source_index) {
    int tp_size = transfer->options->tp_size;
    if (transfer->n_targets == tp_size) return true;
    int tp_rank = transfer->targets[0].tp_rank;
    if (dataset->slice == SLICE_ROWS && dataset->conversion != CONVERT_TO_NVFP4)
        return tp_rank % (tp_size / dataset->n_parts) == 0;
    return source_index % tp_size == tp_rank;
}

/* Looks whether other processes have failed, at the same places of the file on all of them. */
static status_t poll_group(transfer_t *transfer) {
    if (!transfer->group) return STATUS_OK;
    for (; transfer->polled_bytes + AGREE_BYTES <= transfer->moved_bytes; transfer->polled_bytes += AGREE_BYTES) {
        status_t status = transfer->group->agree(transfer->group->context, STATUS_OK);
        transfer->has_agreed_on_failure = status != STATUS_OK;
        TRY(status);
    }
    return STATUS_OK;
}

static status_t append(transfer_t *transfer, shard_stream_t *stream, const void *data, size_t bytes) {
    TRY(interrupt_check());
    TRY(shard_stream_append(stream, data, bytes));
    progress_add(transfer->progress, bytes);
    transfer->moved_bytes += bytes;
    return STATUS_OK;
}

static void convert_to_f16(transfer_t *transfer, const unsigned char *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        const narrowing_t *narrow = &transfer->narrowing[bits];
        transfer->n_overflow += narrow->overflows;
        transfer->n_inexact += narrow->is_inexact;
        memcpy(transfer->converted + 2 * i, &narrow->half, sizeof narrow->half);
    }
}

static void convert_to_f32(transfer_t *transfer, dtype_t dtype, const unsigned char *data, size_t n) {
    if (dtype == DTYPE_F32) {
        memcpy(transfer->converted, data, 4 * n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, data + 2 * i, sizeof bits);
        float value = bf16_to_float(bits);
        memcpy(transfer->converted + 4 * i, &value, sizeof value);
    }
}

/* Appends bytes [first, first + width) of each of `n_rows` rows, converted. */
static status_t append_rows(transfer_t *transfer, shard_stream_t *stream, const unsigned char *rows, size_t row_bytes,
                            size_t n_rows, size_t first, size_t width, conversion_t conversion, dtype_t dtype) {
    const unsigned char *data = rows;
    size_t bytes = n_rows * width;
    if (width != row_bytes) {
        for (size_t i = 0; i < n_rows; i++)
            memcpy(transfer->gathered + i * width, rows + i * row_bytes + first, width);
        data = transfer->gathered;
    }
    if (conversion == CONVERT_TO_F16) {
        convert_to_f16(transfer, data, bytes / 2);
        data = transfer->converted;
    } else if (conversion == CONVERT_TO_F32) {
        size_t n = bytes / dtype_bytes(dtype);
        convert_to_f32(transfer, dtype, data, n);
        data = transfer->converted;
        bytes = 4 * n;
    }
    return append(transfer, stream, data, bytes);
}

/* Appends to each target what it holds of rows [first_row, first_row + n_rows) of the source, which stand in memory. */
static status_t distribute(transfer_t *transfer, const pass_t *pass, const plan_source_t *source, dtype_t dtype,
                           int64_t first_row, int64_t n_rows) {
    size_t item_bytes = dtype_bytes(dtype), row_bytes = (size_t)source->row_items * item_bytes;
    for (int i = 0; i < transfer->n_targets; i++) {
        shard_stream_t *stream = pass->streams[i * MAX_OUTPUTS];
        if (!stream) continue;
        plan_piece_t piece =
            plan_piece(&pass->dataset, source, transfer->targets[i].tp_rank, transfer->options->tp_size);
        int64_t first = piece.first_row > first_row ? piece.first_row : first_row;
        int64_t last = piece.first_row + piece.n_rows;
        if (last > first_row + n_rows) last = first_row + n_rows;
        if (first >= last) continue;
        TRY(append_rows(transfer, stream, transfer->rows + (size_t)(first - first_row) * row_bytes, row_bytes,
                        (size_t)(last - first), (size_t)piece.first_item * item_bytes,
                        (size_t)piece.n_items * item_bytes, pass->dataset.conversion, dtype));
    }
    return STATUS_OK;
}

static status_t transfer_source(transfer_t *transfer, const pass_t *pass, int64_t source_index) {
    plan_source_t source;
    plan_source(transfer->config, transfer->options, &pass->dataset, source_index, &source);
    const checkpoint_tensor_t *tensor = role_find(transfer->checkpoint, source.place);
    dtype_t dtype = tensor->info->dtype;
    size_t row_bytes = (size_t)source.row_items * dtype_bytes(dtype);
    int64_t first = source.first_row, last = source.first_row + source.n_rows;
    if (transfer->n_targets == 1) {
        plan_piece_t piece =
            plan_piece(&pass->dataset, &source, transfer->targets[0].tp_rank, transfer->options->tp_size);
        first = piece.first_row;
        last = piece.first_row + piece.n_rows;
    }
    int64_t step = (int64_t)(transfer->rows_bytes / row_bytes);
    bool accountable = is_accountable(transfer, &pass->dataset, source_index);
    for (int64_t row = first; row < last; row += step) {
        int64_t n_rows = last - row < step ? last - row : step;
        TRY(checkpoint_read(transfer->checkpoint, tensor, (uint64_t)row * row_bytes, (size_t)n_rows * row_bytes,
                            transfer->rows));
        if (is_checked(source.place.role)) TRY(check_rows(tensor, transfer->rows, row, n_rows, source.row_items));
        if (accountable) account_rows(transfer, tensor, transfer->rows, row, n_rows, row_bytes);
        TRY(distribute(transfer, pass, &source, dtype, row, n_rows));
        TRY(poll_group(transfer));
    }
    return STATUS_OK;
}

/* One expert's matrix: scale_2 comes from the whole of it, so that it does not depend on the number of ranks. */
static status_t quantize_source(transfer_t *transfer, const pass_t *pass, int64_t source_index) {
    plan_source_t source;
    plan_source(transfer->config, transfer->options, &pass->dataset, source_index, &source);
    const checkpoint_tensor_t *tensor = role_find(transfer->checkpoint, source.place);
    size_t n_items = (size_t)(source.n_rows * source.row_items), row_bytes = (size_t)source.row_items * 2;
    TRY(checkpoint_read(transfer->checkpoint, tensor, (uint64_t)source.first_row * row_bytes, n_items * 2,
                        transfer->rows));
    TRY(check_rows(tensor, transfer->rows, source.first_row, source.n_rows, source.row_items));
    if (is_accountable(transfer, &pass->dataset, source_index))
        account_rows(transfer, tensor, transfer->rows, source.first_row, source.n_rows, row_bytes);

    const uint16_t *values = (const uint16_t *)(const void *)transfer->rows;
    float scale_2 = nvfp4_scale_2(nvfp4_amax(values, n_items));
    nvfp4_quantize(values, n_items, scale_2, transfer->codes, transfer->scales);
    for (int i = 0; i < transfer->n_targets; i++) {
        shard_stream_t **streams = &pass->streams[i * MAX_OUTPUTS];
        if (!streams[0]) continue;
        plan_piece_t piece =
            plan_piece(&pass->dataset, &source, transfer->targets[i].tp_rank, transfer->options->tp_size);
        size_t skipped = (size_t)((piece.first_row - source.first_row) * source.row_items);
        size_t row_items = (size_t)source.row_items, first = (size_t)piece.first_item, n = (size_t)piece.n_items;
        TRY(append_rows(transfer, streams[0], transfer->codes + skipped / 2, row_items / 2, (size_t)piece.n_rows,
                        first / 2, n / 2, CONVERT_COPY, DTYPE_U8));
        TRY(append_rows(transfer, streams[1], transfer->scales + skipped / NVFP4_BLOCK, row_items / NVFP4_BLOCK,
                        (size_t)piece.n_rows, first / NVFP4_BLOCK, n / NVFP4_BLOCK, CONVERT_COPY, DTYPE_F8_E4M3));
        TRY(append(transfer, streams[2], &scale_2, sizeof scale_2));
    }
    return poll_group(transfer);
}

static status_t run_pass(transfer_t *transfer, const pass_t *pass) {
    for (int64_t i = 0; i < pass->dataset.n_sources; i++) {
        if (pass->dataset.conversion == CONVERT_TO_NVFP4)
            TRY(quantize_source(transfer, pass, i));
        else
            TRY(transfer_source(transfer, pass, i));
    }
    if (pass->dataset.n_sources == 0) {
        const float one = 1.0f;
        for (int i = 0; i < transfer->n_targets; i++) {
            if (pass->streams[i * MAX_OUTPUTS]) TRY(append(transfer, pass->streams[i * MAX_OUTPUTS], &one, sizeof one));
        }
    }
    return STATUS_OK;
}

/* Opens the streams of all files that lack a dataset of the pass; `*n_open` says how many files that are. */
static status_t open_streams(transfer_t *transfer, const pass_t *pass, int *n_open) {
    *n_open = 0;
    for (int i = 0; i < transfer->n_targets; i++) {
        shard_writer_t *writer = transfer->targets[i].writer;
        if (!writer) continue;
        bool whole = true;
        for (int j = 0; j < pass->n_outputs; j++)
            whole = whole && shard_writer_has(writer, pass->first_index + (size_t)j, &transfer->dataset_content);
        if (whole) continue;
        for (int j = 0; j < pass->n_outputs; j++)
            TRY(shard_stream_open(writer, pass->first_index + (size_t)j, &pass->streams[i * MAX_OUTPUTS + j]));
        (*n_open)++;
    }
    return STATUS_OK;
}

static status_t close_streams(const transfer_t *transfer, const pass_t *pass, status_t status) {
    for (int i = 0; i < transfer->n_targets * MAX_OUTPUTS; i++) {
        if (status != STATUS_OK || !pass->streams[i]) {
            shard_stream_abandon(pass->streams[i]);
            continue;
        }
        status = shard_stream_close(pass->streams[i], transfer->dataset_content);
        if (status == STATUS_OK)
            status = verifier_submit(transfer->verifier, transfer->targets[i / MAX_OUTPUTS].writer,
                                     pass->first_index + (size_t)(i % MAX_OUTPUTS));
    }
    return status;
}

/* Bytes of the datasets that a pass fills, in one rank's file. */
static status_t pass_bytes(const transfer_t *transfer, const pass_t *pass, uint64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < pass->n_outputs; i++) {
        size_t dataset_bytes;
        TRY(schema_tensor_bytes(&transfer->tensors[pass->first_index + (size_t)i], &dataset_bytes));
        *bytes += dataset_bytes;
    }
    return STATUS_OK;
}

static status_t transfer_pass(transfer_t *transfer, const pass_t *pass) {
    uint64_t start_bytes = transfer->moved_bytes, bytes;
    TRY(pass_bytes(transfer, pass, &bytes));
    int n_unfinished = 0, n_open;
    for (int i = 0; i < transfer->n_targets; i++)
        n_unfinished += transfer->targets[i].writer != NULL;
    status_t status = open_streams(transfer, pass, &n_open);
    progress_skip(transfer->progress, bytes * (uint64_t)(n_unfinished - n_open));
    if (status == STATUS_OK && n_open > 0) {
        transfer->dataset_content = 0;
        status = run_pass(transfer, pass);
    }
    TRY(close_streams(transfer, pass, status));
    transfer->content += transfer->dataset_content;
    transfer->moved_bytes = start_bytes + bytes;
    return poll_group(transfer);
}

status_t transfer_dataset(transfer_t *transfer, size_t index) {
    const char *path = transfer->tensors[index].path;
    pass_t pass = {.first_index = index, .n_outputs = 1};
    TRY(plan_dataset(transfer->config, transfer->options, path, &pass.dataset));
    if (pass.dataset.conversion == CONVERT_TO_NVFP4) {
        if (!strstr(path, "_codes")) return STATUS_OK;
        pass.n_outputs = MAX_OUTPUTS;
    }
    void *memory;
    TRY(memory_alloc(MEMORY_OTHER, (size_t)transfer->n_targets * MAX_OUTPUTS, sizeof *pass.streams, &memory));
    pass.streams = memory;
    status_t status = transfer_pass(transfer, &pass);
    memory_free(pass.streams);
    return status;
}
