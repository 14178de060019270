#!/usr/bin/env bash
# Runs the system tests: pytest drives build/galvani as a user would. Adds "passed failed skipped" to the file that GALVANI_COUNTS
# names.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

python=python3
"$python" -c 'import pytest, h5py, numpy' 2>/dev/null || python=/usr/bin/python3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m pytest -q -ra -p no:cacheprovider tests/system "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

number() { grep -oE "[0-9]+ $1" "$log" | tail -n 1 | cut -d' ' -f1; }
passed=$(number passed) failed=$(number failed) errors=$(number 'errors?') skipped=$(number skipped)
bad=$((${failed:-0} + ${errors:-0}))
if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
echo "${passed:-0} $bad ${skipped:-0}" >> "${GALVANI_COUNTS:-/dev/null}"
exit "$status"
