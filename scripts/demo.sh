#!/usr/bin/env bash
# From nothing to generated text: packages, build, conversion of the bundled model, a run on four ranks.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/deps.sh
make -s -j"$(nproc)"
source scripts/mpi.sh

demo=build/demo
mkdir -p "$demo"
printf '\n$ galvani shard --checkpoint tests/models/nano --out %s/nano --tp 4\n' "$demo"
build/galvani shard --checkpoint tests/models/nano --out "$demo/nano" --tp 4

ask() {
    printf '\n$ mpirun -np 4 build/galvani run --model %s/nano --chat --think off --prompt "%s" --out %s\n' "$demo" "$1" "$2"
    mpi 4 build/galvani run --model "$demo/nano" --chat --think off --prompt "$1" --out "$2"
}
ask "What is 6 times 7?" "$demo/run.h5"
ask "在标准大气压下，水的沸点是多少？" "$demo/run-zh.h5"

printf '\n$ galvani inspect %s\n' "$demo/run.h5"
build/galvani inspect "$demo/run.h5"
