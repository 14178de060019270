#ifndef GALVANI_BASE_CPU_H
#define GALVANI_BASE_CPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Processors' worth of time that the control group of this process (a container, say) may use; INFINITY without a
 * limit. The affinity mask does not tell it. */
double cpu_quota(void);

/* Bytes of the last cache before memory; 1 MiB where the system does not say. */
size_t cpu_cache_bytes(void);

/* Lets OpenMP threads that wait sleep instead of spin, unless the environment already says how they wait: where
 * another process wants the same core, spinning makes a step a hundred times slower. The OpenMP library reads this
 * once, before main, so the program is started again in the same process, with the same arguments. Call it first in
 * main. */
void cpu_sleep_when_idle(char **argv);

#ifdef __cplusplus
}
#endif
#endif
