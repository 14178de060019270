"""galvani microbench on nano's config: every operator against FP64, at the shapes of one rank and of several."""

import json

import pytest

from conftest import galvani

USAGE = 2
OPS = """embed ngram_rows ple_gather ple_kv_proj ple_mix gr_mix gr_inject gdn_in_proj gdn_core gdn_out_proj qsa_in_proj qsa_prepare
qsa_select qsa_attend qsa_core qsa_o_proj router_proj router experts shared_expert lm_head argmax""".split()
NANO = ("--model", "synthetic:nano", "--context", 300, "--backend", "cpu", "--repeats", 1)


def measure(tmp_path, *words, ranks=0):
    """Its rows and all its figures."""
    path = tmp_path / "figures.json"
    done = galvani(ranks, "microbench", *NANO, *words, "--json", path)
    assert done.status == 0, done.stderr
    figures = json.loads(path.read_text())
    for row in figures["rows"]:
        assert row["relative_error"] < 1e-6 and not row["wrong"], row
        assert row["us"] > 0 and row["bytes"] > 0 and row["copies"] >= 1
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["us"] * 1e6)
        assert row["share_of_floor"] == pytest.approx(row["bytes_per_s"] / figures["bytes_per_s"])
        assert row["op"] in done.stdout
    return {row["op"]: row for row in figures["rows"]}, figures


def test_every_operator(tmp_path):
    rows, figures = measure(tmp_path, "--tokens", 2)
    assert list(rows) == OPS and figures["bandwidth_measured"] and figures["tp_size"] == 1


def test_shapes_of_several_ranks(tmp_path):
    alone, _ = measure(tmp_path, "gr_mix", "lm_head", "experts", "--bandwidth", 100)
    quarter, figures = measure(tmp_path, "gr_mix", "lm_head", "experts", "--tp", 4, "--bandwidth", 100)
    assert figures["bytes_per_s"] == 100e9 and not figures["bandwidth_measured"]
    assert quarter["gr_mix"]["bytes"] == alone["gr_mix"]["bytes"]
    for op in ("lm_head", "experts"):
        assert 0.24 < quarter[op]["bytes"] / alone[op]["bytes"] < 0.3
    ranks, figures = measure(tmp_path, "lm_head", "all_reduce", "--bandwidth", 100, ranks=2)
    assert figures["tp_size"] == figures["n_ranks"] == 2
    assert list(ranks) == ["all_reduce", "lm_head"]


def test_refusals():
    for words in (("frobnicate",), ("--tokens", 8193), ("--tp", 3), ("--route", "none=off"), ("--route", "run_ahead=off"), ("--route", "dense8=off"),
                  ("--context", 1 << 20), ("--dense", "q8")):
        done = galvani(0, "microbench", "--model", "synthetic:nano", "--backend", "cpu", *words)
        assert done.status == USAGE and len(done.messages()) == 1, (words, done.stderr)
