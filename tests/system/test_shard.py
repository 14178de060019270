"""galvani shard: what it writes against the checkpoint that it read, and what it must refuse."""

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from conftest import GOLDEN, ROOT, command, environment, galvani, shard

sys.path.insert(0, str(ROOT / "scripts"))
import checkpoint_writer as cw  # noqa: E402

USAGE, INPUT, DEVICE = 2, 3, 5
TEXT = "model.language_model."
ITEM = {"BF16": np.uint16, "F16": np.uint16, "F32": np.float32, "U8": np.uint8, "F8_E4M3": np.uint8, "I64": np.int64}


def read_checkpoint(directory):
    """Every tensor of a checkpoint: {name: (dtype, array of raw items)}."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            items = np.frombuffer(data[begin:end], dtype=ITEM[entry["dtype"]])
            tensors[name] = (entry["dtype"], items.reshape(entry["shape"]))
    return tensors


class Shards:
    """The shard files of one model; a dataset by its path, from each rank."""

    def __init__(self, directory, tp):
        self.files = [h5py.File(directory / f"model.rank{rank}of{tp}.h5", "r") for rank in range(tp)]
        self.config = json.loads(self.files[0].attrs["config_json"])["text_config"]

    def parts(self, path):
        return [file[path][()] for file in self.files]

    def same(self, path):
        """A replicated dataset, after checking that all ranks hold the same bytes."""
        parts = self.parts(path)
        assert all(part.tobytes() == parts[0].tobytes() for part in parts), path
        return parts[0]

    def rows(self, path):
        return np.concatenate(self.parts(path))

    def columns(self, path):
        return np.concatenate(self.parts(path), axis=-1)

    def qkv(self, path):
        keys = self.config["linear_num_key_heads"] * self.config["linear_key_head_dim"] // len(self.files)
        cuts = [np.split(part, [keys, 2 * keys]) for part in self.parts(path)]
        return np.concatenate([cut[segment] for segment in range(3) for cut in cuts])

    def kv(self, path):
        """Heads that several ranks hold are compared, then taken once."""
        parts, heads, dim = self.parts(path), self.config["num_key_value_heads"], self.config["head_dim"]
        share = max(len(parts) // heads, 1)
        for rank, part in enumerate(parts):
            assert part.tobytes() == parts[rank // share * share].tobytes(), path
        whole = np.concatenate(parts[::share])
        assert whole.shape[0] == heads * dim
        return whole

    def gate_up(self, path):
        """Gate and up of all experts: two arrays [E, M, ...]."""
        halves = [np.split(part, 2, axis=1) for part in self.parts(path)]
        return [np.concatenate([half[which] for half in halves], axis=1) for which in (0, 1)]


def widen(dtype, items):
    return (items.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else items


MIXER = ("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight")
GDN = {
    "in_proj_qkv": "qkv",
    "in_proj_z": "rows",
    "in_proj_b": "rows",
    "in_proj_a": "rows",
    "norm": "same",
    "out_proj": "columns",
}
QSA = {
    "q_proj": ("rows", "q_proj"),
    "k_proj": ("kv", "k_proj"),
    "v_proj": ("kv", "v_proj"),
    "o_proj": ("columns", "o_proj"),
    "q_norm": ("same", "q_norm"),
    "k_norm": ("same", "k_norm"),
    "index_qk_proj": ("same", "indexer.index_qk_proj"),
    "index_q_norm": ("same", "indexer.q_layernorm"),
    "index_k_norm": ("same", "indexer.k_layernorm"),
}


def check_dense(source, shards):
    """Every dense tensor of the text tower, bit for bit. Returns the names that were compared."""
    seen = set()

    def check(found, name):
        dtype, items = source[name]
        assert found.tobytes() == items.tobytes(), name
        seen.add(name)

    check(shards.same("/embed"), f"{TEXT}embed_tokens.weight")
    check(shards.rows("/lm_head"), "lm_head.weight")
    for leaf in MIXER[:3]:
        check(shards.same(f"/final_hc/{leaf}"), f"{TEXT}hyper_connection_mixer.{leaf}.weight")
    for layer, kind in enumerate(shards.config["layer_types"]):
        path, prefix = f"/layers/{layer:02d}", f"{TEXT}layers.{layer}"
        for which in ("attn", "mlp"):
            for leaf in MIXER:
                check(shards.same(f"{path}/{which}_hc/{leaf}"), f"{prefix}.{which}_hyper_connection.{leaf}.weight")
        if kind == "linear_attention":
            for leaf, form in GDN.items():
                check(getattr(shards, form)(f"{path}/gdn/{leaf}"), f"{prefix}.linear_attn.{leaf}.weight")
            check(shards.qkv(f"{path}/gdn/conv1d"), f"{prefix}.linear_attn.conv1d.weight")
            for leaf in ("A_log", "dt_bias"):
                name = f"{prefix}.linear_attn.{leaf}"
                assert shards.rows(f"{path}/gdn/{leaf}").tobytes() == widen(*source[name]).tobytes(), name
                seen.add(name)
        else:
            for leaf, (form, name) in QSA.items():
                check(getattr(shards, form)(f"{path}/qsa/{leaf}"), f"{prefix}.self_attn.{name}.weight")
        check(shards.same(f"{path}/moe/router"), f"{prefix}.mlp.gate.weight")
        check(shards.same(f"{path}/moe/shared_expert_gate"), f"{prefix}.mlp.shared_expert_gate.weight")
        for leaf, form in (("gate", "rows"), ("up", "rows"), ("down", "columns")):
            found = getattr(shards, form)(f"{path}/moe/shared_{leaf}_proj")
            check(found, f"{prefix}.mlp.shared_expert.{leaf}_proj.weight")
    return seen


def check_ple(source, shards):
    seen = set()
    for layer_id in shards.config.get("ple_layer_ids") or []:
        path, prefix = f"/ple/{layer_id - 1:02d}", f"{TEXT}layers.{layer_id - 1}.ple"
        for leaf in ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv", "conv1d"):
            name = f"{prefix}.{leaf}.weight"
            assert shards.same(f"{path}/{leaf}").tobytes() == source[name][1].tobytes(), name
            seen.add(name)
        inner = f"{prefix}.ple_embedding.ngram_embedding"
        names = [f"{inner}.shard_{n}.weight" for n in range(len(source)) if f"{inner}.shard_{n}.weight" in source]
        names = names or [f"{inner}.weight"]
        table = np.concatenate([source[name][1] for name in names])
        assert shards.rows(f"{path}/table").tobytes() == table.tobytes()
        seen.update(names)
        if f"{inner}.weight_scale" in source:
            scale = widen(*source[f"{inner}.weight_scale"])
            seen.add(f"{inner}.weight_scale")
        else:
            scale = np.ones(1, np.float32)
        assert shards.same(f"{path}/table_scale").tobytes() == scale.tobytes()
        constants = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
        seen.update(f"{prefix}.ple_embedding.{name}" for name in constants)
    return seen


def check_nvfp4_experts(source, shards):
    seen = set()
    for layer in range(shards.config["num_hidden_layers"]):
        path, prefix = f"/layers/{layer:02d}/moe", f"{TEXT}layers.{layer}.mlp.experts"
        for leaf, suffix in (("codes", "weight"), ("scales", "weight_scale")):
            gate, up = shards.gate_up(f"{path}/gate_up_{leaf}")
            down = shards.columns(f"{path}/down_{leaf}")
            for expert in range(shards.config["num_experts"]):
                for projection, found in (("gate", gate), ("up", up), ("down", down)):
                    name = f"{prefix}.{expert}.{projection}_proj.{suffix}"
                    assert found[expert].tobytes() == source[name][1].tobytes(), name
                    seen.add(name)
        pairs, single = shards.same(f"{path}/gate_up_scale_2"), shards.same(f"{path}/down_scale_2")
        for expert in range(shards.config["num_experts"]):
            for projection, found in (("gate", pairs[expert, 0]), ("up", pairs[expert, 1]), ("down", single[expert])):
                name = f"{prefix}.{expert}.{projection}_proj.weight_scale_2"
                assert found.tobytes() == source[name][1].tobytes(), name
                seen.update([name, f"{prefix}.{expert}.{projection}_proj.input_scale"])
    return seen


CASES = [("mixed", 1), ("mixed", 2), ("mixed", 4), ("experts512", 1), ("experts512", 2), ("two_ple", 1), ("two_ple", 2)]
CASES += [("tp8", tp) for tp in (1, 2, 4, 8)]


@pytest.mark.parametrize("case, tp", CASES)
def test_shards_put_together_are_the_source(golden_shards, case, tp):
    """Every text tensor comes back bit for bit, whatever the number of ranks, and none is left over."""
    source = read_checkpoint(GOLDEN / case / "checkpoint")
    shards = Shards(golden_shards(case, tp), tp)
    seen = check_dense(source, shards) | check_ple(source, shards) | check_nvfp4_experts(source, shards)
    left = {name for name in source if not name.startswith(("mtp.", "model.visual."))} - seen
    assert not left


@pytest.mark.parametrize("tp", [1, 2])
def test_fused_experts_are_kept_as_fp16(golden_shards, tp):
    source = read_checkpoint(GOLDEN / "fused_bf16" / "checkpoint")
    shards = Shards(golden_shards("fused_bf16", tp), tp)
    check_dense(source, shards)
    for layer in range(shards.config["num_hidden_layers"]):
        prefix = f"{TEXT}layers.{layer}.mlp.experts"
        found = np.concatenate(shards.gate_up(f"/layers/{layer:02d}/moe/gate_up"), axis=1)
        assert found.dtype == np.float16
        assert np.array_equal(found.astype(np.float32), widen(*source[f"{prefix}.gate_up_proj"]))
        found = shards.columns(f"/layers/{layer:02d}/moe/down")
        assert np.array_equal(found.astype(np.float32), widen(*source[f"{prefix}.down_proj"]))


@pytest.mark.parametrize("tp", [1, 2])
def test_fused_experts_are_quantised_as_modelopt_does(tmp_path, tp):
    """Codes and scales of the whole model, put together, are what the generator's NVFP4 gives for each projection."""
    checkpoint = GOLDEN / "fused_bf16" / "checkpoint"
    source = read_checkpoint(checkpoint)
    shards = Shards(shard(checkpoint, tmp_path / "out", tp, "--quantize-experts", "nvfp4"), tp)
    for layer in range(shards.config["num_hidden_layers"]):
        path, prefix = f"/layers/{layer:02d}/moe", f"{TEXT}layers.{layer}.mlp.experts"
        gate_up, down = (widen(*source[f"{prefix}.{leaf}_proj"]) for leaf in ("gate_up", "down"))
        gate, up = np.split(gate_up, 2, axis=1)
        codes = [*shards.gate_up(f"{path}/gate_up_codes"), shards.columns(f"{path}/down_codes")]
        scales = [*shards.gate_up(f"{path}/gate_up_scales"), shards.columns(f"{path}/down_scales")]
        pairs, single = shards.same(f"{path}/gate_up_scale_2"), shards.same(f"{path}/down_scale_2")
        for expert in range(shards.config["num_experts"]):
            scale_2 = [pairs[expert, 0], pairs[expert, 1], single[expert]]
            for which, matrix in enumerate((gate, up, down)):
                expected = cw.nvfp4_quantize(matrix[expert])
                assert scale_2[which] == expected.scale_2
                assert np.array_equal(scales[which][expert], expected.scales)
                assert np.array_equal(codes[which][expert], expected.codes)


