"""The checkpoint writer against what is published of the real files: the goldens are only as real as its layout."""

import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import checkpoint_writer as writer  # noqa: E402
import number_formats as formats  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
CHECKPOINTS = sorted(path.parent for path in GOLDEN.glob("*/checkpoint/config.json"))
RADIXARK = writer.Layout()


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def read_header(path):
    """A safetensors file's header, and where its data start and end."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), 8 + length, len(data)


def test_config_files_are_the_published_ones_to_the_byte():
    config = writer.text_config()
    whole = writer.model_config(config, RADIXARK)
    assert sha256(json.dumps(whole, indent=2)) == "e765305daba0951974308f4d32c075b52a6a45974730d273f2216718a994d624"
    base = {key: value for key, value in whole.items() if key != "quantization_config"}
    base["text_config"] = config
    assert sha256(json.dumps(base, indent=4, sort_keys=True)).startswith("889658f2508e8c61")
    generation = json.dumps(writer.generation_config(config), indent=4) + "\n"
    assert len(generation) == 202
    assert sha256(generation).startswith("e70c136c")


def test_real_inventory_has_the_published_counts_and_bytes():
    config = writer.text_config()
    specs = writer.text_specs(config, RADIXARK)
    assert len(specs) == 1199 + 294912
    assert len(specs) + len(writer.skipped_specs(config, RADIXARK)) == 296475
    assert sum(writer.spec_bytes(spec) for spec in specs if ".experts." in spec.name) == 67948314624
    assert sum(writer.spec_bytes(spec) for spec in specs if ".shard_" in spec.name) == 51200245760
    # The PLE scale is the one item beyond the parameters.
    assert sum(math.prod(spec.shape) for spec in specs if spec.dtype == "BF16") == 4947698560 + 1


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_golden_checkpoints_are_whole(checkpoint):
    """Every file is covered by its tensors without gap or overlap, and the index names each tensor's file."""
    found = {}
    for path in checkpoint.glob("*.safetensors"):
        header, start, end = read_header(path)
        header.pop("__metadata__", None)
        spans = sorted(entry["data_offsets"] for entry in header.values())
        assert [begin for begin, _ in spans] == [0] + [stop for _, stop in spans[:-1]]
        assert start + spans[-1][1] == end
        found.update(dict.fromkeys(header, path.name))
    index = checkpoint / "model.safetensors.index.json"
    if index.exists():
        assert json.loads(index.read_text())["weight_map"] == found
    else:
        assert set(found.values()) == {"model.safetensors"}


def test_data_start_at_odd_offsets():
    offsets = [read_header(path)[1] for path in (GOLDEN / "mixed" / "checkpoint").glob("model-*.safetensors")]
    assert offsets
    assert all(offset % 2 == 1 for offset in offsets)


def test_ple_shards_lie_in_string_order_over_files():
    files = sorted((GOLDEN / "mixed" / "checkpoint").glob("model-plefp8-0*.safetensors"))
    names = [name for path in files for name in read_header(path)[0]]
    assert [int(name.split("shard_")[1].split(".")[0]) for name in names] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


def test_e4m3_is_nearest_even_and_saturates():
    values = formats.E4M3_VALUES
    codes = np.arange(127)
    assert np.array_equal(formats.e4m3_codes(values[:127]), codes)
    middles = (values[:126].astype(np.float64) + values[1:127]) / 2
    even = codes[:126] + codes[:126] % 2
    assert np.array_equal(formats.e4m3_codes(middles.astype(np.float32)), even)
    assert np.array_equal(formats.e4m3_codes(-middles.astype(np.float32)), even + 128)
    assert np.array_equal(formats.e4m3_codes(np.array([449.0, 1e9, -1e9])), [0x7E, 0x7E, 0xFE])


def test_e2m1_ties_go_as_modelopt_takes_them():
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32)
    assert np.array_equal(formats.e2m1_codes(ties), [0, 2, 2, 4, 4, 6, 6])
    assert np.array_equal(formats.e2m1_codes(-ties), np.array([0, 2, 2, 4, 4, 6, 6]) + 8)


def test_nvfp4_error_is_within_half_a_step():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((16, 64)).astype(np.float32)
    quantized = formats.nvfp4_quantize(matrix)
    steps = np.repeat(formats.E4M3_VALUES[quantized.scales] * quantized.scale_2, formats.BLOCK, axis=1)
    # The widest gap of the code table is 2 steps; a scale rounded down lets the largest value lie 1/16 beyond 6.
    assert np.all(np.abs(formats.nvfp4_dequantize(quantized) - matrix) <= 1.01 * steps)
