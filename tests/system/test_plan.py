"""galvani run --plan: what a rank takes, which contexts fit, without GPU, mpirun or weights."""

import re

import h5py
import pytest

from conftest import NANO, galvani

MEMORY, USAGE = 4, 2


def parts(text):
    """The plan's lines as {name: MiB}."""
    return {m[1].strip(): float(m[2]) for m in re.finditer(r"^  ([a-z_ ]+?) +([0-9.]+)(?:  .*)?$", text, re.M)}


def contexts(text):
    """{context: GiB left, negative if it lacks} of the table of contexts."""
    lines = re.findall(r"^ +(\d+) +[0-9.]+ +(lacks )?([0-9.]+)$", text, re.M)
    return {int(context): -float(gib) if lacks else float(gib) for context, lacks, gib in lines}


def test_the_real_model_on_four_32_gib_gpus():
    done = galvani(0, "run", "--model", "synthetic:full", "--tp", 4, "--plan", "--device-memory", "32GiB")
    assert done.status == 0, done.stderr
    left = contexts(done.stdout)
    assert left[8192 + 512] >= 2
    assert left[262144] > 0
    assert "the largest context that fits: 262144 tokens" in done.stdout
    plan = parts(done.stdout)
    assert plan["total"] == pytest.approx(
        sum(plan[name] for name in ("weights", "kv_cache", "state", "workspace", "cuda_graph", "rounding", "runtime"))
        + plan.get("comm", 0),
        abs=0.5,
    )
    assert plan["pinned host"] == pytest.approx(320001536 * 160 / 4 / 2**20, abs=0.1)


def test_the_lane_keeps_dense_projections_in_8_bits():
    words = ("--model", "synthetic:full", "--plan", "--device-memory", "139GiB")
    lane, exact, run = (
        parts(galvani(0, *command, *words).stdout) for command in (("bench",), ("bench", "--dense", "fp16"), ("run",))
    )
    both = parts(galvani(0, "bench", "--control", "dense8=off", *words).stdout)
    assert exact["weights"] == run["weights"]
    for name in ("gr", "gdn", "qsa"):
        assert 0.5 * exact[name] < lane[name] < 0.53 * exact[name]
        assert lane[name] + 0.95 * exact[name] < both[name] < lane[name] + exact[name] + 0.1
    assert lane["router"] == exact["router"] and lane["lm_head"] == exact["lm_head"]


def test_what_does_not_fit_is_refused_with_what_would():
    words = ("run", "--model", "synthetic:full", "--tp", 4, "--plan", "--device-memory")
    done = galvani(0, *words, "22.4GiB", "--max-context", 262144)
    assert done.status == MEMORY
    assert len(done.messages()) == 1 and "needs" in done.messages()[0] and "available" in done.messages()[0]
    largest = int(re.search(r"largest context that fits: (\d+)", done.stdout)[1])
    assert 8704 < largest < 262144
    assert galvani(0, *words, "22.4GiB", "--max-context", largest).status == 0
    assert galvani(0, *words, "22.4GiB", "--max-context", largest + 1).status == MEMORY


def test_a_plan_says_what_a_run_takes(nano_shards, tmp_path):
    out = tmp_path / "run.h5"
    words = ("run", "--model", nano_shards(2), "--prompt", "Once upon a time", "--max-new", 30)
    planned = galvani(2, *words, "--plan")
    assert planned.status == 0, planned.stderr
    assert galvani(2, *words, "--out", out).status == 0
    plan = parts(planned.stdout)
    with h5py.File(out) as run:
        memory = run["/memory"][0]
    for mine, theirs in (("weights", "weights"), ("kv_cache", "kv_cache"), ("state", "state"), ("ple_table", "pinned_host")):
        assert plan[mine] == pytest.approx(memory[theirs] / 2**20, abs=0.06), mine


@pytest.mark.parametrize("model", [NANO, "synthetic:nano"])
def test_any_form_of_a_model_has_the_same_plan(nano_shards, model):
    """Shards, the checkpoint that they come from, and made-up weights of the same config."""
    words = ("--tp", 4, "--plan", "--backend", "cuda", "--max-context", 1000)
    done = galvani(0, "run", "--model", model, *words)
    shards = galvani(0, "run", "--model", nano_shards(4), *words)
    assert done.status == 0 and shards.status == 0, done.stderr + shards.stderr
    assert parts(done.stdout) == parts(shards.stdout)


def test_without_a_device_usual_ones_are_tried():
    done = galvani(0, "run", "--model", "synthetic:full", "--tp", 4, "--plan", "--backend", "cuda")
    assert done.status in (0, MEMORY)
    if "no cuda device is here" in done.stdout:
        assert done.status == 0
        assert "devices of 16 GiB take contexts up to 0\n" in done.stdout
        assert "devices of 32 GiB take contexts up to 262144\n" in done.stdout


def test_wrong_plans():
    full = ("run", "--model", "synthetic:full", "--plan")
    assert galvani(0, *full, "--tp", 3).status == USAGE
    assert galvani(0, *full, "--max-context", 262145).status == USAGE
    for size in ("0", "32GB", "x", "-1GiB", "1e30TiB"):
        assert galvani(0, *full, "--device-memory", size).status == USAGE, size
    assert galvani(1, "run", "--model", "synthetic:nano", "--tp", 2, "--tokens", "1").status == USAGE