def describe(path):
    """All attributes and data of a shard file, but for what names the program."""
    found = {}
    with h5py.File(path, "r") as file:
        found.update({("/", key): value for key, value in file.attrs.items() if key != "created_by"})

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                found[name] = item[()].tobytes()
                found.update({(name, key): value for key, value in item.attrs.items()})

        file.visititems(visit)
    return found


@pytest.mark.parametrize("case, tp", [("mixed", 4), ("tp8", 8), ("fused_bf16", 2)])
def test_one_process_and_one_per_rank_write_the_same(golden_shards, tmp_path, case, tp):
    done = galvani(tp, "shard", "--checkpoint", GOLDEN / case / "checkpoint", "--out", tmp_path, "--tp", tp)
    assert done.status == 0, done.stderr
    for rank in range(tp):
        name = f"model.rank{rank}of{tp}.h5"
        assert describe(tmp_path / name) == describe(golden_shards(case, tp) / name)


def test_quantising_by_one_process_per_rank(tmp_path):
    checkpoint = GOLDEN / "fused_bf16" / "checkpoint"
    words = ("shard", "--checkpoint", checkpoint, "--tp", 2, "--quantize-experts", "nvfp4", "--out")
    assert galvani(2, *words, tmp_path / "two").status == 0
    assert galvani(0, *words, tmp_path / "one").status == 0
    for rank in range(2):
        name = f"model.rank{rank}of2.h5"
        assert describe(tmp_path / "one" / name) == describe(tmp_path / "two" / name)


