#!/usr/bin/env bash
# Builds and runs every test that needs no GPU. The last line is "N passed, N failed, N skipped"; the exit status is 0 only if none
# failed and some passed.
set -uo pipefail
cd "$(dirname "$0")/.."

bash scripts/deps.sh || exit 1
make -s -j"$(nproc)" || exit 1
make -s -j"$(nproc)" unit-build headers || exit 1

counts=build/check.counts
: > "$counts"
GALVANI_COUNTS=$counts make -s unit
GALVANI_COUNTS=$counts bash scripts/run_system.sh

awk '{ passed += $1; failed += $2; skipped += $3 }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }' "$counts"
