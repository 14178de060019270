#!/usr/bin/env python3
"""Reads a run file with h5py alone and prints where a token's time goes, as `galvani trace report` does.

    python3 scripts/decomposition_table.py run.h5

An example to start from. The layout of the file is in docs/formats.md.
"""

import sys

import h5py
import numpy as np


def open_run(path):
    """Opens a run file; one that is being written, or whose writer died, only opens as an SWMR reader."""
    try:
        return h5py.File(path, "r")
    except OSError:
        return h5py.File(path, "r", swmr=True)


def main(path):
    with open_run(path) as run:
        # A file that still grows may have a row more in one table than in another.
        n_steps = min(len(run["/tokens/generated"]), len(run["/steps/wall_ns"]))
        n_steps = min([n_steps] + [len(part) for part in run["/decomposition"].values()])
        first = 32 if n_steps >= 64 else 1  # steady decode: without the prefill and the warm-up
        if n_steps <= first:
            sys.exit(f"{path} has no step behind the first {first}")
        wall_ms = run["/steps/wall_ns"][first:n_steps] / 1e6
        # One dataset [step, rank] a group; the mean over the steps leaves one number a rank.
        # (+ 0.0 makes a rounded -0.0 plain).
        parts = {
            name: part[first:n_steps].mean(axis=0, dtype=float).round(6) + 0.0
            for name, part in run["/decomposition"].items()
        }
        # Bytes that a token must move on each rank for the group.
        floor_mb = {name: part.attrs.get("floor_bytes", 0) / 1e6 for name, part in run["/decomposition"].items()}
        print(f"{run.attrs['tp_size']} ranks, backend {run.attrs['backend']} on {run.attrs['host']}")

    print(f"{1e3 / wall_ms.mean():.2f} tokens/s; p50 {np.percentile(wall_ms, 50):.3f} ms a token\n")
    n_ranks = len(parts["comm"])
    print(f"{'ms a token':14}" + "".join(f"   rank {rank}" for rank in range(n_ranks)) + "      mean    share        MB")
    for name, by_rank in sorted(parts.items(), key=lambda item: -item[1].mean()):
        cells = "".join(f" {ms:8.3f}" for ms in by_rank)
        print(f"{name:14}{cells} {by_rank.mean():9.3f} {100 * by_rank.mean() / wall_ms.mean():7.1f}% {floor_mb[name]:9.1f}")
    total = sum(parts.values())
    cells = "".join(f" {ms:8.3f}" for ms in total)
    print(f"{'sum':14}{cells} {total.mean():9.3f} {100 * total.mean() / wall_ms.mean():7.1f}% {sum(floor_mb.values()):9.1f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: decomposition_table.py run.h5")
    main(sys.argv[1])
