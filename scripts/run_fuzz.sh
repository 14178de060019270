#!/usr/bin/env bash
# Runs each libFuzzer program for FUZZ_SECONDS seconds, from the seeds in tests/fuzz/seeds/<name> where there are some.
set -euo pipefail
cd "$(dirname "$0")/.."
export ASAN_OPTIONS=detect_leaks=1

for program in "$@"; do
    name=$(basename "$program")
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus"
    seeds=()
    if [ -d "tests/fuzz/seeds/$name" ]; then seeds=("tests/fuzz/seeds/$name"); fi
    echo "$name for ${FUZZ_SECONDS:-60} s"
    "$program" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
        "$corpus" "${seeds[@]}" 2>&1 | grep -E 'ERROR|SUMMARY|number_of_executed_units|crash-' || true
    if ls crash-* leak-* timeout-* oom-* >/dev/null 2>&1; then
        echo "$name found a fault: $(ls crash-* leak-* timeout-* oom-* 2>/dev/null | tr '\n' ' ')" >&2
        exit 1
    fi
done
echo "every fuzz target ran clean"
