"""Bad input ends every rank within seconds, with one message and the documented exit status."""

import json
import os
import shutil
import struct
import subprocess

import h5py
import numpy as np
import pytest

from conftest import GOLDEN, NANO, command, environment, galvani, shard

USAGE, INPUT, MEMORY, DEVICE, NUMERICS = 2, 3, 4, 5, 6


def expect(done, status, *fragments, seconds=20):
    """`seconds` allows for a slow machine starting processes; a hang would take the whole time-out."""
    assert done.status == status, f"status {done.status}: {done.stderr}"
    assert len(done.messages()) == 1, done.stderr
    for fragment in fragments:
        assert fragment in done.messages()[0], done.messages()[0]
    assert done.seconds < seconds


def copy_shards(source, target):
    """A copy of a directory of shards that a test may damage."""
    shutil.copytree(source, target)
    return target


@pytest.mark.parametrize(
    "words, fragment",
    [
        ((), "no command given"),
        (("fly",), '"fly" is not a command'),
        (("run",), "--model is missing"),
        (("run", "--model"), "--model needs a value"),
        (("run", "--modle", "x"), "--modle is not an option"),
        (("run", "--model", "x", "--max-new", "many"), '--max-new is "many"'),
        (("shard", "--checkpoint", "x", "--out", "y"), "--tp"),
        (("run", "--model", "synthetic:nano", "--tokens", "1", "--backend", "cpu", "--dense", "q8"), "--dense q8"),
    ],
)
@pytest.mark.parametrize("ranks", [0, 2])
def test_wrong_command_line(ranks, words, fragment):
    expect(galvani(ranks, *words), USAGE, fragment)


@pytest.mark.parametrize("text", ["{", '{"max_new": 1e30}', '{"max_new": 99999999999999999999}', "[1]", '{"bogus": 1}', None])
def test_a_wrong_config(tmp_path, text):
    config = tmp_path / "options.json"
    if text is not None:
        config.write_text(text)
    expect(galvani(0, "run", "--model", "x", "--config", config), USAGE, "options.json")


def test_output_that_cannot_be_written(nano_shards):
    for words in (("inspect", NANO), ("run", "--model", nano_shards(1), "--tokens", "1", "--max-new", "2", "--quiet")):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                command(0, *words), stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False
            )
        assert done.returncode == DEVICE and b"standard output" in done.stderr, done.stderr


def test_no_model_directory():
    expect(galvani(2, "run", "--model", "/nonexistent", "--tokens", "1"), INPUT, "/nonexistent")


def test_wrong_number_of_ranks(nano_shards):
    done = galvani(2, "run", "--model", nano_shards(4), "--prompt", "x")
    expect(done, INPUT, "mpirun -np 4")


def test_tp_that_does_not_divide(tmp_path):
    expect(galvani(0, "shard", "--checkpoint", NANO, "--out", tmp_path / "out", "--tp", "3"), USAGE, "3")
    assert not list((tmp_path / "out").glob("*.h5")) if (tmp_path / "out").exists() else True


def test_missing_rank_file(nano_shards, tmp_path):
    model = copy_shards(nano_shards(4), tmp_path / "model")
    (model / "model.rank2of4.h5").unlink()
    expect(galvani(4, "run", "--model", model, "--prompt", "x"), INPUT, "model.rank2of4.h5")


def test_ranks_of_different_models(nano_shards, golden_shards, tmp_path):
    model = copy_shards(nano_shards(2), tmp_path / "model")
    shutil.copy(golden_shards("mixed", 2) / "model.rank1of2.h5", model)
    expect(galvani(2, "run", "--model", model, "--prompt", "x"), INPUT, "model")


def test_renamed_rank_file(nano_shards, tmp_path):
    model = copy_shards(nano_shards(2), tmp_path / "model")
    shutil.copy(model / "model.rank0of2.h5", model / "model.rank1of2.h5")
    expect(galvani(2, "run", "--model", model, "--prompt", "x"), INPUT, "model.rank1of2.h5")


@pytest.mark.parametrize("kept", [0, 100, 0.3, 0.99])
def test_truncated_shard(nano_shards, tmp_path, kept):
    model = copy_shards(nano_shards(2), tmp_path / "model")
    path = model / "model.rank1of2.h5"
    size = path.stat().st_size
    os.truncate(path, int(kept if kept > 1 else size * kept))
    expect(galvani(2, "run", "--model", model, "--prompt", "x"), INPUT, "model.rank1of2.h5")


