#include "trace/provenance.h"

#include <cairo.h>
#include <hdf5.h>
#include <jansson.h>
#include <mpi.h>
#include <openssl/crypto.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <utf8proc.h>
#include <xxhash.h>

const char *provenance_commit(void) { return GALVANI_COMMIT; }

void provenance_host(char text[PROVENANCE_TEXT_BYTES]) {
    struct utsname names;
    snprintf(text, PROVENANCE_TEXT_BYTES, "%s", uname(&names) == 0 ? names.nodename : "unknown");
}

size_t provenance_slurm(provenance_fact_t facts[PROVENANCE_MAX_FACTS]) {
    static const char *const variables[][2] = {
        {"slurm_job_id", "SLURM_JOB_ID"},
        {"slurm_job_name", "SLURM_JOB_NAME"},
        {"slurm_step_id", "SLURM_STEP_ID"},
        {"slurm_array_job_id", "SLURM_ARRAY_JOB_ID"},
        {"slurm_array_task_id", "SLURM_ARRAY_TASK_ID"},
        {"slurm_cluster_name", "SLURM_CLUSTER_NAME"},
        {"slurm_partition", "SLURM_JOB_PARTITION"},
        {"slurm_nodelist", "SLURM_JOB_NODELIST"},
        {"slurm_nnodes", "SLURM_JOB_NUM_NODES"},
        {"slurm_ntasks", "SLURM_NTASKS"},
        {"slurm_gpus_on_node", "SLURM_GPUS_ON_NODE"},
        {"slurm_restart_count", "SLURM_RESTART_COUNT"},
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i][1]);
        if (value) facts[n++] = (provenance_fact_t){.name = variables[i][0], .value = value};
    }
    return n;
}

void provenance_hdf5(char text[PROVENANCE_TEXT_BYTES]) {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    snprintf(text, PROVENANCE_TEXT_BYTES, "%u.%u.%u", major, minor, release);
}

void provenance_print_version(FILE *stream) {
    char hdf5[PROVENANCE_TEXT_BYTES], mpi[MPI_MAX_LIBRARY_VERSION_STRING], pcre2[64];
    int length;
    provenance_hdf5(hdf5);
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, ",\n")] = '\0';
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    fprintf(stream, "galvani   %s\n", provenance_commit());
    fprintf(stream, "MPI       %s\n", mpi);
    fprintf(stream, "HDF5      %s\n", hdf5);
    fprintf(stream, "jansson   %s\n", JANSSON_VERSION);
    fprintf(stream, "PCRE2     %s\n", pcre2);
    fprintf(stream, "utf8proc  %s\n", utf8proc_version());
    fprintf(stream, "xxHash    %u\n", XXH_versionNumber());
    fprintf(stream, "OpenSSL   %s\n", OpenSSL_version(OPENSSL_VERSION));
    fprintf(stream, "cairo     %s\n", cairo_version_string());
}
