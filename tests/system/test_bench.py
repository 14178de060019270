"""galvani bench on small models: figures that agree with each other and with the run file, on synthetic and real weights."""

import hashlib
import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from conftest import ROOT, galvani

USAGE, INPUT, DEVICE = 2, 3, 5
LANE = ("--prompt-len", 70, "--max-new", 24, "--warmup", 8)


def bench(ranks, tmp_path, *words, model="synthetic:nano"):
    """Runs the lane; its JSON and the Outcome."""
    figures = tmp_path / "bench.json"
    done = galvani(ranks, "bench", "--model", model, *LANE, "--json", figures, *words)
    assert done.status == 0, done.stderr
    return json.loads(figures.read_text()), done


@pytest.mark.parametrize("ranks", [1, 2])
def test_figures_agree_with_the_run_file(tmp_path, ranks):
    out = tmp_path / "run.h5"
    figures, done = bench(ranks, tmp_path, "--repeats", 3, "--out", out)
    assert figures["n_ranks"] == ranks and figures["backend"] in ("cpu", "cuda")
    repeats = figures["repeats"]
    assert len(repeats) == 3
    for repeat in repeats:
        assert repeat["ttft_ms"] >= repeat["prefill_ms"] > 0
        assert repeat["prompt_tokens_per_s"] * repeat["prefill_ms"] == pytest.approx(70e3)
        assert repeat["tokens_per_s"] * repeat["ms_per_token"] == pytest.approx(1000)
        assert repeat["p99_ms"] >= repeat["p50_ms"] > 0
    for key in ("ttft_ms", "ms_per_token", "tokens_per_s"):
        values = [repeat[key] for repeat in repeats]
        spread = figures["candidate"][key]
        assert spread["mean"] == pytest.approx(np.mean(values))
        assert spread["min"] == pytest.approx(min(values)) and spread["max"] == pytest.approx(max(values))

    with h5py.File(out) as run:
        generated = run["/tokens/generated"][:].astype("<i4")
        wall_ms = run["/steps/wall_ns"][:] / 1e6
        memory = run["/memory"][:]
        assert len(run["/tokens/prompt"]) == 70 and len(generated) == 24
        assert run.attrs["token_hash"] == repeats[-1]["token_hash"] == hashlib.sha256(generated.tobytes()).hexdigest()
        routes = [{name: row[name].decode() for name in ("name", "chosen", "reason")} for row in run["/routes"][:]]
        assert routes == figures["routes"] and routes[0]["name"] == "cuda_graph"
        assert figures["backend"] == "cuda" or all(route["chosen"] == "off" and route["reason"] for route in routes)
    # The run file is the last pass; tokens 9 to 24 are steady.
    assert repeats[-1]["ttft_ms"] == pytest.approx(wall_ms[0])
    assert repeats[-1]["ms_per_token"] == pytest.approx(wall_ms[8:].mean())
    assert figures["memory"][0]["weights"] == memory[0]["weights"] > 0

    # The parts add up to the time of a token, on every rank.
    parts = figures["candidate"]["decomposition_ms"].values()
    for rank in range(ranks):
        assert sum(part["ranks"][rank] for part in parts) == pytest.approx(
            figures["candidate"]["ms_per_token"]["mean"], rel=0.05
        )
    for part in parts:
        assert part["mean"] == pytest.approx(np.mean(part["ranks"])) and part["max"] == max(part["ranks"])
    assert figures["tokens_agree"] and "every repeat gave the same tokens" in done.stdout


def test_seeds_decide_the_tokens_and_ranks_do_not(tmp_path):
    def hashes(ranks, *words):
        return {repeat["token_hash"] for repeat in bench(ranks, tmp_path, "--repeats", 1, *words)[0]["repeats"]}

    first = hashes(1)
    assert hashes(2) == first and hashes(4) == first
    assert hashes(1, "--seed", 1) != first
    assert hashes(1, "--synthetic-seed", 1) != first


def test_real_weights(nano_shards, tmp_path):
    figures, _ = bench(2, tmp_path, "--repeats", 2, model=nano_shards(2))
    assert figures["tokens_agree"] and len(figures["model_digest"]) == 64


def test_control_takes_turns(tmp_path):
    out = tmp_path / "run.h5"
    figures, done = bench(1, tmp_path, "--repeats", 2, "--control", "cuda_graph=off", "--out", out)
    assert [repeat["variant"] for repeat in figures["repeats"]] == ["control", "candidate"] * 2
    assert figures["control_routes"] == "cuda_graph=off" and figures["control_tokens_agree"]
    assert "difference" in done.stdout and "the control gave the same tokens" in done.stdout
    with h5py.File(out) as run:
        assert run.attrs["token_hash"] == figures["repeats"][3]["token_hash"]


