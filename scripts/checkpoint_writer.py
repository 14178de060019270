"""Writes Qwen3.8-Flash-Next checkpoints in the layout of the two published NVFP4 exports.

Needs numpy only (Debian's python3-numpy is enough). Three ways in, from high to low:

  write_checkpoint(directory, text_config(...), state, Layout(...))
      quantises a transformers state dict, writes every file, returns the values that a reader must see;
  text_specs(config, layout) and write_files(directory, config, entries, layout)
      the names, dtypes and shapes of a text model, and the files for entries whose data may be made lazily, so that
      a checkpoint larger than memory can be written;
  write_safetensors(path, entries)
      one file. The number formats are in number_formats.py.

Names of the state dict are those of Qwen4ExpForCausalLM: `model.layers.0...`, `lm_head.weight`.
"""

import itertools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from checkpoint_layout import (  # noqa: F401 (importers take these from here)
    PROJECTIONS,
    TEXT_PREFIX,
    Layout,
    Spec,
    model_config,
    ple_constants,
    quantization_configs,
    skipped_specs,
    text_config,
    text_specs,
)
from number_formats import (
    E2M1_MAX,
    E4M3_MAX,
    bf16_bits,
    bf16_round,
    fp8_dequantize,
    fp8_quantize,
    nvfp4_dequantize,
    nvfp4_quantize,
    nvfp4_scale_2,
)

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I64": 8, "F8_E4M3": 1}


class Entry(NamedTuple):
    """A tensor to write. `data` is an array whose bytes are the tensor's, or a function that makes it when needed."""

    name: str
    dtype: str
    shape: tuple
    data: np.ndarray | Callable[[], np.ndarray]


def spec_bytes(spec: Spec | Entry) -> int:
    return ITEM_BYTES[spec.dtype] * math.prod(spec.shape)


