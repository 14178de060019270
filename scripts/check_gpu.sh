#!/usr/bin/env bash
# The tests that need a GPU: check_gpu.sh RANKS DIRECTORY, as `make check-gpu` calls it, DIRECTORY holding the programs of tests/gpu.
# Ops on one rank; sums, whole models and the bundled model on RANKS, by everything that can carry their sums; compute-sanitizer on
# one rank where it is found. The last line is "N passed, N failed"; the exit status is 0 only if none failed.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/mpi.sh

ranks=$1 tests=$2 python=${PYTHON:-python3}
work=$(mktemp -d) passed=0 failed=0
trap 'rm -rf "$work"' EXIT

# step NAME COMMAND...: what it prints is shown if it fails, and lines that begin with four blanks always.
step() {
    local name=$1 begin=$SECONDS
    shift
    if "$@" > "$work/log" 2>&1; then
        passed=$((passed + 1))
        grep '^    ' "$work/log" | tail -30
        echo "pass  $name ($((SECONDS - begin)) s)"
    else
        failed=$((failed + 1))
        cat "$work/log"
        echo "FAIL  $name"
    fi
}

gpus=$(nvidia-smi -L | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "no GPU is here" >&2; exit 1; }
if [ "$ranks" -eq 1 ]; then
    comms=(auto)
elif [ "$ranks" -le "$gpus" ]; then
    comms=(push nccl mpi)
else
    comms=(push mpi)
    echo "$ranks ranks share $gpus GPU(s): NCCL cannot"
    if [ ! -S "${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control" ] && [ ! -p "${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control" ]; then
        echo "without MPS they take turns on it, and sums are a hundred times slower: start it with nvidia-cuda-mps-control -d"
        echo "(and end it with: echo quit | nvidia-cuda-mps-control)"
    fi
fi

# Programs for several ranks have their own lines below; all others test ops against the CPU reference, on one rank.
for test in "$tests"/test_*; do
    case ${test##*/} in
        test_push | test_mpi | test_golden | test_routing | test_run_ahead) ;;
        *) [ "$ranks" -gt 1 ] || step "${test##*/}" "$test" ;;
    esac
done
[ "$ranks" -eq 1 ] || step "push sums on $ranks ranks" mpi "$ranks" "$tests/test_push"
[ "$ranks" -eq 1 ] || step "device memory through MPI on $ranks ranks" mpi "$ranks" "$tests/test_mpi"
for comm in "${comms[@]}"; do
    step "models against the goldens, $ranks rank(s), $comm" mpi "$ranks" "$tests/test_golden" "$comm"
done
step "decode ahead of the host, $ranks rank(s)" mpi "$ranks" "$tests/test_run_ahead"
[ "$ranks" -eq 1 ] || step "launches of a step, $ranks ranks" mpi "$ranks" "$tests/test_launches" "${comms[0]}"
step "models with the reference's choices, $ranks rank(s)" mpi "$ranks" "$tests/test_routing"

step "the bundled model for $ranks rank(s)" build/galvani shard --quiet --checkpoint tests/models/nano --out "$work/nano" --tp "$ranks"
for comm in "${comms[@]}"; do
    step "the bundled model's quality gate, $ranks rank(s), $comm" "$python" scripts/gpu_runs.py gate "$work/nano" "$ranks" "$comm"
done
# Where there is NCCL each rank has a device of its own, which this route needs.
case " ${comms[*]} " in
    *" nccl "*) step "sums over ranks in their mixers, $ranks ranks" "$python" scripts/gpu_runs.py sums "$work/nano" "$ranks" push ;;
esac
step "11 requests of mixed length as one by one, $ranks rank(s)" "$python" scripts/gpu_runs.py requests "$work/nano" "$ranks" "${comms[0]}"
step "ranks that are killed, stopped or asked to end, $ranks rank(s)" "$python" tests/gpu/faults.py "$ranks"

sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2> /dev/null)
if [ "$ranks" -gt 1 ]; then
    :
elif [ -z "$sanitizer" ]; then
    echo "compute-sanitizer is not here: memcheck and racecheck were left out"
else
    for tool in memcheck racecheck; do
        step "compute-sanitizer $tool on the bundled model" timeout 300 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 1 \
            build/galvani run --backend cuda --model "$work/nano" --prompt 'What is a volt?' --max-new 4 --stall-limit 0 --quiet
    done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
