#ifndef GALVANI_BACKEND_BACKEND_H
#define GALVANI_BACKEND_BACKEND_H

/* A backend is a table of functions, chosen once at start-up: memory, transfers, collectives and every op of kernels/.
 * The model calls nothing else, so it reads the same for the CPU and for CUDA. Pointers that an op takes are the
 * backend's own memory unless its contract says otherwise. Calls are in order; work may be pending until `synchronize`.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "advance/advance.h"
#include "argmax/argmax.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/comm.h"
#include "device/route.h"
#include "embed/embed.h"
#include "experts/experts.h"
#include "fill/fill.h"
#include "gdn/gdn.h"
#include "gr/gr.h"
#include "linear/dense8.h"
#include "linear/linear.h"
#include "lm_head/lm_head.h"
#include "moe/moe.h"
#include "ngram/ngram_rows.h"
#include "ple/ple.h"
#include "qsa/qsa.h"
#include "router/router.h"
#include "shared_expert/shared_expert.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct backend backend_t;

/* Time stamps at most, see mark; stages of large uploads, see stage. */
enum { BACKEND_MAX_MARKS = 16384, BACKEND_N_STAGES = 16, BACKEND_STAGE_BYTES = 1 << 20 };

typedef struct backend_ops {
    const char *name;        /* "cpu" or "cuda" */
    size_t activation_bytes; /* of one activation_t in this backend's memory */
    int64_t prefill_chunk;   /* tokens that prefill computes at once unless told otherwise */

    /* For the memory plan (model/memory_plan.h). */
    bool is_device;              /* its memory is a device's; the PLE table lies in pinned host memory */
    size_t runtime_bytes;        /* an estimate of what the device's libraries take: context, code, cuBLAS, NCCL */
    size_t recorded_layer_bytes; /* an estimate of a recorded step, for each layer */
    size_t alloc_granule;        /* what allocations of more than half of it are rounded up to; 0: they are not */
    size_t comm_peer_bytes;      /* communication buffers, for each rank of the job where there are several */

    /* Backend memory that each of n_ranks ranks of this host can have. */
    status_t (*available)(backend_t *backend, int n_ranks, size_t *bytes);

    /* Whether needed[label] bytes can be had on every rank of this host at once. To be asked before the first of them
     * allocates. STATUS_MEMORY says how much is needed and how much there is. */
    status_t (*check_memory)(backend_t *backend, const size_t needed[MEMORY_N_LABELS]);

    /* Zeroed memory, accounted under its label. `pointer` is written only on success. */
    status_t (*alloc)(backend_t *backend, memory_label_t label, size_t bytes, void **pointer);
    void (*free)(backend_t *backend, void *pointer); /* NULL is allowed */
    status_t (*zero)(backend_t *backend, void *pointer, size_t bytes);

    /* Where the host may read and write the memory itself; NULL where only upload and download reach it. */
    void *(*host_address)(backend_t *backend, void *pointer);

    /* Between host and backend memory; both return when the host side may be used again. */
    status_t (*upload)(backend_t *backend, void *destination, const void *host, size_t bytes);
    status_t (*download)(backend_t *backend, void *host, const void *source, size_t bytes);
    status_t (*synchronize)(backend_t *backend);

    /* Large uploads while loading: BACKEND_N_STAGES pieces of pinned host memory of BACKEND_STAGE_BYTES. `stage` gives
     * one when it is no longer copied from; `stage_upload` begins a copy of its first bytes, in order with the ops.
     * NULL where host_address reaches all memory. `loaded` frees them. */
    status_t (*stage)(backend_t *backend, int index, void **host);
    status_t (*stage_upload)(backend_t *backend, int index, void *destination, size_t bytes);

    /* Within the backend's memory, in order with the ops. */
    status_t (*copy)(backend_t *backend, void *destination, const void *source, size_t bytes);

    /* A weight matrix as it was stored becomes what the ops take: BF16 stays so on the CPU and is turned into FP16 on
     * CUDA, in place. `loaded` comes behind the last one and reports what FP16 could not hold. */
    status_t (*adopt_matrix)(backend_t *backend, matrix_t *matrix);
    status_t (*loaded)(backend_t *backend);

    /* Dense matrices in 8 bits (linear/dense8.h): `linear` and `gr_mix` take them, for many tokens by way of FP16 in
     * `scratch`, which has room for the largest and is borrowed until set to NULL. */
    bool takes_dense8;
    status_t (*dense8_quantize)(backend_t *backend, const dense8_args_t *args);
    status_t (*dense8_dequantize)(backend_t *backend, const dense8_args_t *args);
    void (*set_dense8_scratch)(backend_t *backend, activation_t *scratch); /* NULL without takes_dense8 */

    /* Work between `begin` and `end` is not run but recorded, as one unit that `replay` runs any number of times with
     * the same pointers. NULL where the backend cannot. Only ops and all_reduce may be recorded. */
    status_t (*record_begin)(backend_t *backend);
    status_t (*record_end)(backend_t *backend, void **recording);
    size_t (*record_n_launches)(const void *recording); /* kernels that a replay launches */
    status_t (*replay)(backend_t *backend, void *recording);
    void (*record_free)(backend_t *backend, void *recording); /* NULL is allowed */

    /* Time stamps of the device: number `index` behind the work so far, also where that is being recorded; later the
     * time of each of the first n since number 0, in ns, once the work is done. NULL where ops are done when they
     * return. */
    status_t (*mark)(backend_t *backend, size_t index);
    status_t (*read_marks)(backend_t *backend, size_t n, int64_t *ns);

    /* Returns when queued work has brought *word, in memory with a host address, to `value`; what that work wrote
     * before can be read then. STATUS_DEVICE if it failed, or ended without that. NULL without `advance`. */
    status_t (*await)(backend_t *backend, const uint64_t *word, uint64_t value);

    /* [N_KERNEL_ROUTES]: the state of its ops' fast paths, the backend's; a change holds for ops from then on, not for
     * recorded work. NULL where ops have the general form alone. */
    route_state_t *(*routes)(backend_t *backend);

    /* Rank r's `bytes` of backend memory stand at gathered + r * bytes in rank 0's host memory. `room` is as much host
     * memory, on every rank; `gathered` may be NULL on others than rank 0. Collective. */
    status_t (*gather)(backend_t *backend, const void *data, size_t bytes, void *room, void *gathered);

    /* Sum over ranks in rank order, the same bits on every rank. Collective. */
    status_t (*all_reduce)(backend_t *backend, activation_t *data, size_t n);

    /* Whether a sum over ranks of one token may be left to the gr_mix behind it: `producer` (NULL: moe_down, in the
     * joined form) then `sends` and `next` `receives`. NULL where the backend never does. To be asked once a sum, the
     * same on every rank. */
    bool (*defers_sum)(backend_t *backend, const linear_args_t *producer, const gr_mix_args_t *next);

    /* Bytes of scratch that an op needs for such arguments; pointers may be NULL. */
    size_t (*gr_mix_workspace_bytes)(const gr_mix_args_t *args);
    size_t (*gdn_core_workspace_bytes)(const gdn_core_args_t *args);
    size_t (*qsa_select_workspace_bytes)(const qsa_select_args_t *args);
    size_t (*qsa_attend_workspace_bytes)(const qsa_attend_args_t *args);
    size_t (*experts_workspace_bytes)(const experts_args_t *args);
    size_t (*shared_expert_workspace_bytes)(const shared_expert_args_t *args);
    size_t (*moe_workspace_bytes)(const moe_args_t *args); /* NULL as moe_is_joined */
    size_t (*ple_mix_workspace_bytes)(const ple_mix_args_t *args);

    status_t (*embed)(backend_t *backend, const embed_args_t *args);
    status_t (*ngram_rows)(backend_t *backend, const ngram_rows_args_t *args);
    status_t (*linear)(backend_t *backend, const linear_args_t *args);
    status_t (*gr_mix)(backend_t *backend, const gr_mix_args_t *args);
    status_t (*gr_inject)(backend_t *backend, const gr_inject_args_t *args);
    status_t (*gdn_core)(backend_t *backend, const gdn_core_args_t *args);
    status_t (*qsa_prepare)(backend_t *backend, const qsa_prepare_args_t *args);
    status_t (*qsa_select)(backend_t *backend, const qsa_select_args_t *args);
    status_t (*qsa_attend)(backend_t *backend, const qsa_attend_args_t *args);
    status_t (*qsa_core)(backend_t *backend, const qsa_core_args_t *args);
    status_t (*router)(backend_t *backend, const router_args_t *args);
    status_t (*experts)(backend_t *backend, const experts_args_t *args);
    status_t (*shared_expert)(backend_t *backend, const shared_expert_args_t *args);

    /* One token's router, experts and shared_expert, projection included, in three calls where moe_is_joined says so;
     * NULL where the backend never does. */
    bool (*moe_is_joined)(backend_t *backend, const moe_args_t *args);
    status_t (*moe_in)(backend_t *backend, const moe_args_t *args);
    status_t (*moe_gate_up)(backend_t *backend, const moe_args_t *args);
    status_t (*moe_down)(backend_t *backend, const moe_args_t *args);

    status_t (*ple_gather)(backend_t *backend, const ple_gather_args_t *args);
    status_t (*ple_mix)(backend_t *backend, const ple_mix_args_t *args);
    status_t (*lm_head)(backend_t *backend, const lm_head_args_t *args);
    status_t (*argmax)(backend_t *backend, const argmax_args_t *args);

    /* Decode ahead of the host, see advance_refusal: the next op's begin goes to args->begin_ns; the choice, with the
     * `push` of args set by the backend. */
    status_t (*advance_begin)(backend_t *backend, const advance_args_t *args);
    status_t (*advance)(backend_t *backend, const advance_args_t *args);

    status_t (*fill)(backend_t *backend, const fill_args_t *args);

    void (*destroy)(backend_t *backend);
} backend_ops_t;

