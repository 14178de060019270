/* The memory plan against sizes worked out by hand from the published config, and against itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/memory_plan.h"
#include "model/synthetic.h"

static const size_t GIB = (size_t)1 << 30;

typedef struct planned {
    model_config_t config;
    schema_tensor_t *tensors;
    memory_plan_args_t args;
} planned_t;

static void planned_create(const char *name, backend_kind_t kind, int tp_size, planned_t *planned) {
    char *config_json;
    assert_int_equal(synthetic_config(name, &planned->config, &config_json), STATUS_OK);
    memory_free(config_json);
    const schema_options_t options = {.tp_size = tp_size, .expert_format = EXPERTS_NVFP4, .ple_dtype = DTYPE_F8_E4M3};
    size_t n_tensors;
    assert_int_equal(schema_build(&planned->config, &options, &planned->tensors, &n_tensors), STATUS_OK);
    const backend_ops_t *ops = backend_sizes(kind);
    planned->args = (memory_plan_args_t){.config = &planned->config,
                                         .tensors = planned->tensors,
                                         .n_tensors = n_tensors,
                                         .local = local_shape(&planned->config, 0, tp_size),
                                         .ops = ops,
                                         .max_context = 8192 + 512,
                                         .prefill_chunk = ops->prefill_chunk,
                                         .record = ops->is_device};
}

static memory_plan_t make(const memory_plan_args_t *args) {
    memory_plan_t plan;
    assert_int_equal(memory_plan_make(args, &plan), STATUS_OK);
    return plan;
}

/* The published model on four 32 GiB GPUs. */
static void the_real_model_fits_four_gpus(void **state) {
    (void)state;
    planned_t planned;
    planned_create("full", BACKEND_CUDA, 4, &planned);
    memory_plan_t plan = make(&planned.args);
    assert_true(plan.backend <= 30 * GIB);

    /* A rank's quarter of the experts: 48 layers of 512, each 2,764,824 bytes published, of which three input_scale of
     * four bytes are not kept; scale_2 is on every rank. */
    size_t experts = (size_t)48 * 512 * ((2764824 - 24) / 4 + 12);
    assert_int_equal(plan.weights[WEIGHTS_EXPERTS], experts);
    assert_int_equal(plan.weights[WEIGHTS_EMBED], (size_t)248320 * 2560 * 2);
    assert_int_equal(plan.weights[WEIGHTS_LM_HEAD], (size_t)248320 * 2560 * 2 / 4);
    /* 97 mixers: down and up, and a norm kept in FP32; 96 with inject weights. */
    assert_int_equal(plan.weights[WEIGHTS_GR],
                     (size_t)97 * (2 * 320 * 10240 * 2 + 10240 * 4) + (size_t)96 * 4 * 10240 * 2);
    assert_int_equal(plan.weights[WEIGHTS_ROUTER], (size_t)48 * 512 * 2560 * 2);
    assert_int_equal(plan.needed[MEMORY_PLE_TABLE], (size_t)320001536 * 160 / 4);
    assert_int_equal(plan.host, plan.needed[MEMORY_PLE_TABLE]);
    /* FP16: keys and values of one KV head in 12 layers, an index key for each 4 tokens; some blocks are rounded up. */
    size_t kv = (size_t)12 * (8704 * 2 * 256 * 2 + 8704 / 4 * 128 * 2);
    assert_in_range(plan.needed[MEMORY_KV_CACHE], kv, kv + 12 * 4 * 1024);
    /* GDN state in FP32, 12 of 48 value heads. */
    size_t state_bytes = (size_t)36 * 12 * 128 * 128 * 4;
    assert_in_range(plan.needed[MEMORY_STATE], state_bytes, state_bytes + state_bytes / 20);
    size_t weights = 0;
    for (int group = 0; group < WEIGHTS_N_GROUPS; group++)
        weights += plan.weights[group];
    assert_int_equal(weights, plan.needed[MEMORY_WEIGHTS]);

    int64_t largest;
    assert_int_equal(memory_plan_largest_context(&planned.args, 32 * GIB, &largest), STATUS_OK);
    assert_int_equal(largest, 262144);
    memory_free(planned.tensors);
}

/* Q8 has 33 bytes for 64 of FP16, QPN8 half and 4 a row, of the rows and columns of GR, GDN and QSA; the largest, GDN's
 * in_proj, needs its room as FP16. */
