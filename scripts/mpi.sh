# Sourced by the other scripts: `mpi T program ...` starts T ranks on this machine, whatever it is. Open MPI refuses root, and more
# ranks than cores, unless told; -q leaves the messages to the program.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

mpi() {
    local ranks=$1
    shift
    mpirun -q --oversubscribe --bind-to none -np "$ranks" "$@"
}