def float_entry(name: str, dtype: str, values: np.ndarray) -> Entry:
    """Entry of FP32 `values` in dtype BF16 (rounded), F16 or F32."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    data = {"BF16": bf16_bits, "F16": lambda v: v.astype(np.float16), "F32": lambda v: v}[dtype](values)
    return Entry(name, dtype, values.shape, data)


def write_safetensors(path, entries: Iterable[Entry], header="natural", reverse_data=False, metadata=None) -> int:
    """Writes one file, tensors in string order of their names; returns its length in bytes.

    header: "natural" leaves the JSON as it is, "odd" makes the data start at an odd offset, "aligned" pads to 8.
    reverse_data: lay the data in the opposite order of the header's entries.
    """
    entries = sorted(entries, key=lambda entry: entry.name)
    description = {"__metadata__": metadata} if metadata else {}
    data_order = entries[::-1] if reverse_data else entries
    offsets, end = {}, 0
    for entry in data_order:
        offsets[entry.name] = [end, end + spec_bytes(entry)]
        end += spec_bytes(entry)
    for entry in entries:
        description[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": offsets[entry.name],
        }
    text = json.dumps(description, separators=(",", ":")).encode()
    if header == "odd":
        text += b" " * (len(text) % 2 == 0)
    elif header == "aligned":
        text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in data_order:
            data = entry.data() if callable(entry.data) else entry.data
            data = np.ascontiguousarray(data)
            if data.nbytes != spec_bytes(entry):
                raise ValueError(f"{entry.name}: {data.nbytes} bytes of data for {entry.dtype} {entry.shape}")
            file.write(data.data if data.size else b"")
        return file.tell()


def ple_constant_entries(config: dict) -> list:
    """The I64 entries of every PLE layer."""
    entries = []
    for ple_index, layer_id in enumerate(sorted(set(config.get("ple_layer_ids") or []))):
        constants = ple_constants(config, ple_index)
        prefix = f"{TEXT_PREFIX}layers.{layer_id - 1}.ple.ple_embedding"
        names = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
        for name, values in zip(names, constants):
            entries.append(Entry(f"{prefix}.{name}", "I64", values.shape, values))
    return entries


def _stored_name(name: str) -> str:
    """Name of a transformers parameter -> its name in the checkpoint (without expert and PLE splitting)."""
    return TEXT_PREFIX + name[len("model.") :] if name.startswith("model.") else name


def _expert_entries(prefix: str, gate_up: np.ndarray, down: np.ndarray, layout: Layout):
    """Fused experts gate_up [E, 2M, H] and down [E, H, M] -> (entries, what they decode to, in the fused form)."""
    if layout.experts == "fused_bf16":
        fused = {"gate_up_proj": gate_up, "down_proj": down}
        entries = [float_entry(f"{prefix}.{name}", "BF16", values) for name, values in fused.items()]
        return entries, bf16_round(gate_up), bf16_round(down)
    entries = []
    stored_gate_up, stored_down = np.empty_like(gate_up), np.empty_like(down)
    inner = down.shape[2]
    for expert in range(down.shape[0]):
        gate, up = gate_up[expert, :inner], gate_up[expert, inner:]
        shared = nvfp4_scale_2(gate, up) if layout.shared_gate_up_scale else None
        quantized = [nvfp4_quantize(gate, shared), nvfp4_quantize(up, shared), nvfp4_quantize(down[expert])]
        stored_gate_up[expert, :inner], stored_gate_up[expert, inner:], stored_down[expert] = map(
            nvfp4_dequantize, quantized
        )
        for projection, matrix in zip(PROJECTIONS, quantized):
            name = f"{prefix}.{expert}.{projection}"
            # Only 4-bit activations use input_scale; any positive word will do.
            input_scale = np.float32((8 + expert % 8) / (E2M1_MAX * E4M3_MAX))
            entries += [
                Entry(f"{name}.weight", "U8", matrix.codes.shape, matrix.codes),
                Entry(f"{name}.weight_scale", "F8_E4M3", matrix.scales.shape, matrix.scales),
                Entry(f"{name}.weight_scale_2", "F32", (), np.array(matrix.scale_2)),
                Entry(f"{name}.input_scale", "F32", (), np.array(input_scale)),
            ]
    return entries, stored_gate_up, stored_down


def _ple_table_entries(prefix: str, table: np.ndarray, n_parts: int):
    """PLE table [rows, width] -> (shard and scale entries, the FP32 table that they decode to)."""
    codes, scale = fp8_quantize(table)
    entries = [float_entry(f"{prefix}.weight_scale", "BF16", np.array([scale]))]
    for part, shard in enumerate(np.split(codes, n_parts)):
        entries.append(Entry(f"{prefix}.shard_{part}.weight", "F8_E4M3", shard.shape, shard))
    return entries, fp8_dequantize(codes, scale)


def quantize_state(config: dict, state: dict, layout: Layout):
    """A Qwen4ExpForCausalLM state dict of numpy arrays -> (entries to store, the state dict that they decode to)."""
    entries, stored = [], {}
    for name, values in state.items():
        target = _stored_name(name)
        if name.endswith(".experts.gate_up_proj"):
            down_name = name.replace("gate_up_proj", "down_proj")
            new, stored[name], stored[down_name] = _expert_entries(
                target[: -len(".gate_up_proj")], values, state[down_name], layout
            )
            entries += new
        elif name.endswith(".experts.down_proj"):
            continue
        elif name.endswith(".ngram_embedding.weight"):
            new, stored[name] = _ple_table_entries(target[: -len(".weight")], values, config["split_ngram_parts"])
            entries += new
        elif values.dtype == np.int64:
            entries.append(Entry(target, "I64", values.shape, values))
            stored[name] = values
        elif name.endswith(".A_log") and layout.a_log_dtype == "F32":
            entries.append(float_entry(target, "F32", values))
            stored[name] = values.astype(np.float32)
        else:
            entries.append(float_entry(target, "BF16", values))
            stored[name] = bf16_round(values)
    expected = {tuple(spec) for spec in text_specs(config, layout)}
    found = {(entry.name, entry.dtype, tuple(entry.shape)) for entry in entries}
    if expected != found:
        raise ValueError(f"missing {sorted(expected - found)[:5]}, unexpected {sorted(found - expected)[:5]}")
    return entries, stored


def _split(items: list, n_parts: int) -> list:
    """Cuts a list into at most n_parts runs of nearly equal length."""
    bounds = [round(len(items) * part / n_parts) for part in range(n_parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(bounds) if end > begin]


def plan_files(config: dict, entries: list, layout: Layout) -> dict:
    """Which file holds which entry: {file name: [entries]}. PLE shards follow the string order of their names."""
    entries = sorted(entries, key=lambda entry: entry.name)
    if layout.single_file:
        return {"model.safetensors": entries}
    table = [e for e in entries if ".ngram_embedding.shard_" in e.name]
    scales = [e for e in entries if e.name.endswith(".ngram_embedding.weight_scale")]
    mtp = [e for e in entries if e.name.startswith("mtp.")]
    placed = {entry.name for entry in table + scales + mtp}
    others = [e for e in entries if e.name not in placed]
    files = {}
    if layout.style == "nvidia":
        parts = _split(others, layout.n_model_files)
        for number, part in enumerate(parts, 1):
            files[f"model-{number:05d}-of-{len(parts):05d}.safetensors"] = part
        files["model-fp8-mtp-ple.safetensors"] = mtp + table + scales
        return {name: part for name, part in files.items() if part}
    bf16 = {number: [] for number in (1, 10, 11, 12)}
    bf16[11] += mtp
    n_experts = config["num_experts"]
    per_file = -(-n_experts // layout.n_expert_files)
    for entry in others:
        words = entry.name.split(".")
        if ".mlp.experts." in entry.name and layout.experts == "nvfp4":
            layer, expert = int(words[3]), int(words[6])
            first = expert // per_file * per_file
            last = min(first + per_file, n_experts) - 1
            name = f"layer-{layer:05d}-experts-{first:04d}-{last:04d}.safetensors"
            files.setdefault(name, []).append(entry)
        elif ".ple." in entry.name:
            bf16[1 if entry.dtype == "I64" else 10].append(entry)
        elif words[1] == "visual":
            bf16[1].append(entry)
        elif words[1] == "language_model" and words[2] == "layers":
            bf16[(1, 11, 12)[int(words[3]) % 3]].append(entry)
        else:
            bf16[12].append(entry)
    files.update({f"model-bf16-{number:05d}.safetensors": part for number, part in bf16.items()})
    for number, part in enumerate(_split(table, layout.n_ple_files)):
        files[f"model-plefp8-{number:05d}.safetensors"] = part
    files["model-plefp8-scale.safetensors"] = scales
    return {name: part for name, part in files.items() if part}


def write_json(path: str, value, indent=2, end="") -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent, ensure_ascii=False)
        file.write(end)


def generation_config(config: dict) -> dict:
    eos = config["eos_token_id"]
    return {
        "bos_token_id": config["bos_token_id"],
        "do_sample": True,
        "eos_token_id": eos if isinstance(eos, list) else [eos + 2, eos],
        "pad_token_id": eos[0] if isinstance(eos, list) else eos,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }


def write_files(directory: str, config: dict, entries: list, layout: Layout, generation: dict | None = None) -> dict:
    """Writes config.json, hf_quant_config.json, generation_config.json, the weight files and the index.

    generation: contents of generation_config.json; the default ends on eos_token_id and, as <|im_end|> in the real
    vocabulary, on the id two above it. Returns {file name: length in bytes} of the weight files.
    """
    os.makedirs(directory, exist_ok=True)
    write_json(os.path.join(directory, "config.json"), model_config(config, layout))
    _, hf_quant_config = quantization_configs(config, layout)
    if hf_quant_config:
        write_json(os.path.join(directory, "hf_quant_config.json"), hf_quant_config, end="\n")
    generation = generation or generation_config(config)
    write_json(os.path.join(directory, "generation_config.json"), generation, indent=4, end="\n")
    lengths, weight_map, payload = {}, {}, 0
    for name, part in plan_files(config, entries, layout).items():
        # The expert files of the published export have headers of any length, the others odd ones.
        header = "natural" if layout.header == "odd" and name.startswith("layer-") else layout.header
        metadata = {"format": "pt"} if layout.style == "nvidia" else None
        path = os.path.join(directory, name)
        lengths[name] = write_safetensors(path, part, header, layout.reverse_data, metadata)
        weight_map.update({entry.name: name for entry in part})
        payload += sum(map(spec_bytes, part))
    if not layout.single_file:
        total = payload if layout.style == "nvidia" else sum(lengths.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(os.path.join(directory, "model.safetensors.index.json"), index)
    return lengths


def random_entry(spec: Spec, seed: int = 0) -> Entry:
    """An entry with finite random data, made when it is written; the same for the same name, spec and seed."""

    def make() -> np.ndarray:
        rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        if spec.dtype in ("U8", "F8_E4M3"):
            # E4M3 codes 0x7F and 0xFF are NaN.
            return rng.integers(0, 127 if spec.dtype == "F8_E4M3" else 256, spec.shape, dtype=np.uint8)
        return float_entry(spec.name, spec.dtype, 0.02 * rng.standard_normal(spec.shape, dtype=np.float32)).data

    return Entry(*spec, make)


def write_checkpoint(
    directory: str, config: dict, state: dict, layout: Layout = Layout(), generation: dict | None = None
) -> dict:
    """Writes a checkpoint and returns the state dict that a reader must decode from it.

    config: from text_config(). state: names of Qwen4ExpForCausalLM.state_dict() -> numpy arrays, float32 or int64.
    """
    entries, stored = quantize_state(config, state, layout)
    if layout.skipped_groups:
        entries += [random_entry(spec) for spec in skipped_specs(config, layout)]
    write_files(directory, config, entries, layout, generation)
    return stored