def test_flipped_bit_in_a_shard(nano_shards, tmp_path):
    model = copy_shards(nano_shards(2), tmp_path / "model")
    path = model / "model.rank1of2.h5"
    with h5py.File(path, "r") as file:
        dataset = file["/layers/03/qsa/o_proj"]
        offset = dataset.id.get_offset() + dataset.size // 2
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    expect(galvani(2, "run", "--model", model, "--prompt", "x"), INPUT, "model.rank1of2.h5", "o_proj")
    assert galvani(0, "inspect", model, "--verify").status == INPUT


def test_wrong_format_version(nano_shards, tmp_path):
    model = copy_shards(nano_shards(1), tmp_path / "model")
    with h5py.File(model / "model.rank0of1.h5", "r+") as file:
        file.attrs["format_version"] = np.array(999, dtype=file.attrs["format_version"].dtype)
    expect(galvani(1, "run", "--model", model, "--prompt", "x"), INPUT, "999")


def test_not_a_shard(nano_shards, tmp_path):
    model = copy_shards(nano_shards(1), tmp_path / "model")
    (model / "model.rank0of1.h5").write_bytes(b"not HDF5" * 1000)
    expect(galvani(1, "run", "--model", model, "--prompt", "x"), INPUT, "model.rank0of1.h5")


@pytest.mark.parametrize("ranks", [1, 4])
class TestPrompts:
    def test_none(self, nano_shards, ranks):
        expect(galvani(ranks, "run", "--model", nano_shards(ranks)), USAGE, "--prompt")

    def test_two(self, nano_shards, ranks):
        done = galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt", "x", "--tokens", "1")
        expect(done, USAGE, "--prompt")

    def test_empty(self, nano_shards, ranks):
        expect(galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt", ""), USAGE, "empty")

    def test_missing_file(self, nano_shards, ranks):
        done = galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt-file", "/nonexistent.txt")
        expect(done, INPUT, "/nonexistent.txt")

    def test_too_long(self, nano_shards, tmp_path, ranks):
        tokens = tmp_path / "tokens.txt"
        tokens.write_text(",".join(["5"] * 100000))
        expect(galvani(ranks, "run", "--model", nano_shards(ranks), "--tokens-file", tokens), USAGE, "context")

    def test_no_room_for_max_new(self, nano_shards, ranks):
        done = galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt", "x", "--max-new", "1000000")
        expect(done, USAGE, "--max-new may be")

    @pytest.mark.parametrize("token", ["-1", "1000000", "99999999999999999999"])
    def test_token_out_of_range(self, nano_shards, ranks, token):
        expect(galvani(ranks, "run", "--model", nano_shards(ranks), "--tokens", f"1,{token}"), USAGE, "token id")

    @pytest.mark.parametrize("tokens", ["1,x", "1,,2", "1.5", "1,2;3"])
    def test_tokens_that_are_none(self, nano_shards, ranks, tokens):
        expect(galvani(ranks, "run", "--model", nano_shards(ranks), "--tokens", tokens), USAGE, "--tokens")

    def test_invalid_utf8(self, nano_shards, ranks):
        expect(galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt", b"caf\xe9".decode("utf-8", "surrogateescape")), USAGE, "UTF-8")

    def test_invalid_utf8_in_a_file(self, nano_shards, ranks):
        done = galvani(ranks, "run", "--model", nano_shards(ranks), "--prompt-file", "-", stdin=b"abc\xff\xfe")
        expect(done, INPUT, "UTF-8", "3")


@pytest.mark.parametrize(
    "line, fragment",
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"prompt": "x"}', '"id" is missing'),
        ('{"id": "../x", "prompt": "x"}', "the id"),
        ('{"id": "a", "prompt": "x"}', "twice"),
        ('{"id": "b"}', 'give one of "prompt"'),
        ('{"id": "b", "prompt": "x", "tokens": [1]}', 'give one of "prompt"'),
        ('{"id": "b", "tokens": [1, "2"]}', '"tokens"'),
        ('{"id": "b", "tokens": [12345678]}', "token id"),
        ('{"id": "b", "prompt": "x", "max_new": -1}', "max_new"),
        ('{"id": "b", "prompt": "x", "max_new": 4096}', "context of 4096"),
        ('{"id": "b", "prompt": ""}', "empty"),
        ('{"id": "b", "prompt": "x", "system": "y"}', "chat"),
        ('{"id": "b", "chat": true, "tokens": [1]}', "chat"),
        ('{"id": "b", "messages": [{"role": "user", "content": "x", "tool_calls": []}]}', "tool_calls"),
        ('{"id": "b", "prompt": "x", "top_p": 0}', "top_p"),
        ('{"id": "b", "prompt": "x", "model": "y"}', '"model"'),
        ('{"id": "b", "messages": []}', "messages"),
        ('{"id": "b", "messages": [{"role": "robot", "content": "x"}]}', "robot"),
        ('{"id": "b", "messages": [{"role": "system", "content": "x"}]}', "user"),
    ],
)
def test_a_bad_request_line_stops_before_the_first_runs(nano_shards, tmp_path, line, fragment):
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"id": "a", "prompt": "What is 6 times 7?"}\n' + line + "\n")
    done = galvani(2, "run", "--model", nano_shards(2), "--requests", requests, "--out", tmp_path / "out")
    expect(done, INPUT, "line 2", fragment)
    assert not list((tmp_path / "out").glob("*.h5"))


