#include "base/h5.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum {
    REASON_BYTES = 512,
    /* How often a reader of a file that is being written looks again when a checksum is wrong. HDF5 waits twice as long
     * each time, from 1 ns: this makes 0.1 s; its own default would never end on a damaged file. */
    READ_ATTEMPTS = 27,
    /* A writer that ends leaves SWMR mode for some milliseconds, in which nobody can open its file. */
    OPEN_ATTEMPTS = 5,
    OPEN_PAUSE_US = 20000
};

/* What the last failed call of this thread said. */
typedef struct reason {
    int system_error;
    bool is_lock, is_open_elsewhere;
    char text[REASON_BYTES];
} reason_t;

static _Thread_local reason_t last_reason;

/* Reads one entry of the error stack, innermost first. HDF5 puts the system's error into its text, "errno = 28". */
static herr_t read_entry(unsigned n, const H5E_error2_t *entry, void *context) {
    reason_t *reason = context;
    const char *text = entry->desc ? entry->desc : "";
    if (n == 0) snprintf(reason->text, sizeof reason->text, "%s", text);
    const char *number = strstr(text, "errno = ");
    if (number && reason->system_error == 0) sscanf(number, "errno = %d", &reason->system_error);
    reason->is_lock |= strstr(text, "unable to lock file") != NULL;
    reason->is_open_elsewhere |= strstr(text, "already open for") != NULL;
    return 0;
}

/* HDF5 calls this before a failed call returns, while the stack still stands: the next call would clear it. */
static herr_t keep_reason(hid_t stack, void *context) {
    (void)context;
    last_reason = (reason_t){.text = ""};
    H5Ewalk2(stack, H5E_WALK_UPWARD, read_entry, &last_reason);
    return 0;
}

void h5_init(void) {
    static bool is_ready = false;
    if (!is_ready) H5dont_atexit();
    is_ready = true;
    /* The handler is per thread in a thread-safe HDF5. */
    H5Eset_auto2(H5E_DEFAULT, keep_reason, NULL);
}

static void on_crash(int number) {
    (void)number;
    static const char text[] = "galvani: error: the file is damaged: HDF5 cannot make sense of it\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(STATUS_INPUT);
}

void h5_survive_damage(void) {
    static char stack[1 << 16]; /* the crash may be an overflow of the stack */
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_crash;
    action.sa_flags = SA_ONSTACK;
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        sigaction(crashes[i], &action, NULL);
}

status_t h5_fail(status_t status, const char *action, const char *path) {
    const reason_t *reason = &last_reason;
    if (reason->is_lock)
        return status_fail(status,
                           "cannot %s %s: it cannot be locked (%s). Either another program has it open, or its file "
                           "system has no locks: then set HDF5_USE_FILE_LOCKING=FALSE in the environment",
                           action, path, strerror(reason->system_error));
    if (reason->is_open_elsewhere)
        return status_fail(status,
                           "cannot %s %s: another program has it open for writing, or did so when it died (a run file "
                           "is then mended by galvani inspect --mend)",
                           action, path);
    if (reason->system_error)
        return status_fail(status, "cannot %s %s: %s", action, path, strerror(reason->system_error));
    return status_fail(status, "cannot %s %s: HDF5 says \"%s\"", action, path, reason->text);
}

hid_t h5_access_list(bool lock) {
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (list < 0) return list;
#if H5_VERSION_GE(1, 10, 7)
    H5Pset_file_locking(list, lock, true);
#else
    (void)lock;
#endif
    return list;
}

/* Opens a file that is being written in SWMR mode, or was when its writer died. */
static hid_t open_live(const char *path) {
    hid_t list = h5_access_list(false);
    H5Pset_metadata_read_attempts(list, READ_ATTEMPTS);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, list);
    H5Pclose(list);
    return file;
}

status_t h5_open_for_read(const char *path, hid_t *file, bool *is_open_for_write) {
    h5_init();
    if (file_is_directory(path)) return status_fail(STATUS_INPUT, "%s is a directory, not a file", path);
    if (access(path, R_OK) != 0) return status_fail(STATUS_INPUT, "cannot read %s: %s", path, strerror(errno));
    if (H5Fis_hdf5(path) <= 0)
        return status_fail(STATUS_INPUT, "%s is not an HDF5 file, or its beginning is damaged", path);
    hid_t list = h5_access_list(false);
    hid_t opened = H5Fopen(path, H5F_ACC_RDONLY, list);
    bool is_live = opened < 0;
    if (is_live) opened = open_live(path);
    for (int i = 0; i < OPEN_ATTEMPTS && opened < 0 && last_reason.is_open_elsewhere; i++) {
        usleep(OPEN_PAUSE_US);
        opened = H5Fopen(path, H5F_ACC_RDONLY, list);
        is_live = opened < 0;
    }
    H5Pclose(list);
    if (opened < 0) return h5_fail(STATUS_INPUT, "read", path);
    *file = opened;
    if (is_open_for_write) *is_open_for_write = is_live;
    return STATUS_OK;
}

