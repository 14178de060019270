/* The three QSA ops one by one against the CPU reference, by whichever form takes them: one cache over chunks of odd
 * lengths, on fresh random data. test_mixers.c has them joined, test_prefill.c long chunks. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "gpu_support.h"

static device_t device;

/* An op's FP16 results after FP32 sums. */
#define ROUNDED 1e-3

#define CPU device.cpu->ops
#define CUDA device.cuda->ops

/* Selection is compared only through the attention's result and through the scores of what was chosen: FP16 keys may
 * order near-equal scores otherwise. */
static void qsa_case(qsa_shape_t shape, const int64_t *chunks, int n_chunks, int64_t capacity) {
    int64_t D = shape.head_dim, Id = shape.index_dim, ratio = shape.ratio;
    int64_t stride = (2 * shape.n_heads + 2 * shape.n_kv_heads) * D + (shape.index_n_heads + 1) * Id;
    int64_t n_kv = shape.n_kv_heads * capacity * D, n_keys = capacity / ratio * Id;
    qsa_cache_t host = {.capacity = capacity,
                        .k = host_floats(n_kv),
                        .v = host_floats(n_kv),
                        .index_keys = host_floats(n_keys),
                        .raw_keys = host_floats(ratio * Id)};
    float *norms[4] = {random_floats(D, 0.3f), random_floats(D, 0.3f), random_floats(Id, 0.3f),
                       random_floats(Id, 0.3f)};
    static device_t cache_device;
    cache_device = (device_t){.cuda = device.cuda, .cpu = device.cpu};
    qsa_cache_t cache = {.capacity = capacity,
                         .k = upload_halves(&cache_device, host.k, n_kv),
                         .v = upload_halves(&cache_device, host.v, n_kv),
                         .index_keys = upload_halves(&cache_device, host.index_keys, n_keys),
                         .raw_keys = upload_halves(&cache_device, host.raw_keys, ratio * Id)};
    int64_t pos = 0;
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        int64_t n = chunks[chunk], n_q = n * shape.n_heads * D, n_index = n * shape.index_n_heads * Id;
        qsa_prepare_args_t prepare = {.shape = shape,
                                      .n_tokens = n,
                                      .start_pos = &pos,
                                      .rms_norm_eps = 1e-6f,
                                      .rope_theta = 1e7,
                                      .projected = random_floats(n * stride, 1.0f),
                                      .projected_stride = stride,
                                      .q_norm = norms[0],
                                      .k_norm = norms[1],
                                      .index_q_norm = norms[2],
                                      .index_k_norm = norms[3],
                                      .cache = host,
                                      .q = host_floats(n_q),
                                      .gate = host_floats(n_q),
                                      .index_q = host_floats(n_index)};
        qsa_prepare_args_t prepare_on = prepare;
        prepare_on.start_pos = upload_bytes(&device, &pos, sizeof pos);
        prepare_on.projected = upload_halves(&device, prepare.projected, n * stride);
        prepare_on.q_norm = upload_floats(&device, norms[0], D);
        prepare_on.k_norm = upload_floats(&device, norms[1], D);
        prepare_on.index_q_norm = upload_floats(&device, norms[2], Id);
        prepare_on.index_k_norm = upload_floats(&device, norms[3], Id);
        prepare_on.cache = cache;
        prepare_on.q = poisoned(&device, (size_t)n_q * 2);
        prepare_on.gate = poisoned(&device, (size_t)n_q * 2);
        prepare_on.index_q = poisoned(&device, (size_t)n_index * 2);
        run(CPU->qsa_prepare(device.cpu, &prepare));
        run(CUDA->qsa_prepare(device.cuda, &prepare_on));
        check_halves(&device, "qsa_prepare q", prepare_on.q, prepare.q, n_q, ROUNDED);
        check_halves(&device, "qsa_prepare gate", prepare_on.gate, prepare.gate, n_q, 0.0);
        check_halves(&device, "qsa_prepare index_q", prepare_on.index_q, prepare.index_q, n_index, ROUNDED);
        check_halves(&device, "qsa_prepare k", cache.k, host.k, n_kv, ROUNDED);
        check_halves(&device, "qsa_prepare v", cache.v, host.v, n_kv, 0.0);
        check_halves(&device, "qsa_prepare index_keys", cache.index_keys, host.index_keys, n_keys, ROUNDED);

        qsa_select_args_t select = {.shape = shape,
                                    .n_tokens = n,
                                    .start_pos = &pos,
                                    .index_q = prepare.index_q,
                                    .cache = host,
                                    .blocks = host_bytes((size_t)(n * shape.n_select) * 4),
                                    .n_blocks = host_bytes((size_t)n * 4)};
        qsa_select_args_t select_on = select;
        select_on.start_pos = prepare_on.start_pos;
        select_on.index_q = prepare_on.index_q;
        select_on.cache = cache;
        select_on.blocks = poisoned(&device, (size_t)(n * shape.n_select) * 4);
        select_on.n_blocks = poisoned(&device, (size_t)n * 4);
        select_on.workspace = poisoned(&device, CUDA->qsa_select_workspace_bytes(&select));
        select.workspace = host_bytes(CPU->qsa_select_workspace_bytes(&select));
        run(CPU->qsa_select(device.cpu, &select));
        run(CUDA->qsa_select(device.cuda, &select_on));
        check_bytes(&device, "qsa_select n_blocks", select_on.n_blocks, select.n_blocks, (size_t)n * 4);
        int32_t *blocks = host_bytes((size_t)(n * shape.n_select) * 4);
        run(CUDA->download(device.cuda, blocks, select_on.blocks, (size_t)(n * shape.n_select) * 4));
        int64_t n_chosen = 0, n_other = 0;
        for (int64_t t = 0; t < n; t++) {
            const int32_t *own = blocks + t * shape.n_select, *reference = select.blocks + t * shape.n_select;
            for (int32_t i = 0; i < select.n_blocks[t]; i++) {
                if (own[i] < 0 || own[i] >= (pos + t + 1) / ratio || (i > 0 && own[i] <= own[i - 1]))
                    fail_msg("qsa_select: token %lld, block %d of the list is %d", (long long)t, i, own[i]);
                bool found = false;
                for (int32_t j = 0; j < select.n_blocks[t] && !found; j++)
                    found = own[i] == reference[j];
                n_chosen++;
                n_other += !found;
            }
        }
        printf("    qsa_select: %lld of %lld blocks differ\n", (long long)n_other, (long long)n_chosen);
        /* Keys rounded to FP16 may turn round blocks whose scores nearly tie: 2 %, or one where that is less than one.
         */
        assert_true(n_other <= (n_chosen < 50 ? 1 : n_chosen / 50));

        qsa_attend_args_t attend = {.shape = shape,
                                    .n_tokens = n,
                                    .start_pos = &pos,
                                    .q = prepare.q,
                                    .gate = prepare.gate,
                                    .cache = host,
                                    .blocks = blocks,
                                    .n_blocks = select.n_blocks,
                                    .y = host_floats(n_q)};
        qsa_attend_args_t attend_on = attend;
        attend_on.start_pos = prepare_on.start_pos;
        attend_on.q = prepare_on.q;
        attend_on.gate = prepare_on.gate;
        attend_on.cache = cache;
        attend_on.blocks = select_on.blocks;
        attend_on.n_blocks = select_on.n_blocks;
        attend_on.y = poisoned(&device, (size_t)n_q * 2);
        attend_on.workspace = poisoned(&device, CUDA->qsa_attend_workspace_bytes(&attend));
        attend.workspace = host_bytes(CPU->qsa_attend_workspace_bytes(&attend));
        run(CPU->qsa_attend(device.cpu, &attend));
        run(CUDA->qsa_attend(device.cuda, &attend_on));
        check_halves(&device, "qsa_attend", attend_on.y, attend.y, n_q, 2e-3);
        device_release(&device);
        pos += n;
    }
    device_release(&cache_device);
}