def edit_config(checkpoint, change):
    """Applies `change` to the text_config of a copied checkpoint."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    change(config["text_config"])
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_act", "gelu"),
        ("num_experts_per_tok", 100000),
        ("hidden_size", -4),
        ("hidden_size", "many"),
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("model_type", "llama"),
        ("num_hidden_layers", 7),
        ("indexer_budget", 63),
        ("rms_norm_eps", 0),
    ],
)
def test_unknown_or_contradictory_config(tmp_path, key, value):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(NANO, checkpoint)
    edit_config(checkpoint, lambda config: config.update({key: value}))
    expect(galvani(0, "shard", "--checkpoint", checkpoint, "--out", tmp_path / "out", "--tp", "1"), INPUT, "config.json")
    assert not list((tmp_path / "out").glob("*.h5")) if (tmp_path / "out").exists() else True


@pytest.mark.parametrize("ranks", [1, 2])
def test_more_memory_than_there_is(tmp_path, ranks):
    """A context of 16 million tokens where a process may have 2 GiB."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(NANO, checkpoint)
    edit_config(checkpoint, lambda config: config.update({"max_position_embeddings": 1 << 30}))
    model = shard(checkpoint, tmp_path / "model", ranks)
    words = ("run", "--model", model, "--prompt", "x", "--max-new", 1 << 24)
    expect(galvani(ranks, *words, address_space=2 << 30), MEMORY, "not enough memory", "available")


def patch_bf16(checkpoint, name, value):
    """Overwrites the first element of a BF16 tensor in a checkpoint's safetensors files."""
    for path in sorted(checkpoint.glob("*.safetensors")):
        with open(path, "r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            if name in header:
                file.seek(8 + length + header[name]["data_offsets"][0])
                file.write(struct.pack("<H", value))
                return
    raise KeyError(name)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80])
def test_nan_or_inf_logits(tmp_path, bits):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(NANO, checkpoint)
    patch_bf16(checkpoint, "model.language_model.hyper_connection_mixer.hc_norm.weight", bits)
    model = shard(checkpoint, tmp_path / "model", 2)
    out = tmp_path / "run.h5"
    done = galvani(2, "run", "--model", model, "--prompt", "x", "--out", out)
    expect(done, NUMERICS)
    with h5py.File(out, "r") as file:
        assert file["/tokens/generated"].shape == (0,)


def test_run_file_that_cannot_be_written(nano_shards, tmp_path):
    """It is known before anything is loaded."""
    other = tmp_path / "notes.txt"
    other.write_text("not a run file")
    for out, status in ((tmp_path / "none" / "run.h5", DEVICE), (tmp_path, DEVICE), (other, USAGE)):
        done = galvani(2, "run", "--model", nano_shards(2), "--prompt", "x", "--out", out)
        expect(done, status, str(out))
        assert "loaded" not in done.stderr
    assert other.read_text() == "not a run file"


def test_more_log_probabilities_than_tokens(golden_shards):
    done = galvani(2, "run", "--model", golden_shards("mixed", 2), "--tokens", "1,2", "--top-logprobs", 321)
    expect(done, USAGE, "--top-logprobs 321", "320")
    assert "loaded" not in done.stderr


@pytest.mark.parametrize("carrier", ["push", "nccl"])
def test_gpu_sums_on_the_cpu(nano_shards, carrier):
    done = galvani(2, "run", "--model", nano_shards(2), "--prompt", "x", "--backend", "cpu", "--comm", carrier)
    expect(done, USAGE, f"--comm {carrier}")


def test_unknown_route(nano_shards):
    expect(galvani(2, "run", "--model", nano_shards(2), "--prompt", "x", "--route", "nope=off"), USAGE, "nope")


def test_tokens_without_a_tokenizer(golden_shards):
    done = galvani(1, "run", "--model", golden_shards("mixed", 1), "--prompt", "x")
    expect(done, INPUT, "tokenizer.json", "--tokens")


def test_golden_checkpoints_have_no_tokenizer():
    """The test above relies on it."""
    assert not (GOLDEN / "mixed" / "checkpoint" / "tokenizer.json").exists()