def test_attributes(golden_shards):
    """The contract of the shard file: root attributes, dataset attributes, contiguous aligned data."""
    digests = set()
    for tp in (1, 2, 4):
        for rank in range(tp):
            with h5py.File(golden_shards("mixed", tp) / f"model.rank{rank}of{tp}.h5", "r") as file:
                attrs = dict(file.attrs)
                assert attrs["format"] == "galvani-shard"
                assert attrs["format_version"] == 1
                assert attrs["model_type"] == "qwen4_exp"
                assert (attrs["tp_rank"], attrs["tp_size"]) == (rank, tp)
                assert attrs["config_json"] == (GOLDEN / "mixed" / "checkpoint" / "config.json").read_text()
                names = {entry["name"] for entry in json.loads(attrs["source"])}
                assert names == {path.name for path in (GOLDEN / "mixed" / "checkpoint").glob("*.safetensors")}
                assert attrs["created_by"].startswith("galvani")
                digests.add(attrs["model_digest"])

                def visit(name, item):
                    if not isinstance(item, h5py.Dataset):
                        return
                    assert item.chunks is None and item.id.get_offset() % 4096 == 0, name
                    assert {"source_name", "slice", "quantization", "dtype", "xxh3_64"} <= set(item.attrs), name
                    assert item.attrs["source_name"].startswith((TEXT, "lm_head")), name

                file.visititems(visit)
    assert len(digests) == 1, "one checkpoint has one digest, whatever the number of ranks"


def test_digest_depends_on_every_weight(tmp_path, golden_shards):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    patch_data(checkpoint, f"{TEXT}layers.5.mlp.experts.11.down_proj.weight", 100, b"\x5a")
    out = shard(checkpoint, tmp_path / "out", 2)
    with h5py.File(out / "model.rank0of2.h5") as new, h5py.File(golden_shards("mixed", 2) / "model.rank0of2.h5") as old:
        assert new.attrs["model_digest"] != old.attrs["model_digest"]


