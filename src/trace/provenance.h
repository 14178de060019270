#ifndef GALVANI_TRACE_PROVENANCE_H
#define GALVANI_TRACE_PROVENANCE_H

/* Which program this is and where it runs. */

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PROVENANCE_TEXT_BYTES = 256 };

/* The git commit that was built, with "-dirty" behind it if the tree was changed; "unknown" outside git. */
const char *provenance_commit(void);

/* This host's name. */
void provenance_host(char text[PROVENANCE_TEXT_BYTES]);

/* What Slurm says of the job that this process belongs to, by the names that the run file has for it. Texts are
 * static or the environment's. Returns how many there are, 0 outside Slurm. */
enum { PROVENANCE_MAX_FACTS = 16 };
typedef struct provenance_fact {
    const char *name, *value;
} provenance_fact_t;
size_t provenance_slurm(provenance_fact_t facts[PROVENANCE_MAX_FACTS]);

/* Version of the HDF5 library in use, "1.10.8". */
void provenance_hdf5(char text[PROVENANCE_TEXT_BYTES]);

/* Prints the program's and its libraries' versions, one a line. */
void provenance_print_version(FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
