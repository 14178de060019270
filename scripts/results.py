#!/usr/bin/env python3
"""Makes the tables and pictures of results again: results.py [DIRECTORY...], all of results/ without an argument.

Each directory holds what a run left: bench.json (galvani bench --json), run.h5 (its run file), ops.h5 (a run file with --trace ops). From
them come tables.md, decomposition.png, tpot.png and timeline.png beside them. Needs build/galvani and Python's standard library."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALVANI = ROOT / "build" / "galvani"
FIGURES = [
    ("ms_per_token", "ms a token", 3),
    ("p50_ms", "p50 ms", 3),
    ("p99_ms", "p99 ms", 3),
    ("tokens_per_s", "tokens/s", 2),
    ("ttft_ms", "TTFT ms", 1),
    ("prompt_tokens_per_s", "prompt tokens/s", 0),
    ("launches", "launches", 0),
]
PICTURES = [("run.h5", "decomposition"), ("run.h5", "tpot"), ("ops.h5", "timeline")]


def galvani(*words, cwd=ROOT):
    done = subprocess.run([GALVANI, *map(str, words)], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def table(heading, rows):
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def passes(bench, figures):
    """Every repeat, then mean, least and most of each variant."""
    rows = []
    for number, repeat in enumerate(bench["repeats"], 1):
        cells = [f"{repeat[key]:,.{digits}f}" for key, _, digits in figures]
        rows.append([f"{number}, {repeat['variant']}", *cells, repeat["token_hash"][:8]])
    for variant in ("candidate", "control"):
        for what in ("mean", "min", "max") if variant in bench else ():
            cells = [f"{bench[variant][key][what]:,.{digits}f}" for key, _, digits in figures]
            rows.append([f"{variant}, {what}", *cells, ""])
    return table(["pass", *(name for _, name, _ in figures), "tokens"], rows)


def parts(bench):
    """Mean time of a token by group; with a control, that beside it."""
    variants = [bench[name]["decomposition_ms"] for name in ("candidate", "control") if name in bench]
    whole = bench["candidate"]["ms_per_token"]["mean"]
    rows = []
    for group in sorted(variants[0], key=lambda name: -variants[0][name]["mean"]):
        means = [variant[group]["mean"] for variant in variants]
        cells = [group, *(f"{ms:.3f}" for ms in means), f"{100 * means[0] / whole:.1f} %"]
        if len(means) > 1:
            cells.append(f"{means[0] - means[1]:+.3f}")
        rows.append(cells)
    names = ["ms a token", "control", "share", "less control"] if len(variants) > 1 else ["ms a token", "share"]
    return table(["group", *names], rows)


def tables(directory):
    bench = json.loads((directory / "bench.json").read_text())
    figures = [figure for figure in FIGURES if figure[0] in bench["candidate"]]
    agree = "Every pass gave the same tokens." if bench["tokens_agree"] else "PASSES GAVE DIFFERENT TOKENS."
    if "control" in bench:
        agree += f" The control is the same with {bench['control_routes']}"
        agree += "; it gave the same tokens." if bench["control_tokens_agree"] else "; it gave other tokens."
    ranks = f"{bench['n_ranks']} rank{'s' if bench['n_ranks'] > 1 else ''}"
    text = f"# {directory.name}\n\nMade by `scripts/results.py`. Commit {bench['git_commit']}, {bench['time']}, {ranks}:\n\n"
    text += f"    {bench['command_line']}\n\n{passes(bench, figures)}\n{agree}\n\n{parts(bench)}"
    if bench["backend"] == "cuda":
        text += f"\nThe model of the same step (`galvani model`):\n\n```\n{galvani('model', '--measured', directory / 'bench.json')}```\n"
    return text


def main(directories):
    for directory in directories:
        made = []
        if (directory / "bench.json").exists():
            (directory / "tables.md").write_text(tables(directory))
            made.append("tables.md")
        for source, kind in PICTURES:
            if (directory / source).exists():
                galvani("trace", "plot", source, "--kind", kind, "--out", f"{kind}.png", cwd=directory)
                made.append(f"{kind}.png")
        print(f"{directory}: {', '.join(made)}")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or sorted(path for path in (ROOT / "results").iterdir() if path.is_dir()))
