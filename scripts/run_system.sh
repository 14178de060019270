#!/usr/bin/env bash
# Runs the system tests: pytest drives build/galvani as a user would. Arguments are pytest's. Adds lines "passed failed skipped" to the
# file that GALVANI_COUNTS names.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

python=python3
"$python" -c 'import pytest, h5py, numpy' 2>/dev/null || python=/usr/bin/python3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed_any=0

number() { grep -oE "[0-9]+ $1" "$log" | tail -n 1 | cut -d' ' -f1; }

# run ARGUMENTS: one pytest session. Status 5 is "no test was selected".
run() {
    "$python" -m pytest -q -ra -p no:cacheprovider "$@" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]}
    local passed failed errors skipped
    passed=$(number passed) failed=$(number failed) errors=$(number 'errors?') skipped=$(number skipped)
    local bad=$((${failed:-0} + ${errors:-0}))
    if [ "$status" -ne 0 ] && [ "$status" -ne 5 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    echo "${passed:-0} $bad ${skipped:-0}" >> "${GALVANI_COUNTS:-/dev/null}"
    [ "$bad" -eq 0 ] || failed_any=1
}

# These measure how fast ranks end, or set up daemons and networks: one at a time. The others mostly wait for processes to start and
# end, so several run at once.
alone=(tests/system/test_faults.py tests/system/test_slurm.py tests/system/test_two_hosts.py)
workers=()
if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n $((2 * $(nproc)))); fi
run "${workers[@]}" "${alone[@]/#/--ignore=}" tests/system "$@"
run "${alone[@]}" "$@"
exit "$failed_any"
