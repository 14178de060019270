#include "model/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "shard/plan.h"

/* How the values of a dataset are spread. */
typedef enum spread {
    SPREAD_AROUND,  /* even over middle +- reach */
    SPREAD_FAN_IN,  /* even around 0, standard deviation reach / sqrt(row length): y has `reach` times x's magnitude */
    SPREAD_STREAMS, /* the same times hc_count, by which GR divides what comes out */
    SPREAD_CODES,   /* every E2M1 code */
    SPREAD_SCALES,  /* E4M3 from 0.5 to 1.875 */
    SPREAD_SCALE_2, /* such that code * scale * scale_2 spreads as SPREAD_FAN_IN; up to a quarter more or less */
    SPREAD_TABLE,   /* E4M3 of magnitude 1 to 3.75 */
} spread_t;

/* Inputs of projections have magnitude near 1/2 (GR takes the mean over the streams of gated values of magnitude 1), so
 * that reach 2 gives outputs near 1. Router logits spread by 2: top-k weights differ, and no expert leads everywhere.
 */
static const struct rule {
    const char *name; /* the end of the path */
    spread_t spread;
    double middle, reach;
} rules[] = {
    {"embed", SPREAD_AROUND, 0, 1.7320508}, /* standard deviation 1 */
    {"lm_head", SPREAD_FAN_IN, 0, 4},
    {"hc_norm", SPREAD_AROUND, 0, 0.1},
    {"input_mix_weight_down", SPREAD_STREAMS, 0, 1},
    {"input_mix_weight_up", SPREAD_FAN_IN, 0, 2},
    {"block_inject_weight", SPREAD_STREAMS, 0, 1},
    {"in_proj_qkv", SPREAD_FAN_IN, 0, 2},
    {"in_proj_z", SPREAD_FAN_IN, 0, 2},
    {"in_proj_b", SPREAD_FAN_IN, 0, 2},
    {"in_proj_a", SPREAD_FAN_IN, 0, 1},
    {"conv1d", SPREAD_FAN_IN, 0, 1},
    {"A_log", SPREAD_AROUND, 1.4, 1.4}, /* rates from 1 to 16 */
    {"dt_bias", SPREAD_AROUND, -4, 2},  /* steps from 0.002 to 0.13: memories of a token to hundreds */
    {"gdn/norm", SPREAD_AROUND, 1, 0.1},
    {"out_proj", SPREAD_FAN_IN, 0, 1},
    {"q_proj", SPREAD_FAN_IN, 0, 2},
    {"k_proj", SPREAD_FAN_IN, 0, 2},
    {"v_proj", SPREAD_FAN_IN, 0, 2},
    {"o_proj", SPREAD_FAN_IN, 0, 2},
    {"q_norm", SPREAD_AROUND, 0, 0.1},
    {"k_norm", SPREAD_AROUND, 0, 0.1},
    {"index_qk_proj", SPREAD_FAN_IN, 0, 2},
    {"index_q_norm", SPREAD_AROUND, 0, 0.1},
    {"index_k_norm", SPREAD_AROUND, 0, 0.1},
    {"router", SPREAD_FAN_IN, 0, 4},
    {"shared_gate_proj", SPREAD_FAN_IN, 0, 2},
    {"shared_up_proj", SPREAD_FAN_IN, 0, 2},
    {"shared_down_proj", SPREAD_FAN_IN, 0, 2},
    {"shared_expert_gate", SPREAD_FAN_IN, 0, 2},
    {"gate_up_codes", SPREAD_CODES, 0, 0},
    {"gate_up_scales", SPREAD_SCALES, 0, 0},
    {"gate_up_scale_2", SPREAD_SCALE_2, 0, 2},
    {"down_codes", SPREAD_CODES, 0, 0},
    {"down_scales", SPREAD_SCALES, 0, 0},
    {"down_scale_2", SPREAD_SCALE_2, 0, 2},
    {"table", SPREAD_TABLE, 0, 0},
    {"table_scale", SPREAD_AROUND, 0.43, 0}, /* 1 / 2.32, the magnitude of SPREAD_TABLE */
    {"key_proj", SPREAD_FAN_IN, 0, 1},
    {"value_proj", SPREAD_FAN_IN, 0, 1},
    {"norm_key", SPREAD_AROUND, 0, 0.1},
    {"norm_query", SPREAD_AROUND, 0, 0.1},
    {"norm_conv", SPREAD_AROUND, 0, 0.1},
};

enum { N_RULES = sizeof rules / sizeof *rules };

/* Root mean square of an E2M1 code times a scale of SPREAD_SCALES: sqrt(8.5625 * 1.3428). */
static const double nvfp4_magnitude = 3.391;

static bool ends_in(const char *path, const char *name) {
    size_t path_bytes = strlen(path), name_bytes = strlen(name);
    return path_bytes > name_bytes && path[path_bytes - name_bytes - 1] == '/' &&
           strcmp(path + path_bytes - name_bytes, name) == 0;
}

static void spread_evenly(double middle, double reach, fill_rule_t *fill) {
    if (reach == 0.0) {
        fill->offset = 1;
        fill->unit = (float)middle;
        return;
    }
    double unit = reach / 32768.0;
    fill->mask = 0xFFFF;
    fill->offset = (int32_t)lrint(middle / unit) - 32768;
    fill->unit = (float)unit;
}

