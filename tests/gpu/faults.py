#!/usr/bin/env python3
"""Faults injected into runs of nano on GPUs: faults.py RANKS [BACKEND], as scripts/check_gpu.sh calls it.

A rank is killed while it loads, in prefill and in decode, or stopped; rank 0 is asked to end. All ranks must end within seconds of it with one
message and the documented status, and the run file must hold every step that a reader had seen. Python's standard library is enough."""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GALVANI = ROOT / "build" / "galvani"
DEVICE, INTERRUPTED = 5, 130
END_S = 5
STALL_LIMIT_S = 2


def galvani(*words):
    return subprocess.run([GALVANI, *map(str, words)], capture_output=True, text=True, check=False)


def tokens_in(out):
    """The tokens of a run file as a reader sees them, whoever may be writing."""
    done = galvani("trace", "export", out, "--format", "csv")
    return [row["token"] for row in csv.DictReader(io.StringIO(done.stdout)) if row["rank"] == "0"]


class Run:
    """A long generation on `ranks` ranks."""

    def __init__(self, directory, model, ranks, backend, *words, n_prompt=4, max_new=4000):
        self.out, self.stderr = directory / "run.h5", directory / "stderr"
        prompt = directory / "prompt"
        prompt.write_text(" ".join(str(10 + i % 900) for i in range(n_prompt)))
        self.mark = f"GALVANI_FAULT_RUN={directory}"
        launch = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), GALVANI, "run", "--model", model, "--backend", backend]
        launch += ["--tokens-file", prompt, "--max-new", str(max_new), "--ignore-eos", "--out", self.out, *words]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with open(self.stderr, "wb") as stderr:
            environment = {**os.environ, **root, "GALVANI_FAULT_RUN": str(directory)}
            self.process = subprocess.Popen(launch, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)

    def wait_for(self, probe):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            value = probe()
            if value:
                return value
            time.sleep(0.005)
        raise AssertionError(f"what the test waits for did not come: {self.stderr.read_text()}")

    def rank(self, rank):
        """Process id of a rank: the child of the process that watches it."""
        wanted = {self.mark.encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}

        def find():
            for entry in Path("/proc").iterdir():
                try:
                    pid = int(entry.name)
                    if not wanted.issubset((entry / "environ").read_bytes().split(b"\0")):
                        continue
                    parent = re.search(r"\) \S (\d+)", (entry / "stat").read_text()).group(1)
                    if Path(f"/proc/{parent}/comm").read_text().strip() == "galvani-watch":
                        return pid
                except (ValueError, OSError):
                    continue
            return None

        return self.wait_for(find)

    def loading(self, rank):
        """Waits until the rank has opened its device or its shard."""
        pid = self.rank(rank)

        def has_opened():
            links = []
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    links.append(os.readlink(link))
                except OSError:
                    continue
            return any("/dev/nvidia" in link or f"model.rank{rank}of" in link for link in links)

        self.wait_for(has_opened)
        return []

    def prefilling(self, _rank):
        self.wait_for(self.out.exists)
        time.sleep(0.2)
        return []

    def decoding(self, _rank):
        def seen():
            tokens = tokens_in(self.out) if self.out.exists() else []
            return tokens if len(tokens) >= 8 else None

        return self.wait_for(seen)

    def fault(self, rank, number, seen, status, fragment, limit_s=END_S):
        os.kill(self.rank(rank), number)
        begin = time.monotonic()
        ended = self.process.wait(60)
        seconds = time.monotonic() - begin
        text = self.stderr.read_text("utf-8", "replace")
        messages = [line for line in text.splitlines() if "galvani: error:" in line]
        assert ended == status, f"status {ended}: {text}"
        assert len(messages) == 1 and fragment in messages[0], text
        assert seconds < limit_s, f"{seconds:.1f} s"
        if self.out.exists():
            assert galvani("inspect", self.out).returncode == 0
            kept = tokens_in(self.out)
            assert kept[: len(seen)] == seen, "flushed steps are gone"
        return seconds


# Name, what the run is doing, the rank (-1: the last), the signal, the status, what the message says, seconds.
CASES = [
    ("killed while loading", Run.loading, -1, signal.SIGKILL, DEVICE, "killed by signal 9", END_S),
    ("killed in prefill", Run.prefilling, 0, signal.SIGKILL, DEVICE, "killed by signal 9", END_S),
    ("killed in decode", Run.decoding, -1, signal.SIGKILL, DEVICE, "killed by signal 9", END_S),
    ("stopped in decode", Run.decoding, -1, signal.SIGSTOP, DEVICE, "has been stopped", STALL_LIMIT_S + 1 + END_S),
    ("asked to end in decode", Run.decoding, 0, signal.SIGTERM, INTERRUPTED, "signal 15", END_S),
]


def check(case, directory, model, ranks, backend):
    """Whether all went as it must."""
    name, reach, rank, number, status, fragment, limit_s = case
    place = directory / name.replace(" ", "-")
    place.mkdir()
    words, lengths = [], {}
    if reach is Run.prefilling:
        words, lengths = ["--prefill-chunk", "4"], {"n_prompt": 4000, "max_new": 50}
    if number == signal.SIGSTOP:
        words = ["--stall-limit", str(STALL_LIMIT_S)]
    run = Run(place, model, ranks, backend, *words, **lengths)
    which = f"rank {rank % ranks} of {ranks} {name}"
    try:
        seen = reach(run, rank % ranks)
        seconds = run.fault(rank % ranks, number, seen, status, fragment, limit_s)
        print(f"{which}: status {status} after {seconds:.1f} s, {len(seen)} tokens seen before", flush=True)
        return True
    except AssertionError as error:
        print(f"FAILED: {which}: {error}", flush=True)
        return False
    finally:
        run.process.kill()
        run.process.wait()


def main(ranks, backend):
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        directory = Path(name)
        done = galvani("shard", "--checkpoint", ROOT / "tests/models/nano", "--out", directory / "nano", "--tp", ranks, "--quiet")
        assert done.returncode == 0, done.stderr
        passed = list(pool.map(lambda case: check(case, directory, directory / "nano", ranks, backend), CASES))
    print(f"{sum(passed)} faults passed, {len(passed) - sum(passed)} failed")
    return all(passed)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda") else 1)
