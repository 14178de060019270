#!/usr/bin/env bash
# Speed of loading a model against a plain parallel read of the same file, in turns: with the file out of the page cache, then in it.
# What galvani prints counts: all tensors read, digests checked, in the device's memory.
# Environment: BENCH_DIR (build/load-bench) for some 16 GB, BENCH_SIZE (wide; see make_synthetic_checkpoint.py), BENCH_REPEATS (3),
# BENCH_STATES (cold cached), GALVANI (build/galvani), BENCH_BACKEND (auto).
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${BENCH_DIR:-build/load-bench} size=${BENCH_SIZE:-wide} galvani=${GALVANI:-build/galvani}
python=python3
"$python" -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
model=$dir/shards
if [ ! -e "$model/.complete" ]; then
    rm -rf "$dir"
    mkdir -p "$model"
    "$python" scripts/make_synthetic_checkpoint.py --size "$size" "$dir/checkpoint"
    "$galvani" shard --quiet --checkpoint "$dir/checkpoint" --out "$model" --tp 1
    rm -rf "$dir/checkpoint"
    touch "$model/.complete"
fi
file=$model/model.rank0of1.h5

# GB/s of four threads that read pieces of 4 MiB.
plain() {
    "$python" - "$file" <<'END'
import os, sys, threading, time
fd, piece, n_threads = os.open(sys.argv[1], os.O_RDONLY), 4 << 20, 4
size = os.fstat(fd).st_size
def read(first):
    buffer = memoryview(bytearray(piece))
    for offset in range(first * piece, size, n_threads * piece):
        os.preadv(fd, [buffer], offset)
threads = [threading.Thread(target=read, args=(i,)) for i in range(n_threads)]
start = time.monotonic()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(f"{size / (time.monotonic() - start) / 1e9:.2f}")
END
}

load() {
    "$galvani" run --backend "${BENCH_BACKEND:-auto}" --model "$model" --tokens 1,2,3 --max-new 1 --max-context 64 2>&1 > /dev/null |
        awk '/^weights  rank/ { print $(NF - 1) }'
}

forget() { "$python" -c 'import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)' "$file"; }

echo "$(du -b "$file" | awk '{ printf "%.2f GB", $1 / 1e9 }'); GB/s of a plain read, of loading"
for state in ${BENCH_STATES:-cold cached}; do
    for _ in $(seq "${BENCH_REPEATS:-3}"); do
        [ "$state" = cached ] || forget
        read_speed=$(plain)
        [ "$state" = cached ] || forget
        load_speed=$(load)
        awk "BEGIN { printf \"%-7s %6.2f %6.2f  %3.0f %%\n\", \"$state\", $read_speed, $load_speed, 100 * $load_speed / $read_speed }"
    done
done
