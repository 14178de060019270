#!/usr/bin/env bash
# Runs cmocka programs one after another; those named test_tp_* once for each number of ranks. Prints what failed, and adds a line
# "passed failed skipped" for each run to the file that GALVANI_COUNTS names.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

# Threads that wait sleep, as in galvani (base/cpu.h): test programs share the cores with other work.
export OMP_WAIT_POLICY=passive

# Open MPI leaks at exit; only programs without it are checked for leaks.
export ASAN_OPTIONS=allocator_may_return_null=1 # tests ask for more memory than there is
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
counts=${GALVANI_COUNTS:-/dev/null}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
total_failed=0

# number LOG WORD: cmocka's closing lines are "[  PASSED  ] 3 test(s)."
number() { sed -n "s/^\[  $2 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$1" | tail -n 1; }

# report NAME LOG EXIT_STATUS
report() {
    local passed failed skipped
    passed=$(number "$2" PASSED) failed=$(number "$2" FAILED) skipped=$(number "$2" SKIPPED)
    if [ "$3" -ne 0 ] && [ "${failed:-0}" -eq 0 ]; then
        failed=1
        echo "exit status $3" >> "$2"
    fi
    printf '%-34s %3d passed %3d failed %3d skipped\n' "$1" "${passed:-0}" "${failed:-0}" "${skipped:-0}"
    echo "${passed:-0} ${failed:-0} ${skipped:-0}" >> "$counts"
    if [ "${failed:-0}" -ne 0 ]; then
        tail -n 60 "$2"
        total_failed=$((total_failed + failed))
    fi
}

for program in "$@"; do
    name=$(basename "$program")
    case $name in
    test_tp_*)
        for ranks in 1 2 4 8; do
            # Rank 0's log counts; the exit status is any rank's.
            ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 LOGS=$logs mpi "$ranks" \
                bash -c 'exec "$0" > "$LOGS/rank$OMPI_COMM_WORLD_RANK" 2>&1' "$program" 2> "$logs/mpirun"
            status=$?
            cat "$logs/mpirun" >> "$logs/rank0"
            report "$name on $ranks ranks" "$logs/rank0" "$status"
        done
        ;;
    *)
        "$program" > "$logs/log" 2>&1
        report "$name" "$logs/log" $?
        ;;
    esac
done
[ "$total_failed" -eq 0 ]
