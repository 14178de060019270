"""The run file as an independent HDF5 reader sees it (h5py): its contract, while it is written, after a kill, and what
galvani inspect and galvani trace make of it."""

import csv
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import ROOT, command, environment, galvani

GROUPS = [
    "gr", "gdn_core", "qsa", "projections", "router", "experts", "shared_expert",
    "comm", "lm_head", "sampling", "ple", "other", "host_gap",
]  # fmt: skip
PROMPT = "1,2,3,4,5,6,7"


def generate(model, tp, out, *more, n=40):
    words = ("--tokens", PROMPT, "--max-new", n, "--ignore-eos", "--quiet", "--out", out)
    done = galvani(tp, "run", "--model", model, *words, *more)
    assert done.status == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def run_path(golden_shards, tmp_path_factory):
    """A run on four ranks with everything that can be asked for."""
    out = tmp_path_factory.mktemp("run") / "run.h5"
    return generate(golden_shards("mixed", 4), 4, out, "--trace", "ops", "--logits", "--top-logprobs", 3)


def test_root_attributes(run_path):
    with h5py.File(run_path, "r") as run:
        attrs = dict(run.attrs)
        ids = run["/tokens/generated"][:].astype("<i4")
    assert attrs["format"] == "galvani-run"
    assert attrs["format_version"] == 1
    assert attrs["complete"] == 1
    assert attrs["tp_size"] == 4
    assert "--max-new 40" in attrs["command_line"]
    assert json.loads(attrs["effective_config"])["max-new"] == 40
    assert json.loads(attrs["model_config"])
    assert re.fullmatch("[0-9a-f]{64}", attrs["model_digest"])
    assert attrs["token_hash"] == hashlib.sha256(ids.tobytes()).hexdigest()
    assert attrs["stop_reason"] == "length"
    assert attrs["backend"] == "cpu"
    assert "MPI" in attrs["mpi_version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", attrs["hdf5_version"])
    assert attrs["host"] == os.uname().nodename
    for name in ("start_time", "end_time"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", attrs[name])
    for name in ("git_commit", "gpus", "driver_version", "cuda_version", "nccl_version"):
        assert isinstance(attrs[name], str)


def test_tables(run_path):
    with h5py.File(run_path, "r") as run:
        assert list(run["/tokens/prompt"][:]) == [1, 2, 3, 4, 5, 6, 7]
        ids = run["/tokens/generated"][:]
        assert ids.shape == (40,) and ids.dtype == np.int32
        start, wall = run["/steps/start_ns"][:], run["/steps/wall_ns"][:]
        assert (wall > 0).all()
        assert (start[1:] >= start[:-1] + wall[:-1]).all()
        assert run["/steps/device_ns"].shape == (40, 4)
        assert run["/steps/wall_ns"].attrs["unit"] == "ns"
        pairs = run["/sampling/pairs"][:]
        assert pairs.shape == (40, 4) and pairs.dtype.names == ("value", "token")
        logits = run["/sampling/logits"][:]
        assert logits.shape == (40, 320) and logits.dtype == np.float32
        assert np.array_equal(logits.argmax(axis=1), ids)
        assert np.array_equal(pairs["value"].max(axis=1), logits.max(axis=1))
        # The best log-probabilities, falling, and where they stand.
        logprobs = logits - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        logprobs -= logits.max(axis=1, keepdims=True)
        best = np.sort(logprobs, axis=1)[:, ::-1][:, :3]
        assert np.allclose(run["/sampling/top_logprobs"][:], best, atol=1e-4)
        assert np.array_equal(run["/sampling/top_tokens"][:, 0], ids)
        memory = run["/memory"][:]
        assert memory.shape == (4,) and (memory["weights"] > 0).all() and (memory["peak_host_rss"] > 0).all()
        assert run["/routes"].dtype.names == ("name", "chosen", "reason")


def test_parts_add_up(run_path):
    with h5py.File(run_path, "r") as run:
        parts = {name: run["/decomposition"][name][:] for name in run["/decomposition"]}
        wall_ms = run["/steps/wall_ns"][:] / 1e6
        gap_ns, device_ns = run["/steps/host_gap_ns"][:], run["/steps/device_ns"][:]
    assert set(parts) == set(GROUPS) | {"remainder"}
    assert all(part.shape == (40, 4) for part in parts.values())
    total = sum(part.astype(float) for part in parts.values())
    assert np.allclose(total, wall_ms[:, None], rtol=1e-5)
    # The remainder is what ranks' clocks differ by; it stays small.
    assert np.abs(parts["remainder"]).mean() < 0.1 * wall_ms.mean()
    assert np.allclose(parts["host_gap"][:, 0], gap_ns / 1e6, rtol=1e-5, atol=1e-6)
    work = sum(parts[name].astype(float) for name in GROUPS if name != "host_gap")
    assert np.allclose(work, device_ns / 1e6, rtol=1e-5)
    for name in GROUPS[:-1]:
        assert parts[name].sum() > 0, name


def test_ops_agree_with_the_decomposition(run_path):
    with h5py.File(run_path, "r") as run:
        ops = run["/ops"][:]
        parts = {name: run["/decomposition"][name][:] for name in GROUPS}
        start, wall = run["/steps/start_ns"][:], run["/steps/wall_ns"][:]
    assert set(ops["rank"]) == {0, 1, 2, 3} and set(ops["step"]) == set(range(40))
    assert set(ops["layer"]) == set(range(-1, 8))
    for name in GROUPS[:-1]:
        mine = ops[ops["group"] == name.encode()]
        sums = np.zeros((40, 4))
        np.add.at(sums, (mine["step"], mine["rank"]), mine["dur_ns"] / 1e6)
        assert np.allclose(sums, parts[name], rtol=1e-5, atol=1e-6), name
    # One clock: rank 0's operators lie inside their steps.
    mine = ops[ops["rank"] == 0]
    assert (mine["start_ns"] >= start[mine["step"]]).all()
    assert (mine["start_ns"] + mine["dur_ns"] <= start[mine["step"]] + wall[mine["step"]]).all()


def test_each_request_has_its_trace_level(golden_shards, tmp_path):
    requests, out = tmp_path / "r.jsonl", tmp_path / "out"
    levels = ("ops", "off", "steps")
    lines = [{"id": name, "tokens": [5, 6, 7], "max_new": 6, "ignore_eos": True, "trace": name} for name in levels]
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = galvani(2, "run", "--model", golden_shards("mixed", 2), "--requests", requests, "--out", out)
    assert done.status == 0, done.stderr
    for name in levels:
        with h5py.File(out / f"{name}.h5", "r") as run:
            assert ("ops" in run) == (name == "ops")
            parts = [run["/decomposition"][part][:] for part in GROUPS]
            assert len(parts[0]) == 6
            assert (sum(parts) > 0).all() == (name != "off") and (sum(parts) == 0).all() == (name == "off")


def start_run(model, out, n):
    words = ("--tokens", PROMPT, "--max-new", n, "--ignore-eos", "--quiet", "--out", out)
    return subprocess.Popen(
        command(2, "run", "--model", model, *words),
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for_steps(out, n, process):
    """Looks at the file as a reader beside the run; the rows seen."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if out.exists():
            with h5py.File(out, "r", swmr=True) as run:
                ids = run["/tokens/generated"][:]
                if len(ids) >= n:
                    return ids, run.attrs["complete"], run.attrs["pid"]
        time.sleep(0.02)
    raise AssertionError("the run file did not grow")


def test_live_and_killed(nano_shards, tmp_path):
    """h5py follows the run; after kill -9 of rank 0 nothing that was flushed is lost, and --mend helps h5py."""
    model = nano_shards(2)
    whole = generate(model, 2, tmp_path / "whole.h5", n=30)
    out = tmp_path / "killed.h5"
    process = start_run(model, out, 4000)  # longer than the test looks at it
    try:
        first, complete, pid = wait_for_steps(out, 5, process)
        assert not complete
        report = galvani(0, "inspect", out)
        assert report.status == 0 and "being written" in report.stdout
        refused = galvani(0, "inspect", "--mend", out)
        assert refused.status == 2 and "being written" in refused.stderr
        seen, _, _ = wait_for_steps(out, len(first) + 5, process)
        os.kill(int(pid), signal.SIGKILL)
        assert process.wait(timeout=20) != 0
    finally:
        process.kill()
        process.stderr.close()
    with h5py.File(whole, "r") as run:
        expected = run["/tokens/generated"][:]
    with pytest.raises(OSError):
        h5py.File(out, "r").close()
    with h5py.File(out, "r", swmr=True) as run:
        ids = run["/tokens/generated"][:]
        assert len(ids) >= len(seen)
        n = min(len(ids), len(expected))
        assert np.array_equal(ids[:n], expected[:n])
        assert len(run["/steps/wall_ns"]) == len(ids)
    report = galvani(0, "inspect", out)
    assert report.status == 0 and "its writer died" in report.stdout and "--mend" in report.stdout
    assert galvani(0, "trace", "report", out).status == 0
    mended = galvani(0, "inspect", "--mend", "--verify", out)
    assert mended.status == 0, mended.stderr
    with h5py.File(out, "r") as run:
        assert np.array_equal(run["/tokens/generated"][:], ids)
        assert run.attrs["token_hash"] == hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
        assert run.attrs["complete"] == 0


def test_watch(nano_shards, tmp_path):
    out = tmp_path / "watched.h5"
    process = start_run(nano_shards(2), out, 2000)  # longer than it takes to look
    try:
        wait_for_steps(out, 1, process)
        done = galvani(0, "trace", "watch", out, "--interval", 50)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stderr.close()
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 1 and lines[-1].startswith("2000 of 2000 tokens")
    assert all(re.match(r"\d+ of 2000 tokens, first after", line) for line in lines)


def test_full_disk(golden_shards, tmp_path):
    """A disk that fills up ends the run with status 5; the rows before stay readable."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        out = disk / "run.h5"
        words = ("--tokens", PROMPT, "--max-new", 900, "--ignore-eos", "--logits", "--out", out)
        done = galvani(2, "run", "--model", golden_shards("mixed", 2), *words)
        assert done.status == 5, done.stderr
        assert len(done.messages()) == 1
        assert "run.h5" in done.stderr and "No space left" in done.stderr
        with h5py.File(out, "r") as run:
            logits, ids = run["/sampling/logits"][:], run["/tokens/generated"][:]
            assert run.attrs["complete"] == 0
        n = min(len(logits), len(ids))
        assert n > 100
        assert np.array_equal(logits[:n].argmax(axis=1), ids[:n])
    finally:
        subprocess.run(["umount", disk], check=True)


def test_report(run_path):
    done = galvani(0, "trace", "report", run_path, "--skip", 1)
    assert done.status == 0, done.stderr
    with h5py.File(run_path, "r") as run:
        wall = run["/steps/wall_ns"][1:] / 1e6
        parts = {name: run["/decomposition"][name][1:].mean(axis=0) for name in GROUPS}
    assert f"mean {wall.mean():.3f} ms" in done.stdout
    assert f"p90 {np.percentile(wall, 90):.3f}" in done.stdout
    for name in GROUPS:
        row = re.search(rf"^{name} +(.*)$", done.stdout, re.M)[1].split()
        assert np.allclose([float(word) for word in row[:4]], parts[name], atol=6e-4), name
        assert abs(float(row[4]) - parts[name].mean()) < 6e-4


def test_report_of_the_byte_floor(run_path):
    """Bytes as the file has them, and the share of the time that they would take on the memory that is named."""
    assert "of floor" not in galvani(0, "trace", "report", run_path).stdout
    done = galvani(0, "trace", "report", run_path, "--skip", 1, "--bandwidth", 2)
    with h5py.File(run_path, "r") as run:
        parts = {name: run["/decomposition"][name][1:].mean() for name in GROUPS}
        floor = {name: int(run["/decomposition"][name].attrs["floor_bytes"]) for name in GROUPS}
        config = json.loads(run.attrs["model_config"])
        assert run.attrs["bytes_per_s"] == 0
    config = config.get("text_config", config)
    assert floor["lm_head"] == config["vocab_size"] // 4 * config["hidden_size"] * 2
    assert floor["host_gap"] == floor["comm"] == 0
    for name in ("gr", "projections", "experts", "lm_head"):
        row = re.search(rf"^{name} +(.*)$", done.stdout, re.M)[1].split()
        assert float(row[8]) == pytest.approx(floor[name] / 1e6, abs=0.06)
        assert float(row[9].rstrip("%")) == pytest.approx(100 * floor[name] / 2e6 / parts[name], rel=0.02, abs=0.1)
    assert f"floor: {sum(floor.values()) / 2e6:.3f} ms" in done.stdout


def test_example_script_prints_the_same_table(run_path):
    """scripts/decomposition_table.py reads with h5py alone."""
    script = ROOT / "scripts" / "decomposition_table.py"
    done = subprocess.run([sys.executable, script, run_path], capture_output=True, text=True, check=True)
    report = galvani(0, "trace", "report", run_path).stdout
    for name in GROUPS:
        rows = [re.search(rf"^{name} +(.*)$", text, re.M)[1].split() for text in (done.stdout, report)]
        ours, theirs = (np.array([float(word) for word in row[:5]]) for row in rows)
        assert np.allclose(ours, theirs, atol=1.1e-3), name


def test_diff(golden_shards, run_path, tmp_path):
    other = generate(golden_shards("mixed", 2), 2, tmp_path / "other.h5", n=40)
    done = galvani(0, "trace", "diff", run_path, other)
    assert done.status == 0, done.stderr
    assert re.search(r"ranks +A: 4\n +B: 2", done.stdout)
    assert "all 40 are the same" in done.stdout
    assert re.search(r'option trace +A: "ops"\n +B: "steps"', done.stdout)
    assert re.search(r"^wall time", done.stdout, re.M)


def test_exports(run_path, tmp_path):
    out = tmp_path / "trace.json"
    assert galvani(0, "trace", "export", run_path, "--out", out).status == 0
    events = json.loads(out.read_text())["traceEvents"]
    with h5py.File(run_path, "r") as run:
        ops, wall = run["/ops"][:], run["/steps/wall_ns"][:]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(ops) + 4 * len(wall)
    for rank in range(4):
        mine = [event["dur"] for event in spans if event["pid"] == rank and event["cat"] != "step"]
        assert abs(sum(mine) - ops[ops["rank"] == rank]["dur_ns"].sum() / 1e3) < 1
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"rank {rank}" for rank in range(4)}

    rows = list(csv.DictReader(io.StringIO(galvani(0, "trace", "export", run_path, "--format", "csv").stdout)))
    assert len(rows) == 160
    assert [int(row["wall_ns"]) for row in rows if row["rank"] == "2"] == list(wall)
    rows = list(csv.DictReader(io.StringIO(galvani(0, "trace", "export", run_path, "--format", "ops-csv").stdout)))
    assert len(rows) == len(ops)
    assert sum(int(row["dur_ns"]) for row in rows) == ops["dur_ns"].sum()


def test_plots(run_path, tmp_path):
    for kind in ("tpot", "decomposition", "timeline"):
        for suffix, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            out = tmp_path / f"{kind}.{suffix}"
            assert galvani(0, "trace", "plot", run_path, "--kind", kind, "--out", out).status == 0
            assert out.read_bytes().startswith(begin)


def test_inspect(golden_shards, run_path, tmp_path):
    done = galvani(0, "inspect", run_path, "--verify")
    assert done.status == 0 and "complete" in done.stdout and "verified" in done.stdout, done.stderr
    # A token that was changed no longer fits its hash.
    changed = tmp_path / "changed.h5"
    changed.write_bytes(Path(run_path).read_bytes())
    with h5py.File(changed, "r+") as run:
        run["/tokens/generated"][3] += 1
    done = galvani(0, "inspect", changed, "--verify")
    assert done.status == 3 and "token_hash" in done.stderr
    # Half a file.
    changed.write_bytes(Path(run_path).read_bytes()[:20000])
    done = galvani(0, "inspect", changed)
    assert done.status == 3 and len(done.messages()) == 1 and "changed.h5" in done.stderr
    # A later format.
    changed.write_bytes(Path(run_path).read_bytes())
    with h5py.File(changed, "r+") as run:
        run.attrs["format_version"] = 99
    done = galvani(0, "trace", "report", changed)
    assert done.status == 3 and "99" in done.stderr


def test_wrong_command_lines(run_path, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("not a run file\n")
    for words, status in (
        (("inspect",), 2),
        (("inspect", run_path, "--frobnicate"), 2),
        (("inspect", tmp_path / "absent"), 3),
        (("inspect", notes), 3),
        (("inspect", tmp_path), 3),
        (("trace",), 2),
        (("trace", "frobnicate", run_path), 2),
        (("trace", "report"), 2),
        (("trace", "report", notes), 3),
        (("trace", "report", tmp_path / "absent"), 3),
        (("trace", "diff", run_path), 2),
        (("trace", "report", run_path, "--skip", "-3"), 2),
        (("trace", "plot", run_path, "--kind", "cake"), 2),
        (("trace", "plot", run_path, "--out", tmp_path / "x.jpg"), 2),
        (("trace", "export", run_path, "--out", tmp_path / "absent" / "x.json"), 5),
    ):
        done = galvani(0, *words)
        assert done.status == status, (words, done.stderr)
        assert len(done.messages()) == 1, words
    for words in (("inspect", "--help"), ("trace", "--help")):
        done = galvani(0, *words)
        assert done.status == 0 and "usage:" in done.stdout
