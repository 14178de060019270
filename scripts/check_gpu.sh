#!/usr/bin/env bash
# The tests that need a GPU: check_gpu.sh RANKS DIRECTORY, as `make check-gpu` calls it. Ops on one rank, whole models on RANKS.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

ranks=$1 tests=$2
"$tests/test_sizes"
"$tests/test_ops"
"$tests/test_mixers"
"$tests/test_dense8"
"$tests/test_gr"
"$tests/test_prefill"
[ "$ranks" -eq 1 ] || mpi "$ranks" "$tests/test_push"
mpi "$ranks" "$tests/test_run_ahead"
mpi "$ranks" "$tests/test_golden"
