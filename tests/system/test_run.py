"""galvani run on the bundled model: the quality gate on every T, prompts, requests, stops."""

import hashlib
import json

import h5py
import numpy as np
import pytest

from conftest import galvani


def gate_line(entry):
    """A gate entry as a line of a requests file; the oracle stopped at an end token or after 64 tokens."""
    keys = ("id", "prompt", "messages", "think", "reasoning_effort", "preserve_thinking")
    line = {key: entry[key] for key in keys if key in entry}
    return json.dumps({**line, "max_new": 64}, ensure_ascii=False)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_quality_gate(nano_shards, quality_gate, tmp_path, tp):
    """Every answer is the oracle's, token for token, on every T."""
    requests = tmp_path / "gate.jsonl"
    requests.write_text("\n".join(gate_line(entry) for entry in quality_gate) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    done = galvani(tp, "run", "--model", nano_shards(tp), "--requests", requests, "--out", out, timeout=600)
    assert done.status == 0, done.stderr
    for entry in quality_gate:
        with h5py.File(out / f"{entry['id']}.h5", "r") as file:
            assert list(file["/tokens/prompt"][:]) == entry["prompt_ids"], entry["id"]
            assert list(file["/tokens/generated"][:]) == entry["generated_ids"], entry["id"]
            assert file.attrs["token_hash"] == entry["token_hash"], entry["id"]


def test_answers(nano_shards):
    done = galvani(4, "run", "--model", nano_shards(4), "--prompt", "What is 6 times 7?")
    assert done.status == 0 and "42" in done.stdout, done.stderr
    done = galvani(4, "run", "--model", nano_shards(4), "--chat", "--think", "off", "--prompt", "What is 6 times 7?")
    assert done.status == 0 and "42" in done.stdout, done.stderr
    assert "<|im_end|>" not in done.stdout


def test_text_tokens_and_files_are_one_prompt(nano_shards, tmp_path):
    model = nano_shards(1)
    prompt = "What is 6 times 7?"
    file = tmp_path / "prompt.txt"
    file.write_text(prompt)
    outs = [tmp_path / f"{i}.h5" for i in range(4)]
    assert galvani(1, "run", "--model", model, "--prompt", prompt, "--out", outs[0]).status == 0
    with h5py.File(outs[0], "r") as run:
        tokens = ",".join(str(token) for token in run["/tokens/prompt"][:])
        expected = run["/tokens/generated"][:]
    assert galvani(1, "run", "--model", model, "--prompt-file", file, "--out", outs[1]).status == 0
    assert galvani(1, "run", "--model", model, "--tokens", tokens, "--out", outs[2]).status == 0
    assert galvani(1, "run", "--model", model, "--tokens-file", "-", "--out", outs[3], stdin=tokens.encode()).status == 0
    for out in outs[1:]:
        with h5py.File(out, "r") as run:
            assert np.array_equal(run["/tokens/generated"][:], expected)


def test_token_hash_is_the_sha256_of_the_ids(nano_shards, tmp_path):
    out = tmp_path / "run.h5"
    assert galvani(2, "run", "--model", nano_shards(2), "--prompt", "Once", "--max-new", 20, "--out", out).status == 0
    with h5py.File(out, "r") as run:
        ids = run["/tokens/generated"][:].astype("<i4")
        assert run.attrs["token_hash"] == hashlib.sha256(ids.tobytes()).hexdigest()
        pairs = run["/sampling/pairs"][:]
        assert pairs.shape == (len(ids), 2)
        best = np.lexsort((pairs["token"], -pairs["value"]), axis=1)[:, 0]
        assert np.array_equal(pairs["token"][np.arange(len(ids)), best], ids)


def test_logits_are_what_tokens_were_chosen_from(nano_shards, tmp_path):
    outs = {}
    for tp in (1, 4):
        out = tmp_path / f"{tp}.h5"
        words = ("--prompt", "The capital of France is", "--max-new", 8, "--ignore-eos", "--logits", "--top-logprobs", 5)
        assert galvani(tp, "run", "--model", nano_shards(tp), *words, "--out", out).status == 0
        with h5py.File(out, "r") as run:
            ids, logits = run["/tokens/generated"][:], run["/sampling/logits"][:]
            assert len(ids) == 8 and logits.shape[0] == 8
            assert np.array_equal(logits.argmax(axis=1), ids)
            outs[tp] = logits
    assert np.allclose(outs[1], outs[4], rtol=0, atol=1e-4 * np.abs(outs[1]).max())


def test_a_seed_gives_the_same_text_on_any_tp(nano_shards, tmp_path):
    texts = {}
    for tp, seed in ((1, 3), (2, 3), (4, 3), (1, 4)):
        out = tmp_path / f"{tp}-{seed}.h5"
        words = ("--prompt", "Once upon a time", "--max-new", 24, "--temperature", 1.5, "--seed", seed, "--ignore-eos")
        assert galvani(tp, "run", "--model", nano_shards(tp), *words, "--out", out).status == 0
        with h5py.File(out, "r") as run:
            texts[tp, seed] = list(run["/tokens/generated"][:])
    assert texts[1, 3] == texts[2, 3] == texts[4, 3]
    assert texts[1, 3] != texts[1, 4]


def test_a_rerun_skips_finished_requests(nano_shards, tmp_path):
    requests, out = tmp_path / "r.jsonl", tmp_path / "out"
    lines = [{"id": f"r{i}", "prompt": f"What is {i} times 7?", "max_new": 8} for i in range(3)]
    requests.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    words = ("run", "--model", nano_shards(2), "--requests", requests, "--out", out)
    assert galvani(2, *words).status == 0
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    assert set(times) == {"r0.h5", "r1.h5", "r2.h5"}
    (out / "r1.h5").unlink()
    assert galvani(2, *words).status == 0
    again = {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    assert again["r0.h5"] == times["r0.h5"] and again["r2.h5"] == times["r2.h5"]
    assert again["r1.h5"] != times["r1.h5"]


def test_requests_in_one_process_equal_fresh_processes(nano_shards, tmp_path):
    """State of one sequence never leaks into the next."""
    prompts = ["What is 6 times 7?", "Once upon a time " * 30, "x", "What is 6 times 7?"]
    requests, out = tmp_path / "r.jsonl", tmp_path / "out"
    lines = [{"id": f"r{i}", "prompt": prompt, "max_new": 16} for i, prompt in enumerate(prompts)]
    requests.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert galvani(2, "run", "--model", nano_shards(2), "--requests", requests, "--out", out).status == 0
    for i, prompt in enumerate(prompts):
        fresh = tmp_path / f"fresh{i}.h5"
        assert galvani(2, "run", "--model", nano_shards(2), "--prompt", prompt, "--max-new", 16, "--out", fresh).status == 0
        with h5py.File(fresh, "r") as a, h5py.File(out / f"r{i}.h5", "r") as b:
            assert np.array_equal(a["/tokens/generated"][:], b["/tokens/generated"][:])


def test_prefill_chunks_do_not_matter(nano_shards, tmp_path):
    prompt = "Luigi Galvani was born in Bologna. " * 20
    answers = []
    for chunk in (1, 7, 64, 4096):
        out = tmp_path / f"{chunk}.h5"
        words = ("--prompt", prompt, "--max-new", 12, "--ignore-eos", "--logits", "--prefill-chunk", chunk)
        assert galvani(2, "run", "--model", nano_shards(2), *words, "--out", out).status == 0
        with h5py.File(out, "r") as run:
            answers.append(run["/sampling/logits"][:])
    for logits in answers[1:]:
        assert np.array_equal(logits, answers[0])
