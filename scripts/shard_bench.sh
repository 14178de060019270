#!/usr/bin/env bash
# Speed of galvani shard against a plain copy of the same checkpoint on the same disk, both synced; reading back and comparing is part
# of galvani's time. Runs alternate, the best of each counts.
# Environment: BENCH_DIR (build/shard-bench) for some 8 GB, BENCH_REPEATS (3), BENCH_SIZE (small; see make_synthetic_checkpoint.py).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

dir=${BENCH_DIR:-build/shard-bench}
repeats=${BENCH_REPEATS:-3}
size=${BENCH_SIZE:-small}
python=python3
"$python" -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
mkdir -p "$dir"
checkpoint=$dir/$size
if [ ! -e "$checkpoint/.complete" ]; then
    rm -rf "$checkpoint"
    "$python" scripts/make_synthetic_checkpoint.py --size "$size" "$checkpoint"
    touch "$checkpoint/.complete"
fi
megabytes=$(du -cb "$checkpoint"/*.safetensors | awk 'END { printf "%.0f", $1 / 1e6 }')
log=$(mktemp)
trap 'rm -rf "$log" "$dir/out"' EXIT

# Seconds that a command takes, from an empty output directory and a quiet disk to synced files.
seconds() {
    rm -rf "$dir/out"
    sync
    local start end
    start=$(date +%s.%N)
    "$@" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
    sync "$dir"/out/*
    end=$(date +%s.%N)
    awk "BEGIN { printf \"%.2f\", $end - $start }"
}

copy() { cp -r "$checkpoint" "$dir/out"; }
one() { build/galvani shard --checkpoint "$checkpoint" --out "$dir/out" --tp 4; }
four() { mpi 4 build/galvani shard --checkpoint "$checkpoint" --out "$dir/out" --tp 4; }
smaller() { awk "BEGIN { print ($1 < $2) ? $1 : $2 }"; }

cat "$checkpoint"/*.safetensors > /dev/null
best_copy=1e9 best_one=1e9 best_four=1e9
for ((i = 0; i < repeats; i++)); do
    took=$(seconds copy)
    best_copy=$(smaller "$best_copy" "$took")
    took=$(seconds one)
    best_one=$(smaller "$best_one" "$took")
    said_one=$(tail -n 1 "$log")
    took=$(seconds four)
    best_four=$(smaller "$best_four" "$took")
    said_four=$(tail -n 1 "$log")
done

row() { awk "BEGIN { printf \"%-34s %7.2f s %8.0f MB/s %6.0f %%\n\", \"$1\", $2, $megabytes / $2, 100 * $best_copy / $2 }"; }
echo "$checkpoint: $megabytes MB of safetensors; best of $repeats"
row "cp -r, synced" "$best_copy"
row "galvani shard --tp 4, 1 process" "$best_one"
row "galvani shard --tp 4, 4 processes" "$best_four"
echo "1 process:   $said_one"
echo "4 processes: $said_four"
