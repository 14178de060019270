#!/usr/bin/env python3
"""Runs of the bundled model on GPUs: gpu_runs.py gate|requests|sums SHARDS RANKS COMM. The exit status is 0 if all tokens are right.

gate      32 prompts, each answer token for token that of the FP32 oracle (tests/models/nano/quality_gate.json)
requests  11 requests of mixed length in one process, each answer the same as in a process of its own
sums      logits with sums over ranks in their mixers and in launches of their own, the same bits
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py

ROOT = Path(__file__).resolve().parents[1]
REQUEST_KEYS = ("id", "prompt", "messages", "think", "reasoning_effort", "preserve_thinking")
LENGTHS = ((3, 40), (9, 17), (1, 60), (700, 12), (33, 2), (5, 25), (257, 33), (2, 1), (64, 64), (1023, 8), (12, 30))


def run(shards, ranks, comm, requests, out, options=()):
    """Generates for a list of requests; the token hash of each id."""
    path = out / "requests.jsonl"
    path.write_text("".join(json.dumps(request, ensure_ascii=False) + "\n" for request in requests), encoding="utf-8")
    launcher = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    words = ["run", "--backend", "cuda", "--comm", comm, "--model", shards, "--requests", str(path), "--out", str(out), "--quiet", *options]
    done = subprocess.run(launcher + [str(ROOT / "build" / "galvani")] + words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"galvani run ended with {done.returncode}: {done.stderr}")
    hashes = {}
    for request in requests:
        with h5py.File(out / f"{request['id']}.h5") as file:
            hashes[request["id"]] = file.attrs["token_hash"]
    return hashes


def directory(parent, name):
    path = Path(parent) / name
    path.mkdir()
    return path


def gate(shards, ranks, comm, work):
    entries = json.loads((ROOT / "tests/models/nano/quality_gate.json").read_text(encoding="utf-8"))
    requests = [{**{key: entry[key] for key in REQUEST_KEYS if key in entry}, "max_new": 64} for entry in entries]
    hashes = run(shards, ranks, comm, requests, directory(work, "gate"))
    wrong = [entry["id"] for entry in entries if hashes[entry["id"]] != entry["token_hash"]]
    print(f"    {len(entries) - len(wrong)} of {len(entries)} answers are the oracle's {' '.join(wrong)}")
    return not wrong


def requests(shards, ranks, comm, work):
    mixed = [
        {"id": f"r{i}", "tokens": [(17 + 31 * i + 7 * k * k) % 2000 for k in range(n)], "max_new": new, "ignore_eos": True}
        for i, (n, new) in enumerate(LENGTHS)
    ]
    together = run(shards, ranks, comm, mixed, directory(work, "together"))
    wrong = []
    for request in mixed:
        alone = run(shards, ranks, comm, [request], directory(work, request["id"]))
        if alone[request["id"]] != together[request["id"]]:
            wrong.append(request["id"])
    print(f"    {len(mixed) - len(wrong)} of {len(mixed)} as in a process of its own {' '.join(wrong)}")
    return not wrong


def sums(shards, ranks, comm, work):
    request = {"id": "sums", "tokens": [(17 + 31 * k) % 2000 for k in range(9)], "max_new": 40, "ignore_eos": True}
    logits, launches = {}, {}
    for chosen in ("on", "off"):
        out = directory(work, chosen)
        run(shards, ranks, comm, [request], out, ("--logits", "--route", f"fused_allreduce={chosen}"))
        with h5py.File(out / "sums.h5") as file:
            logits[chosen] = file["sampling/logits"][()].tobytes()
            launches[chosen] = [row["chosen"] for row in file["routes"] if row["name"] == b"fused_allreduce"]
    print(f"    fused_allreduce {launches['on'][0].decode()} and {launches['off'][0].decode()}, {len(logits['on'])} bytes of logits")
    return launches == {"on": [b"on"], "off": [b"off"]} and logits["on"] == logits["off"]


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in ("gate", "requests", "sums"):
        sys.exit(__doc__)
    _, what, shards, ranks, comm = sys.argv
    if os.getuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as work:
        right = {"gate": gate, "requests": requests, "sums": sums}[what](shards, ranks, comm, work)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
