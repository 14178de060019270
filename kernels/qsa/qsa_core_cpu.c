#include "qsa/qsa.h"

status_t qsa_core_cpu(const qsa_core_args_t *args) {
    TRY(qsa_prepare_cpu(&args->prepare));
    TRY(qsa_select_cpu(&args->select));
    return qsa_attend_cpu(&args->attend);
}