static void eight_bits_take_half(void **state) {
    (void)state;
    planned_t planned;
    planned_create("full", BACKEND_CUDA, 4, &planned);
    memory_plan_t f16 = make(&planned.args);
    planned.args.dense = (dense_form_t){.is_8bit = true, .dtype = DTYPE_Q8};
    memory_plan_t q8 = make(&planned.args);
    planned.args.dense.dtype = DTYPE_QPN8;
    memory_plan_t qpn8 = make(&planned.args);
    planned.args.dense.keep_f16 = true;
    memory_plan_t both = make(&planned.args);

    size_t gr = (size_t)97 * 2 * 320 * 10240, gdn_in = (size_t)16480 / 4 * 2560, gdn_out = (size_t)2560 * 6144 / 4;
    size_t gr_rows = (size_t)97 * (320 + 10240), gdn_rows = (size_t)36 * (16480 / 4 + 2560);
    assert_int_equal(f16.weights[WEIGHTS_GR] - q8.weights[WEIGHTS_GR], gr / 64 * (128 - 66));
    assert_int_equal(f16.weights[WEIGHTS_GDN] - q8.weights[WEIGHTS_GDN], 36 * (gdn_in + gdn_out) / 64 * (128 - 66));
    assert_int_equal(f16.weights[WEIGHTS_GR] - qpn8.weights[WEIGHTS_GR], gr - 4 * gr_rows);
    assert_int_equal(f16.weights[WEIGHTS_GDN] - qpn8.weights[WEIGHTS_GDN], 36 * (gdn_in + gdn_out) - 4 * gdn_rows);
    assert_true(q8.weights[WEIGHTS_QSA] < f16.weights[WEIGHTS_QSA] * 6 / 10);
    assert_int_equal(q8.weights[WEIGHTS_ROUTER], f16.weights[WEIGHTS_ROUTER]);
    assert_int_equal(q8.weights[WEIGHTS_LM_HEAD], f16.weights[WEIGHTS_LM_HEAD]);
    assert_int_equal(q8.needed[MEMORY_WORKSPACE], f16.needed[MEMORY_WORKSPACE] + 2 * gdn_in);
    assert_int_equal(both.weights[WEIGHTS_GR], qpn8.weights[WEIGHTS_GR] + 2 * gr);
    assert_int_equal(both.weights[WEIGHTS_GDN], qpn8.weights[WEIGHTS_GDN] + 36 * 2 * (gdn_in + gdn_out));
    assert_int_equal(both.weights[WEIGHTS_EXPERTS], f16.weights[WEIGHTS_EXPERTS]);
    memory_free(planned.tensors);
}

/* On the CPU activations are FP32, the table lies with the rest, and nothing is recorded. */
static void the_cpu_takes_fp32(void **state) {
    (void)state;
    planned_t cpu, cuda;
    planned_create("full", BACKEND_CPU, 4, &cpu);
    planned_create("full", BACKEND_CUDA, 4, &cuda);
    memory_plan_t on_cpu = make(&cpu.args), on_cuda = make(&cuda.args);
    assert_int_equal(on_cpu.host, 0);
    assert_int_equal(on_cpu.needed[MEMORY_CUDA_GRAPH], 0);
    assert_int_equal(on_cpu.needed[MEMORY_WEIGHTS], on_cuda.needed[MEMORY_WEIGHTS]);
    assert_in_range(on_cpu.needed[MEMORY_KV_CACHE], 2 * on_cuda.needed[MEMORY_KV_CACHE] - 12 * 4 * 1024,
                    2 * on_cuda.needed[MEMORY_KV_CACHE]);
    size_t sum = 0;
    for (int label = 0; label < MEMORY_N_LABELS; label++)
        sum += on_cpu.needed[label];
    assert_int_equal(on_cpu.backend, sum + on_cpu.runtime);
    memory_free(cpu.tensors);
    memory_free(cuda.tensors);
}

static void the_largest_context_is_the_largest(void **state) {
    (void)state;
    planned_t planned;
    planned_create("full", BACKEND_CUDA, 4, &planned);
    planned.args.max_context = 50000;
    size_t room = make(&planned.args).backend;
    int64_t largest;
    assert_int_equal(memory_plan_largest_context(&planned.args, room, &largest), STATUS_OK);
    assert_in_range(largest, 50000, 60000);
    planned.args.max_context = largest;
    assert_true(make(&planned.args).backend <= room);
    planned.args.max_context = largest + 1;
    assert_true(make(&planned.args).backend > room);
    assert_int_equal(memory_plan_largest_context(&planned.args, GIB, &largest), STATUS_OK);
    assert_int_equal(largest, 0);
    memory_free(planned.tensors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_model_fits_four_gpus),
        cmocka_unit_test(eight_bits_take_half),
        cmocka_unit_test(the_cpu_takes_fp32),
        cmocka_unit_test(the_largest_context_is_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