static void set_values(const model_config_t *config, const char *path, int64_t whole_columns, const struct rule *rule,
                       fill_rule_t *fill) {
    /* An even spread over +-r has standard deviation r / sqrt(3). */
    double reach = rule->reach * sqrt(3.0 / (double)whole_columns);
    switch (rule->spread) {
    case SPREAD_AROUND:
        spread_evenly(rule->middle, rule->reach, fill);
        break;
    case SPREAD_FAN_IN:
        spread_evenly(0.0, reach, fill);
        break;
    case SPREAD_STREAMS:
        spread_evenly(0.0, reach * (double)config->hc_count, fill);
        break;
    case SPREAD_CODES:
        fill->mask = 0xFF;
        break;
    case SPREAD_SCALES:
        fill->mask = 0x0F;
        fill->offset = 0x30;
        break;
    case SPREAD_SCALE_2: {
        bool is_down = ends_in(path, "down_scale_2");
        int64_t n_inputs = is_down ? config->moe_intermediate_size : config->hidden_size;
        double middle = rule->reach / sqrt((double)n_inputs) / nvfp4_magnitude;
        spread_evenly(middle, middle / 4.0, fill);
        break;
    }
    case SPREAD_TABLE:
        fill->mask = 0x8F;
        fill->offset = 0x38;
        break;
    }
}

/* Where the slice's rows and columns lie in the whole dataset: by the plan that cuts real checkpoints. */
static status_t set_slice(const model_config_t *config, const schema_options_t *options, const char *path,
                          fill_args_t *fill) {
    plan_options_t sliced = {.tp_size = options->tp_size, .expert_format = EXPERTS_NVFP4};
    sliced.inventory.expert_storage = STORED_NVFP4;
    sliced.inventory.ple_dtype = DTYPE_F8_E4M3;
    plan_options_t unsliced = sliced;
    unsliced.tp_size = 1;
    plan_dataset_t part, whole;
    TRY(plan_dataset(config, &sliced, path, &part));
    TRY(plan_dataset(config, &unsliced, path, &whole));
    fill->n_groups = part.n_groups;
    fill->n_runs = (int)(part.n_sources / part.n_groups);
    for (int i = 0; i < fill->n_runs; i++) {
        plan_source_t source;
        plan_source(config, &sliced, &part, i, &source);
        plan_piece_t piece = plan_piece(&part, &source, options->tp_rank, options->tp_size);
        plan_piece_t all = plan_piece(&whole, &source, 0, 1);
        fill->runs[i].n_rows = piece.n_rows;
        fill->runs[i].whole_row = fill->whole_group_rows + piece.first_row - all.first_row;
        fill->group_rows += piece.n_rows;
        fill->whole_group_rows += all.n_rows;
        fill->n_columns = piece.n_items;
        fill->first_column = piece.first_item;
        fill->whole_columns = all.n_items;
    }
    return STATUS_OK;
}

status_t synthetic_tensor(const model_config_t *config, const schema_options_t *options, uint64_t seed,
                          const schema_tensor_t *tensor, fill_args_t *fill) {
    const char *path = tensor->path;
    int index = 0;
    while (index < N_RULES && !ends_in(path, rules[index].name))
        index++;
    if (index == N_RULES) return status_fail(STATUS_INPUT, "no rule makes up the dataset %s", path);
    fill_args_t made = {.dtype = tensor->dtype};
    TRY(set_slice(config, options, path, &made));
    made.rule.key = hash_xxh3_seeded(path, strlen(path), seed);
    set_values(config, path, made.whole_columns, &rules[index], &made.rule);
    *fill = made;
    return STATUS_OK;
}

/* In a directory above the program: configs/ of the source tree, or share/galvani/configs/ where it is installed. */
static bool find_config(const char *name, char *path, size_t path_bytes) {
    static const char *const places[] = {"configs", "share/galvani/configs"};
    enum { MAX_STEPS = 4 };
    char directory[2048];
    ssize_t n = readlink("/proc/self/exe", directory, sizeof directory - 1);
    if (n < 0) return false;
    directory[n] = '\0';
    for (int step = 0; step < MAX_STEPS && strrchr(directory, '/'); step++) {
        *strrchr(directory, '/') = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            int written = snprintf(path, path_bytes, "%s/%s/%s.json", directory, places[i], name);
            if (written > 0 && (size_t)written < path_bytes && file_exists(path)) return true;
        }
    }
    return false;
}

static status_t read_config(const char *path, model_config_t *config, char **config_json) {
    json_t *root;
    size_t bytes;
    TRY(json_read_file(path, &root));
    status_t status = config_parse(root, path, STATUS_INPUT, config);
    json_decref(root);
    TRY(status);
    return file_read_all(path, config_json, &bytes);
}

status_t synthetic_config(const char *name, model_config_t *config, char **config_json) {
    char path[4096];
    size_t bytes = strlen(name);
    bool is_path = strchr(name, '/') || (bytes > 5 && strcmp(name + bytes - 5, ".json") == 0);
    if (is_path) return read_config(name, config, config_json);
    if (!find_config(name, path, sizeof path))
        return status_fail(
            STATUS_USAGE,
            "there is no model synthetic:%s; give synthetic:full, synthetic:nano, or synthetic:PATH with "
            "the path of a config.json",
            name);
    return read_config(path, config, config_json);
}
