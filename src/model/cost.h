#ifndef GALVANI_MODEL_COST_H
#define GALVANI_MODEL_COST_H

/* A model of a decode step's time: what each op must move on one rank, how many launches it takes, and what that costs
 * on a device. Pure arithmetic on the config.
 *
 * Bytes are those that no implementation can avoid: each weight that the token uses once, the recurrent state read and
 * written, the attended part of the cache. Activations stay on the chip and are not counted. */

#include "base/dtype.h"
#include "checkpoint/config.h"
#include "device/route.h"
#include "model/op_trace.h"
#include "model/shape.h"
#include "shard/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cost_args {
    const model_config_t *config;
    local_shape_t local;
    dtype_t dense;           /* of the dense projections (model/dense.h): F16, BF16, Q8 or QPN8 */
    size_t activation_bytes; /* of one value of the KV cache */
    expert_format_t expert_format;
    dtype_t ple_dtype;
    int64_t context;                    /* tokens before this one */
    bool routes_taken[N_KERNEL_ROUTES]; /* on CUDA */
    bool runs_ahead;                    /* the token stays on the device (route run_ahead) */
} cost_args_t;

/* One kind of op of a step. */
typedef struct cost_op {
    const char *name; /* as in device/launches.h */
    op_group_t group;
    int64_t n_calls;
    double bytes;   /* of one call */
    int n_launches; /* of one call */
} cost_op_t;

enum { COST_MAX_OPS = 32 };

typedef struct cost {
    cost_op_t ops[COST_MAX_OPS]; /* in the order of a step */
    int n_ops;
    int64_t n_fused_sums; /* over ranks, without a launch (route fused_allreduce) */
    bool runs_ahead;
} cost_t;

void cost_build(const cost_args_t *args, cost_t *cost);

double cost_group_bytes(const cost_t *cost, op_group_t group);
double cost_bytes(const cost_t *cost);
int64_t cost_group_launches(const cost_t *cost, op_group_t group);
int64_t cost_launches(const cost_t *cost);

/* What a device was measured, or is assumed, to do (the table in cost.c says which). */
typedef struct cost_device {
    const char *name;   /* part of what CUDA calls it */
    double bytes_per_s; /* of memory, as a long copy reaches it */
    double launch_us;   /* what a launch that depends on the one before adds to the time of its bytes */
    double overlap_us;  /* the least that it takes where its start, and the loading of its weights, overlap with the end
                           of that one (route pdl); its bytes take longer or are free. 0: nothing overlaps */
    double sum_us;      /* a sum of hidden_size FP16 values over ranks by push, in place of a launch */
    double fused_sum_us; /* what such a sum adds to gr_mix (route fused_allreduce) */
    double host_us;      /* between a step and the next, where the host chooses the token */
    const char *source;  /* of the figures */
} cost_device_t;

extern const cost_device_t cost_devices[];
extern const int cost_n_devices;

/* The device whose name `text` holds, "rank 0: NVIDIA H200, ..." say, whatever the case; NULL if there is none. */
const cost_device_t *cost_find_device(const char *text);

/* Time of a group in ms; an op's bytes are taken to be spread evenly over its launches. `overlaps`: launches do, if the
 * device's can. */
double cost_group_ms(const cost_t *cost, const cost_device_t *device, bool overlaps, op_group_t group);

#ifdef __cplusplus
}
#endif
#endif
