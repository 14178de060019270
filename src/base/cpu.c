#include "base/cpu.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

double cpu_quota(void) {
    /* "max 100000", or "200000 100000": microseconds of each period. */
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file) return INFINITY;
    double quota, period;
    int n_read = fscanf(file, "%lf %lf", &quota, &period);
    fclose(file);
    return n_read == 2 && quota > 0.0 && period > 0.0 ? quota / period : (double)INFINITY;
}

size_t cpu_cache_bytes(void) {
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : (size_t)1 << 20;
}

void cpu_sleep_when_idle(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
    /* By its own path, so that ps shows its own name. */
    char path[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
    if (bytes < 0 || bytes == (ssize_t)sizeof path) return;
    path[bytes] = '\0';
    execv(path, argv);
    /* Without /proc the threads spin; nothing else changes. */
}
