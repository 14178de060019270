#include "lm_head/lm_head.h"

#include "linear/linear.h"

status_t lm_head_cpu(const lm_head_args_t *args) {
    TRY(linear_cpu(&(linear_args_t){.n_tokens = 1, .weight = args->weight, .x = args->u, .y_f32 = args->logits}));
    return argmax_cpu(&(argmax_args_t){.n_logits = args->weight.rows,
                                       .first_token = args->first_token,
                                       .n_valid = args->n_valid,
                                       .logits = args->logits,
                                       .pair = args->pair});
}