static void test_qsa(void **state) {
    (void)state;
    static const int64_t steps[] = {1, 2, 3, 1, 1, 1, 7, 1, 30, 1, 1, 1, 1}, prefill[] = {50, 1, 150, 9, 8, 1, 1};
    static const int64_t large[] = {3000, 1, 1, 1};
    qsa_shape_t small = {.n_heads = 6,
                         .n_kv_heads = 2,
                         .head_dim = 32,
                         .rotary_dim = 16,
                         .index_n_heads = 2,
                         .index_dim = 24,
                         .ratio = 4,
                         .n_select = 3};
    qsa_case(small, steps, sizeof steps / sizeof steps[0], 64);
    small.head_dim = 18, small.rotary_dim = 6, small.ratio = 3, small.n_select = 40, small.n_heads = 40;
    qsa_case(small, prefill, sizeof prefill / sizeof prefill[0], 240);
    qsa_shape_t real = {.n_heads = 24,
                        .n_kv_heads = 2,
                        .head_dim = 256,
                        .rotary_dim = 64,
                        .index_n_heads = 4,
                        .index_dim = 128,
                        .ratio = 4,
                        .n_select = 512};
    qsa_case(real, large, sizeof large / sizeof large[0], 4096);
}

int main(void) {
    device_open(&device);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_qsa)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