def test_small_files_come_along(tmp_path):
    checkpoint = copy_checkpoint("ties", tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (checkpoint / name).write_text(f"contents of {name}")
    out = shard(checkpoint, tmp_path / "out", 2)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_text() == f"contents of {name}"
    for name in ("config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (checkpoint / name).read_bytes()


def test_what_it_says(tmp_path):
    """The skipped groups are counted; a second run has nothing to do; quiet says nothing."""
    words = ("shard", "--checkpoint", GOLDEN / "mixed" / "checkpoint", "--out", tmp_path / "out", "--tp", 2)
    done = galvani(0, *words)
    assert "31 of MTP" in done.stderr and "333 of vision" in done.stderr
    assert "MB/s" in done.stderr and "read back and compared" in done.stderr
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.h5")}
    done = galvani(0, *words)
    assert done.status == 0 and "up to date" in done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.h5")}
    done = galvani(0, *words, "--quantize-experts", "nvfp4")
    assert done.status == 0 and "NVFP4 already" in done.stderr
    done = galvani(0, *words[:4], tmp_path / "quiet", *words[5:], "--quiet")
    assert done.status == 0 and done.stderr == ""


# ---- checkpoints made wrong ----


def copy_checkpoint(case, target):
    shutil.copytree(GOLDEN / case / "checkpoint", target)
    return target


def read_header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def file_of(checkpoint, name):
    for path in sorted(checkpoint.glob("*.safetensors")):
        if name in read_header(path)[0]:
            return path
    raise KeyError(name)


def edit_header(checkpoint, name, change):
    """Applies change(header) to the header of the file that holds tensor `name`, data as it is."""
    path = file_of(checkpoint, name)
    header, data = read_header(path)
    change(header)
    write_header(path, header, data)
    return path


def edit_index(checkpoint, change):
    path = checkpoint / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def patch_data(checkpoint, name, offset, new):
    path = file_of(checkpoint, name)
    header, _ = read_header(path)
    with open(path, "r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length + header[name]["data_offsets"][0] + offset)
        file.write(new)


def rename(old, new):
    def change(mapping):
        mapping[new] = mapping.pop(old)

    return change


def expect_refusal(checkpoint, out, *fragments, status=INPUT, tp=1, ranks=0, more=()):
    done = galvani(ranks, "shard", "--checkpoint", checkpoint, "--out", out, "--tp", tp, *more)
    assert done.status == status, done.stderr
    assert len(done.messages()) == 1, done.stderr
    for fragment in fragments:
        assert fragment in done.messages()[0], done.messages()[0]
    assert not out.exists() or not [path for path in out.iterdir() if ".h5" in path.name], "an output file was left"


ROUTER = f"{TEXT}layers.0.mlp.gate.weight"
SCALE = f"{TEXT}layers.2.mlp.experts.7.up_proj.weight_scale"
PLE = f"{TEXT}layers.1.ple.ple_embedding"


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("kept", [0, 5, 100, 0.5, 0.999])
def test_truncated_safetensors(tmp_path, kept, ranks):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    path = file_of(checkpoint, ROUTER)
    size = path.stat().st_size
    os.truncate(path, int(size * kept) if isinstance(kept, float) else kept)
    expect_refusal(checkpoint, tmp_path / "out", path.name, tp=2, ranks=ranks)


@pytest.mark.parametrize(
    "change, fragment",
    [
        (lambda e: e.update(shape=[15, 64]), "bytes long"),
        (lambda e: e.update(shape=[32, 32]), "shape [32, 32]"),
        (lambda e: e.update(shape=[16, -64]), "not negative"),
        (lambda e: e.update(shape=[2**40, 2**40]), "64 bits"),
        (lambda e: e.update(dtype="F16"), "type F16; expected BF16"),
        (lambda e: e.update(dtype="F32"), "bytes long"),
        (lambda e: e.update(dtype=3), "dtype"),
        (lambda e: e.update(data_offsets=e["data_offsets"][::-1]), "not a range"),
        (lambda e: e.update(data_offsets=[0]), "two whole numbers"),
        (lambda e: e.update(data_offsets=[-2, 2046]), "not a range"),
        (lambda e: e.update(data_offsets=[o + 10**9 for o in e["data_offsets"]]), "truncated"),
        (lambda e: e.update(data_offsets=[o + 2 for o in e["data_offsets"]]), "overlap"),
        (lambda e: e.pop("shape"), "shape"),
    ],
)
def test_wrong_entry_of_a_header(tmp_path, change, fragment):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    edit_header(checkpoint, ROUTER, lambda header: change(header[ROUTER]))
    expect_refusal(checkpoint, tmp_path / "out", ROUTER if fragment != "overlap" else "", fragment)


def test_headers_that_are_no_headers(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    path = file_of(checkpoint, ROUTER)
    for text in (b"[]", b"{", b'{"a": 1}', b"", b'{"a": {}, "a": {}}', b"\xff\xfe"):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        expect_refusal(checkpoint, tmp_path / "out", path.name)
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    expect_refusal(checkpoint, tmp_path / "out", path.name)


def test_missing_tensor(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    edit_header(checkpoint, ROUTER, lambda header: header.pop(ROUTER))
    expect_refusal(checkpoint, tmp_path / "out", ROUTER, "index")
    edit_index(checkpoint, lambda weight_map: weight_map.pop(ROUTER))
    expect_refusal(checkpoint, tmp_path / "out", ROUTER, "lacks 1 tensors")


def test_missing_file(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    path = file_of(checkpoint, SCALE)
    path.unlink()
    expect_refusal(checkpoint, tmp_path / "out", path.name, "missing")


def test_unexpected_tensor(tmp_path):
    for number, name in enumerate(("model.language_model.norm.weight", "layers.0.mlp.gate.weight", "mtpx.norm.weight")):
        checkpoint = copy_checkpoint("mixed", tmp_path / str(number))
        edit_header(checkpoint, ROUTER, rename(ROUTER, name))
        edit_index(checkpoint, rename(ROUTER, name))
        expect_refusal(checkpoint, tmp_path / "out", name, "do not belong")


@pytest.mark.parametrize(
    "name",
    [
        f"{TEXT}layers.8.mlp.gate.weight",
        f"{TEXT}layers.00.mlp.gate.weight",
        f"{TEXT}layers.3.linear_attn.in_proj_z.weight",
        f"{TEXT}layers.0.self_attn.q_proj.weight",
        f"{TEXT}layers.0.mlp.experts.16.gate_proj.weight",
        f"{TEXT}layers.0.ple.key_proj.weight",
        f"{PLE}.ngram_embedding.shard_12.weight",
        f"{PLE}.ngram_embedding.shards.3.weight",
        f"{TEXT}layers.0.mlp.experts.gate_up_proj",
    ],
)
def test_tensor_of_a_place_that_the_config_has_not(tmp_path, name):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")

    def change(header):
        header[name] = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}

    path = edit_header(checkpoint, ROUTER, change)
    edit_index(checkpoint, lambda weight_map: weight_map.update({name: path.name}))
    expect_refusal(checkpoint, tmp_path / "out")


def test_tensor_in_two_files(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit_header(checkpoint, SCALE, lambda header: header.update({ROUTER: entry}))
    expect_refusal(checkpoint, tmp_path / "out", ROUTER, "twice")


@pytest.mark.parametrize(
    "text, fragment",
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "no tensor"),
        ('{"weight_map": {"a": 3}}', "tensor a"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "tensor a"),
        ('{"weight_map": {"a": "nowhere.safetensors"}}', "nowhere.safetensors"),
        ('{"weight_map": {"a": "x", "a": "x"}}', "duplicate"),
    ],
)
def test_wrong_index(tmp_path, text, fragment):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    (checkpoint / "model.safetensors.index.json").write_text(text)
    expect_refusal(checkpoint, tmp_path / "out", fragment)


def test_no_weights(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    (checkpoint / "model.safetensors.index.json").unlink()
    expect_refusal(checkpoint, tmp_path / "out", "model.safetensors.index.json")
    expect_refusal(tmp_path / "nowhere", tmp_path / "out", "nowhere")


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize(
    "name, offset, code",
    [(SCALE, 5, b"\x7f"), (SCALE, 0, b"\xff"), (f"{PLE}.ngram_embedding.shard_9.weight", 17, b"\xff")],
)
def test_nan_codes(tmp_path, name, offset, code, ranks):
    """Named are the tensor and the place; both source tensors have rows of 4 and 8 items."""
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    width = read_header(file_of(checkpoint, name))[0][name]["shape"][1]
    patch_data(checkpoint, name, offset, code)
    place = f"row {offset // width}, column {offset % width}"
    expect_refusal(checkpoint, tmp_path / "out", name, place, tp=2, ranks=ranks)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scale_2_that_is_no_number(tmp_path, value):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    patch_data(checkpoint, f"{SCALE}_2", 0, np.float32(value).tobytes())
    expect_refusal(checkpoint, tmp_path / "out", f"{SCALE}_2", "NaN or infinity")


@pytest.mark.parametrize("table", ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"])
def test_altered_hash_constants(tmp_path, table):
    """A multiplier that went through FP32, or any other change."""
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    source = read_checkpoint(checkpoint)[f"{PLE}.{table}"][1]
    changed = np.int64(np.float32(source[1])) if table == "layer_multipliers" else source[1] + 1
    assert changed != source[1]
    patch_data(checkpoint, f"{PLE}.{table}", 8, changed.tobytes())
    expect_refusal(checkpoint, tmp_path / "out", f"{PLE}.{table}", "position 1", str(changed), str(source[1]))


@pytest.mark.parametrize("dtype, items", [("I64", np.int64), ("F16", np.float16)])
def test_a_log_of_another_type(tmp_path, dtype, items):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    name = f"{TEXT}layers.0.linear_attn.A_log"

    def change(header):
        end = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
        size = header[name]["shape"][0] * np.dtype(items).itemsize
        header[name].update(dtype=dtype, data_offsets=[end, end + size])

    path = edit_header(checkpoint, name, change)
    path.write_bytes(path.read_bytes() + bytes(256))
    expect_refusal(checkpoint, tmp_path / "out", name, dtype)


@pytest.mark.parametrize(
    "old, new, dtype, fragment",
    [
        (ROUTER, f"{TEXT}layers.0.mlp.experts.0.gate_proj.weight_packed", "U8", "compressed-tensors"),
        (ROUTER, f"{TEXT}layers.0.mlp.gate.weight_scale_inv", "BF16", "weight_scale_inv"),
        (ROUTER, f"{TEXT}layers.0.mlp.gate.weight_scale", "U8", "MXFP8"),
        (ROUTER, f"{PLE}.ngram_embedding.weight_scale_2", "F32", "NVFP4 in the PLE table"),
        (ROUTER, f"{TEXT}layers.0.mlp.gate.weight_scale", "F32", "FP8"),
        (ROUTER, f"{TEXT}layers.0.mlp.gate.qweight", "I32", "GPTQ"),
    ],
)
def test_other_quantisations_are_refused_by_name(tmp_path, old, new, dtype, fragment):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")

    def change(header):
        header[new] = {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}

    path = edit_header(checkpoint, old, change)
    edit_index(checkpoint, lambda weight_map: weight_map.update({new: path.name}))
    expect_refusal(checkpoint, tmp_path / "out", fragment, new)


def test_numbers_of_ranks(tmp_path):
    checkpoint = GOLDEN / "mixed" / "checkpoint"
    expect_refusal(checkpoint, tmp_path / "out", "3 ranks", status=USAGE, tp=3)
    expect_refusal(checkpoint, tmp_path / "out", "0", status=USAGE, tp=0)
    expect_refusal(checkpoint, tmp_path / "out", "mpirun -np 4", status=USAGE, tp=4, ranks=2)


def test_experts_beyond_fp16_are_counted(tmp_path):
    checkpoint = copy_checkpoint("fused_bf16", tmp_path / "checkpoint")
    name = f"{TEXT}layers.0.mlp.experts.down_proj"
    patch_data(checkpoint, name, 0, struct.pack("<3H", 0x4780, 0xC780, 0x3381))  # 65536, -65536, 2^-24 * 1.0078125
    done = galvani(0, "shard", "--checkpoint", checkpoint, "--out", tmp_path / "out", "--tp", "2")
    assert done.status == 0, done.stderr
    assert "2 values lay beyond" in done.stderr and "1 lay below" in done.stderr, done.stderr
    stored = Shards(tmp_path / "out", 2).columns("/layers/00/moe/down").reshape(-1)
    assert stored[0] == 65504 and stored[1] == -65504 and stored[2] == np.float16(2.0**-24)


@pytest.mark.parametrize("more", [(), ("--quantize-experts", "nvfp4")])
def test_experts_that_are_no_numbers(tmp_path, more):
    checkpoint = copy_checkpoint("fused_bf16", tmp_path / "checkpoint")
    name = f"{TEXT}layers.0.mlp.experts.down_proj"
    patch_data(checkpoint, name, 6, struct.pack("<H", 0x7FC0))
    expect_refusal(checkpoint, tmp_path / "out", name, "row 0, column 3", more=more)


def make_checkpoint(directory, change_entries=None, **layout_fields):
    """A small random checkpoint of its own, for layouts that the goldens do not have."""
    config = cw.text_config(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=4, linear_num_value_heads=12,
        linear_key_head_dim=8, linear_value_head_dim=8, num_experts=12, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=32, hc_count=2, hc_lowrank=8, ple_layer_ids=[1], ple_embed_dim=32,
        heads_per_ngram=2, ngram_vocab_size_base=50, make_ngram_vocab_size_divisible_by=16, split_ngram_parts=4,
        indexer_n_heads=2, indexer_head_dim=8, indexer_budget=16, eos_token_id=90, bos_token_id=90,
    )  # fmt: skip
    layout = cw.Layout(**{"vision_depth": 1, "n_ple_files": 2, **layout_fields})
    entries = [cw.random_entry(spec) for spec in cw.text_specs(config, layout)]
    for ple_entry in cw.ple_constant_entries(config):
        entries = [entry for entry in entries if entry.name != ple_entry.name] + [ple_entry]
    if change_entries:
        entries = change_entries(entries, config)
    cw.write_files(str(directory), config, entries, layout)
    return directory


def data_of(entry):
    return entry.data() if callable(entry.data) else entry.data


def as_bf16_experts(entries, config):
    """Unquantised experts, a tensor each."""
    kept = [entry for entry in entries if ".mlp.experts." not in entry.name]
    for layer in range(config["num_hidden_layers"]):
        for expert in range(config["num_experts"]):
            for projection in ("gate", "up", "down"):
                shape = (config["moe_intermediate_size"], config["hidden_size"])
                name = f"{TEXT}layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"
                spec = cw.Spec(name, "BF16", shape[::-1] if projection == "down" else shape)
                kept.append(cw.random_entry(spec))
    return kept


def as_one_table(entries, config):
    """The PLE table in one piece, as a library may save it."""
    shards = sorted((e for e in entries if ".shard_" in e.name), key=lambda e: int(e.name.split("shard_")[1].split(".")[0]))
    table = np.concatenate([data_of(entry) for entry in shards])
    rest = [entry for entry in entries if ".shard_" not in entry.name]
    return rest + [cw.Entry(f"{TEXT}layers.0.ple.ple_embedding.ngram_embedding.weight", "F8_E4M3", table.shape, table)]


def as_bf16_table(entries, config):
    """An unquantised table: BF16 shards and no scale."""
    changed = []
    for entry in entries:
        if ".shard_" in entry.name:
            entry = cw.random_entry(cw.Spec(entry.name, "BF16", entry.shape))
        if not entry.name.endswith("ngram_embedding.weight_scale"):
            changed.append(entry)
    return changed


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("style", ["radixark", "nvidia"])
def test_both_layouts(tmp_path, style, tp):
    checkpoint = make_checkpoint(tmp_path / "checkpoint", style=style)
    source = read_checkpoint(checkpoint)
    shards = Shards(shard(checkpoint, tmp_path / "out", tp), tp)
    seen = check_dense(source, shards) | check_ple(source, shards) | check_nvfp4_experts(source, shards)
    assert {name for name in source if name.startswith((TEXT, "lm_head"))} == seen


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("change", [as_one_table, as_bf16_table])
def test_other_tables(tmp_path, change, tp):
    checkpoint = make_checkpoint(tmp_path / "checkpoint", change)
    source = read_checkpoint(checkpoint)
    shards = Shards(shard(checkpoint, tmp_path / "out", tp), tp)
    assert check_ple(source, shards)
    check_nvfp4_experts(source, shards)


@pytest.mark.parametrize("tp", [1, 4])
def test_bf16_experts_in_a_tensor_each(tmp_path, tp):
    checkpoint = make_checkpoint(tmp_path / "checkpoint", as_bf16_experts)
    source = read_checkpoint(checkpoint)
    shards = Shards(shard(checkpoint, tmp_path / "f16", tp), tp)
    quantised = Shards(shard(checkpoint, tmp_path / "nvfp4", tp, "--quantize-experts", "nvfp4"), tp)
    gate, up = shards.gate_up("/layers/01/moe/gate_up")
    codes, _ = quantised.gate_up("/layers/01/moe/gate_up_codes")
    for expert in range(12):
        values = widen(*source[f"{TEXT}layers.1.mlp.experts.{expert}.gate_proj.weight"])
        assert np.array_equal(gate[expert], values.astype(np.float16))
        assert np.array_equal(codes[expert], cw.nvfp4_quantize(values).codes)
        assert np.array_equal(up[expert], widen(*source[f"{TEXT}layers.1.mlp.experts.{expert}.up_proj.weight"]).astype(np.float16))


def test_table_shards_of_wrong_length(tmp_path):
    def change(entries, config):
        name = f"{TEXT}layers.0.ple.ple_embedding.ngram_embedding.shard_2.weight"
        rows = [cw.Entry(e.name, e.dtype, (e.shape[0] - 1, e.shape[1]), data_of(e)[1:]) if e.name == name else e for e in entries]
        return rows

    expect_refusal(make_checkpoint(tmp_path / "checkpoint", change), tmp_path / "out", "shard_2.weight", "shape")


def test_table_shard_missing(tmp_path):
    def change(entries, config):
        return [entry for entry in entries if ".shard_2." not in entry.name]

    expect_refusal(make_checkpoint(tmp_path / "checkpoint", change), tmp_path / "out", "shard_2.weight")


# ---- the output ----


@pytest.fixture(scope="module")
def larger_checkpoint(tmp_path_factory):
    """Some 200 MB, so that a conversion can be stopped half-way."""
    config = cw.text_config(
        vocab_size=32768, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        linear_num_key_heads=8, linear_num_value_heads=24, linear_key_head_dim=32, linear_value_head_dim=32,
        num_experts=64, num_experts_per_tok=4, moe_intermediate_size=256, shared_expert_intermediate_size=256, hc_lowrank=32,
        ple_layer_ids=[2], ple_embed_dim=512, ngram_vocab_size_base=100000, split_ngram_parts=16, indexer_head_dim=32,
        indexer_budget=64, eos_token_id=32000, bos_token_id=32000,
    )  # fmt: skip
    layout = cw.Layout(vision_depth=1, n_ple_files=3)
    entries = [cw.random_entry(spec) for spec in cw.text_specs(config, layout)]
    constants = {entry.name: entry for entry in cw.ple_constant_entries(config)}
    entries = [constants.get(entry.name, entry) for entry in entries]
    directory = tmp_path_factory.mktemp("larger")
    cw.write_files(str(directory), config, entries, layout)
    return directory


def descendants(pid):
    """A process and all that it started, directly or not."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return [pid]
    return [pid] + [each for child in children for each in descendants(child)]


def kill_all(pid):
    """kill -9 to a process and what it started, which would outlive it, and waits until all are gone."""
    found = descendants(pid)
    for each in found:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{each}/exe") for each in found):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("ranks", [0, 2])
def test_killed_run_is_resumed(larger_checkpoint, tmp_path, ranks):
    """kill -9 half-way leaves no file that looks whole; a second run goes on and gives what one run gives."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    words = ("shard", "--checkpoint", larger_checkpoint, "--tp", 2, "--out")
    process = subprocess.Popen(command(ranks, *words, out), env=environment(), stderr=subprocess.DEVNULL)
    journals = [out / f"model.rank{rank}of2.h5.journal" for rank in range(2)]
    deadline = time.monotonic() + 60
    while not all(path.exists() and len(path.read_text().splitlines()) > 20 for path in journals):
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be stopped"
        time.sleep(0.002)
    kill_all(process.pid)
    process.wait()
    assert not list(out.glob("*.h5"))
    partial = out / "model.rank1of2.h5.partial"
    inode = partial.stat().st_ino
    # A dataset that was damaged meanwhile is written again.
    with h5py.File(partial, "r") as file:
        offset = file["/embed"].id.get_offset()
    with open(partial, "r+b") as file:
        file.seek(offset + 1000)
        file.write(b"damage")
    done = galvani(ranks, *words, out)
    assert done.status == 0, done.stderr
    assert (out / "model.rank1of2.h5").stat().st_ino == inode, "the second run started over"
    assert sorted(path.suffix for path in out.iterdir()) == [".h5", ".h5", ".json", ".json"]
    assert galvani(0, *words, whole).status == 0
    for rank in range(2):
        name = f"model.rank{rank}of2.h5"
        assert describe(out / name) == describe(whole / name)


def test_a_file_that_another_process_writes(tmp_path):
    """Who writes a file holds a lock on its journal; a second process is refused and leaves all as it is."""
    out = tmp_path / "out"
    out.mkdir()
    journal, partial = out / "model.rank0of1.h5.journal", out / "model.rank0of1.h5.partial"
    partial.write_text("another's")
    with open(journal, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = galvani(0, "shard", "--checkpoint", GOLDEN / "ties" / "checkpoint", "--out", out, "--tp", 1)
    assert done.status == DEVICE and "another process" in done.stderr, done.stderr
    assert partial.read_text() == "another's" and journal.exists()


def test_partial_file_of_another_conversion_is_not_gone_on_with(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    out = shard(checkpoint, tmp_path / "out", 1)
    first = describe(out / "model.rank0of1.h5")
    (out / "model.rank0of1.h5").rename(out / "model.rank0of1.h5.partial")
    (out / "model.rank0of1.h5.journal").write_text("something else\n0 0 0\n")
    shard(checkpoint, out, 1)
    assert describe(out / "model.rank0of1.h5") == first


def test_changed_checkpoint_is_converted_again(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    out = shard(checkpoint, tmp_path / "out", 1)
    patch_data(checkpoint, ROUTER, 0, b"\x01\x02")
    shard(checkpoint, out, 1)
    with h5py.File(out / "model.rank0of1.h5") as file:
        assert file["/layers/00/moe/router"][0, 0] == 0x0201


def test_damaged_file_is_converted_again(tmp_path):
    """A whole file is left alone only while its seal holds."""
    out = shard(GOLDEN / "ties" / "checkpoint", tmp_path / "out", 1)
    path = out / "model.rank0of1.h5"
    whole = path.read_bytes()
    place = whole.index(b"qwen4_exp_text")
    path.write_bytes(whole[:place] + b"Q" + whole[place + 1 :])
    assert galvani(0, "inspect", path).status == INPUT
    shard(GOLDEN / "ties" / "checkpoint", out, 1)
    assert galvani(0, "inspect", path, "--verify").status == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB; skips where it cannot be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("no right to mount a small file system")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("ranks", [0, 2])
def test_full_disk(larger_checkpoint, small_disk, ranks):
    done = galvani(ranks, "shard", "--checkpoint", larger_checkpoint, "--out", small_disk / "out", "--tp", 2)
    assert done.status == DEVICE, done.stderr
    assert len(done.messages()) == 1 and "No space left" in done.stderr, done.stderr
    assert not list((small_disk / "out").iterdir())


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoint = GOLDEN / "ties" / "checkpoint"
    for out in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / "a" / "b" / "c"):
        done = galvani(0, "shard", "--checkpoint", checkpoint, "--out", out, "--tp", 1)
        assert done.status == DEVICE and len(done.messages()) == 1, done.stderr


def test_unreadable_source(tmp_path):
    checkpoint = copy_checkpoint("mixed", tmp_path / "checkpoint")
    path = file_of(checkpoint, ROUTER)
    path.unlink()
    path.mkdir()
    expect_refusal(checkpoint, tmp_path / "out", path.name)


def test_flipped_bit_of_a_shard_is_found(tmp_path):
    out = shard(GOLDEN / "mixed" / "checkpoint", tmp_path / "out", 1)
    path = out / "model.rank0of1.h5"
    with h5py.File(path, "r") as file:
        offset = file["/layers/03/moe/down_codes"].id.get_offset()
    with open(path, "r+b") as file:
        file.seek(offset + 321)
        byte = file.read(1)[0]
        file.seek(offset + 321)
        file.write(bytes([byte ^ 16]))
    done = galvani(0, "inspect", path, "--verify")
    assert done.status == INPUT and "/layers/03/moe/down_codes" in done.stderr, done.stderr