/* Creates or replaces a scalar attribute. */
static herr_t put_attribute(hid_t object, const char *name, hid_t type, const void *value) {
    htri_t exists = H5Aexists(object, name);
    if (exists > 0 && H5Adelete(object, name) < 0) return -1;
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = attribute < 0 ? -1 : H5Awrite(attribute, type, value);
    if (attribute >= 0) H5Aclose(attribute);
    if (space >= 0) H5Sclose(space);
    return result;
}

herr_t h5_put_text(hid_t object, const char *name, const char *text) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    herr_t result = put_attribute(object, name, type, &text);
    H5Tclose(type);
    return result;
}

herr_t h5_put_int(hid_t object, const char *name, int64_t value) {
    return put_attribute(object, name, H5T_NATIVE_INT64, &value);
}

/* Reads an open attribute as one text. */
static status_t read_text(hid_t attribute, hid_t type, const char *name, const char *path, char **text) {
    if (H5Tget_class(type) != H5T_STRING || H5Aget_storage_size(attribute) == 0)
        return status_fail(STATUS_INPUT, "%s: the attribute \"%s\" is not a text", path, name);
    void *memory;
    if (H5Tis_variable_str(type) > 0) {
        char *value = NULL;
        hid_t memory_type = H5Tcopy(type);
        herr_t result = H5Aread(attribute, memory_type, &value);
        H5Tclose(memory_type);
        if (result < 0) return h5_fail(STATUS_INPUT, "read", path);
        if (!value) value = H5allocate_memory(1, true);
        status_t status = memory_alloc(MEMORY_OTHER, strlen(value) + 1, 1, &memory);
        if (status == STATUS_OK) strcpy(memory, value);
        H5free_memory(value);
        TRY(status);
    } else {
        TRY(memory_alloc(MEMORY_OTHER, H5Tget_size(type) + 1, 1, &memory));
        if (H5Aread(attribute, type, memory) < 0) {
            memory_free(memory);
            return h5_fail(STATUS_INPUT, "read", path);
        }
    }
    *text = memory;
    return STATUS_OK;
}

/* Opens an attribute that must hold one value. */
static status_t open_attribute(hid_t object, const char *name, const char *path, hid_t *attribute) {
    htri_t exists = H5Aexists(object, name);
    if (exists < 0) return h5_fail(STATUS_INPUT, "read", path);
    if (!exists) return status_fail(STATUS_INPUT, "%s: the attribute \"%s\" is missing", path, name);
    hid_t opened = H5Aopen(object, name, H5P_DEFAULT);
    if (opened < 0) return h5_fail(STATUS_INPUT, "read", path);
    hid_t space = H5Aget_space(opened);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    H5Sclose(space);
    if (n != 1) {
        H5Aclose(opened);
        return status_fail(STATUS_INPUT, "%s: the attribute \"%s\" does not hold one value", path, name);
    }
    *attribute = opened;
    return STATUS_OK;
}

status_t h5_get_text(hid_t object, const char *name, const char *path, char **text) {
    hid_t attribute;
    TRY(open_attribute(object, name, path, &attribute));
    hid_t type = H5Aget_type(attribute);
    status_t status = read_text(attribute, type, name, path, text);
    H5Tclose(type);
    H5Aclose(attribute);
    return status;
}

status_t h5_get_int(hid_t object, const char *name, const char *path, int64_t *value) {
    hid_t attribute;
    TRY(open_attribute(object, name, path, &attribute));
    hid_t type = H5Aget_type(attribute);
    status_t status = STATUS_OK;
    if (H5Tget_class(type) != H5T_INTEGER)
        status = status_fail(STATUS_INPUT, "%s: the attribute \"%s\" is not a whole number", path, name);
    else if (H5Aread(attribute, H5T_NATIVE_INT64, value) < 0)
        status = h5_fail(STATUS_INPUT, "read", path);
    H5Tclose(type);
    H5Aclose(attribute);
    return status;
}