/* For the record of a run; "" where there is none. The strings are the backend's. */
typedef struct backend_facts {
    const char *devices; /* of all ranks, on rank 0: "rank 0: NAME, PCI bus, NUMA node, peers; rank 1: ..." */
    const char *driver, *cuda, *nccl;
} backend_facts_t;

struct backend {
    const backend_ops_t *ops;
    comm_t *comm;                /* borrowed */
    bool can_record;             /* record_begin ... may be used */
    const char *advance_refusal; /* why advance may not be used; NULL where it may */
    size_t cache_bytes;          /* of the last cache before its memory */
    backend_facts_t facts;
    void *state; /* the backend's own */
};

typedef enum backend_kind { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA } backend_kind_t;

typedef struct backend_args {
    backend_kind_t kind;
    comm_t *comm; /* borrowed */
    const char
        *all_reduce; /* "auto", "push", "nccl" or "mpi"; the CPU has MPI's alone and refuses the others by name */
} backend_args_t;

/* BACKEND_AUTO takes CUDA where it was built in and a device is there, else the CPU. STATUS_DEVICE if the one asked for
 * is not to be had. The caller ends it with ops->destroy. */
status_t backend_open(const backend_args_t *args, backend_t **backend);

/* The same with the default of what is not named. */
status_t backend_create(backend_kind_t kind, comm_t *comm, backend_t **backend);

/* Prints the versions of the device libraries that were built in, one a line. Needs no device. */
void backend_print_version(FILE *stream);

/* A backend's table as far as a memory plan reads it, whether or not it was built in and a device is there: name,
 * prefill_chunk and the sizes. BACKEND_AUTO is what backend_create would take. */
const backend_ops_t *backend_sizes(backend_kind_t kind);

#ifdef __cplusplus
}
#endif
#endif
