#ifndef GALVANI_SHARD_PLAN_H
#define GALVANI_SHARD_PLAN_H

/* Who owns which rows: for each dataset of the schema, the source tensors that it is made of and the part of each that
 * a rank holds. Pure arithmetic on the config; no file is touched.
 *
 * A dataset is the concatenation, in order, of what a rank owns of its sources. A source is a run of rows of one
 * checkpoint tensor, whose leading dimensions are taken together as rows. */

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/inventory.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum slice { SLICE_NONE, SLICE_ROWS, SLICE_COLUMNS } slice_t;

typedef enum conversion {
    CONVERT_COPY,
    CONVERT_TO_F32,   /* BF16 or F32 to F32 */
    CONVERT_TO_F16,   /* BF16 to F16 */
    CONVERT_TO_NVFP4, /* BF16 to codes, scales and scale_2, together */
} conversion_t;

/* What the plan depends on beyond the config. */
typedef struct plan_options {
    int tp_size;
    expert_format_t expert_format; /* of the shard */
    inventory_t inventory;         /* of the checkpoint */
} plan_options_t;

/* How one dataset is made. */
typedef struct plan_dataset {
    slice_t slice;
    conversion_t conversion;
    int n_parts;       /* distinct parts; tp_size / n_parts neighbouring ranks share one */
    int64_t n_sources; /* 0 for a constant 1 (the scale of a BF16 table) */
    int64_t n_groups;  /* the experts, or 1: each group has as many sources and rows, in the same order */
    int rule;          /* private */
    int64_t layer;
} plan_dataset_t;

typedef struct plan_source {
    role_place_t place;
    int64_t first_row, n_rows; /* rows of the tensor */
    int64_t row_items;
    /* With SLICE_ROWS the parts divide `extent_rows` rows, of which this source is the run from `extent_first` on. */
    int64_t extent_first, extent_rows;
} plan_source_t;

/* What a rank holds of a source: rows [first_row, first_row + n_rows) of the tensor and of each row the items
 * [first_item, first_item + n_items). n_rows may be 0. */
typedef struct plan_piece {
    int64_t first_row, n_rows, first_item, n_items;
} plan_piece_t;

/* How the dataset with that schema path is made. With CONVERT_TO_NVFP4 the sources of ..._codes are those of the
 * _scales and _scale_2 beside it. STATUS_INPUT for a path that the schema does not know. */
status_t plan_dataset(const model_config_t *config, const plan_options_t *options, const char *path,
                      plan_dataset_t *dataset);

/* Source `index` of the dataset, 0 <= index < n_sources. */
void plan_source(const model_config_t *config, const plan_options_t *options, const plan_dataset_t *dataset,
                 int64_t index, plan_source_t *source);

/* What `tp_rank` owns of a source. */
plan_piece_t plan_piece(const plan_dataset_t *dataset, const plan_source_t *source, int tp_rank, int tp_size);

/* "replicated", "rows P/N" or "columns P/N": the part of N that `tp_rank` holds. */
void plan_slice_text(const plan_dataset_t *dataset, int tp_rank, int tp_size, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
