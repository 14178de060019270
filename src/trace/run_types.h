#ifndef GALVANI_TRACE_RUN_TYPES_H
#define GALVANI_TRACE_RUN_TYPES_H

/* Names and HDF5 types that writer and reader of a run file share (docs/formats.md). The caller closes the types with
 * H5Tclose; they are negative on failure. */

#include <hdf5.h>
#include <stdint.h>

#include "trace/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RUN_FORMAT "galvani-run"
enum { RUN_FORMAT_VERSION = 1 };

/* The parts of /decomposition: the op groups, then what they leave of a step's wall time. */
enum { RUN_PART_REMAINDER = OP_N_GROUPS, RUN_N_PARTS };
const char *run_part_name(int part);

/* A row of /ops. The texts are padded with NUL. */
enum { RUN_OP_BYTES = 28, RUN_GROUP_BYTES = 16 };
typedef struct run_op {
    int32_t step, rank, layer;
    char op[RUN_OP_BYTES], group[RUN_GROUP_BYTES];
    int64_t start_ns, dur_ns;
} run_op_t;

/* UTF-8 of `bytes` bytes (at least 1), padded with NUL: a NUL inside the text survives. */
hid_t run_text_type(size_t bytes);

hid_t run_pair_type(void);   /* token_pair_t */
hid_t run_op_type(void);     /* run_op_t */
hid_t run_memory_type(void); /* run_memory_t */
hid_t run_clock_type(void);  /* clock_offset_t */

/* Number of members of run_memory_t, and the name of each in the order of the struct; all are int64_t. */
enum { RUN_N_MEMORY = 8 };
const char *run_memory_name(int index);

/* Creates a dataset that is written once; n_dims 0 is a scalar. `data` may be NULL if there are no items. Negative on
 * failure. */
herr_t run_put_dataset(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims, const void *data);
/* /routes: a table of three texts, each as wide as its longest. Negative on failure. */
herr_t run_put_routes(hid_t file, const run_route_t *routes, size_t n_routes);
herr_t run_put_text(hid_t file, const char *name, const char *text, size_t bytes);

/* A dataset [n_ranks] with its unit; closes `type`. */
herr_t run_put_rank_table(hid_t file, const char *name, hid_t type, int n_ranks, const void *data, const char *unit);

#ifdef __cplusplus
}
#endif
#endif