def test_plan():
    done = galvani(0, "bench", "--model", "synthetic:full", "--tp", 4, "--plan", "--device-memory", "32GiB")
    assert done.status == 0 and "context 8704" in done.stdout, done.stderr


def refused(status, *words, ranks=1):
    done = galvani(ranks, "bench", "--model", "synthetic:nano", *words)
    assert done.status == status and len(done.messages()) == 1, done.stderr
    return done.messages()[0]


def test_refusals(tmp_path):
    assert "warmup" in refused(USAGE, "--max-new", 32)
    assert "max_position_embeddings" in refused(USAGE, "--prompt-len", 4096)
    assert "cuda_graph" in refused(USAGE, *LANE, "--control", "none=off")
    assert "cuda_graph" in refused(USAGE, *LANE, "--route", "none=on")
    assert "NAME=o" in refused(USAGE, *LANE, "--control", "cuda_graph")
    for option in ("--json", "--out"):
        done = galvani(1, "bench", "--model", "synthetic:nano", *LANE, "--repeats", 1, option, tmp_path / "nowhere" / "bench")
        assert done.status == DEVICE and "nowhere" in done.messages()[0] and "loaded" not in done.stderr
    refused(USAGE, *LANE, "--tp", 2)
    refused(USAGE, *LANE, ranks=3)
    assert "synthetic:" in galvani(1, "bench", "--model", "synthetic:none", *LANE).stderr
    assert galvani(1, "bench", "--model", tmp_path, *LANE).status == INPUT


def test_synthetic_logits_are_the_same_on_any_number_of_ranks(tmp_path):
    logits = {}
    for ranks in (1, 2, 4):
        out = tmp_path / f"{ranks}.h5"
        words = ("--tokens", "5,2000,17,17,942,3", "--max-new", 6, "--ignore-eos", "--logits", "--out", out)
        assert galvani(ranks, "run", "--model", "synthetic:nano", *words).status == 0
        with h5py.File(out) as run:
            logits[ranks] = run["/sampling/logits"][:]
    assert np.isfinite(logits[1]).all() and logits[1].std() > 0.5
    for ranks in (2, 4):
        assert np.allclose(logits[ranks], logits[1], rtol=0, atol=1e-4 * np.abs(logits[1]).max())


def test_synthetic_full_is_the_published_config():
    text = (ROOT / "configs" / "full.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "e765305daba0951974308f4d32c075b52a6a45974730d273f2216718a994d624"
    nano = (ROOT / "configs" / "nano.json").read_bytes()
    assert nano == (ROOT / "tests" / "models" / "nano" / "config.json").read_bytes()


def test_model_of_what_was_measured(tmp_path):
    figures, _ = bench(2, tmp_path)
    done = galvani(0, "model", "--measured", tmp_path / "bench.json")
    assert done.status == 0, done.stderr
    assert "synthetic:nano on 2 ranks, fp16 dense, 86 tokens before" in done.stdout
    parts = figures["candidate"]["decomposition_ms"]
    for line in done.stdout.splitlines():
        words = line.split()
        if words and words[0] in parts:
            assert float(words[5]) == pytest.approx(parts[words[0]]["mean"], abs=6e-4)
    for wrong in ({}, {**figures, "model": 5}, {**figures, "n_ranks": 0}, {**figures, "prompt_len": -1}):
        (tmp_path / "bench.json").write_text(json.dumps(wrong))
        assert galvani(0, "model", "--measured", tmp_path / "bench.json").status == INPUT
    for words in (("--device", "abacus"), ("--tp", 3), ("--tp", 2**32 + 1), ("--dense", "q4"), ("--context", 262145)):
        done = galvani(0, "model", *words)
        assert done.status == USAGE and len(done.messages()) == 1, (words, done.stderr)


def test_results_are_made_again(tmp_path):
    """scripts/results.py on a run of its own: with a control, and with operators."""
    figures, _ = bench(1, tmp_path, "--out", tmp_path / "run.h5", "--trace", "ops", "--control", "cuda_graph=off", "--repeats", 1)
    (tmp_path / "ops.h5").write_bytes((tmp_path / "run.h5").read_bytes())
    done = subprocess.run([sys.executable, ROOT / "scripts" / "results.py", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "tables.md").read_text()
    for repeat in figures["repeats"]:
        assert f"{repeat['ms_per_token']:,.3f}" in text
    assert f"| {figures['candidate']['decomposition_ms']['experts']['mean']:.3f} |" in text
    assert "The control is the same with cuda_graph=off; it gave the same tokens." in text
    for name in ("decomposition", "tpot", "timeline"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
