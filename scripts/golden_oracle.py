"""The oracle: transformers' Qwen4ExpForCausalLM in FP32 on one CPU thread, with random weights and recorded outputs."""

import glob
import os
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import DynamicCache
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from checkpoint_writer import PROJECTIONS, TEXT_PREFIX

VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}


def write_dataset(group, name: str, values: np.ndarray) -> None:
    """Writes an array into an HDF5 file or group, compressed where that saves more than its bookkeeping costs."""
    filters = {"compression": "gzip", "compression_opts": 9, "shuffle": True} if values.nbytes > 4096 else {}
    group.create_dataset(name, data=values, **filters)


def oracle_config(config: dict) -> Qwen4ExpTextConfig:
    """A text_config dict -> transformers' configuration, with the plain (eager) implementations chosen."""
    oracle = Qwen4ExpTextConfig(**config)
    oracle._attn_implementation = "eager"
    oracle._experts_implementation = "eager"
    return oracle


def build_model(config: dict) -> Qwen4ExpForCausalLM:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return Qwen4ExpForCausalLM(oracle_config(config)).float().eval()


def load_state(model: Qwen4ExpForCausalLM, stored: dict) -> None:
    """Puts numpy arrays into the model; every parameter must be there."""
    model.load_state_dict({name: torch.from_numpy(values) for name, values in stored.items()}, strict=True)


# Standard deviation of each weight times sqrt(inputs); chosen so that sigmoids and softmaxes work where they bend.
_GAINS = {
    "lm_head": 2.0,
    "input_mix_weight_down": 3.0,
    "input_mix_weight_up": 3.0,
    "block_inject_weight": 5.0,
    "in_proj_qkv": 1.5,
    "in_proj_z": 5.0,
    "in_proj_b": 2.0,
    "in_proj_a": 3.0,
    "out_proj": 1.5,
    "q_proj": 2.0,
    "k_proj": 2.0,
    "v_proj": 2.0,
    "o_proj": 2.0,
    "index_qk_proj": 2.0,
    "gate": 3.0,
    "shared_expert_gate": 3.0,
    "gate_proj": 1.5,
    "up_proj": 1.0,
    "down_proj": 1.5,
    # The table's values are as small as the real one's (0.03), and the projections make up for it.
    "key_proj": 30.0,
    "value_proj": 30.0,
}


def _random_weight(name: str, shape: tuple, rng: np.random.Generator) -> np.ndarray:
    parts = name.split(".")
    module = parts[-2]
    normal = rng.standard_normal(shape)
    if module == "embed_tokens":
        return normal
    if module == "ngram_embedding":
        return 0.03 * normal
    if parts[-1] == "A_log":
        return 0.7 * normal - 1.5
    if parts[-1] == "dt_bias":
        return normal
    if module == "conv1d":
        return 0.5 * normal
    if module == "norm":  # linear_attn.norm, the one plain weight
        return 1 + 0.2 * normal
    if len(shape) == 1:
        return 0.25 * normal
    return _GAINS[module] / np.sqrt(shape[-1]) * normal


def _random_experts(shape: tuple, rng: np.random.Generator) -> np.ndarray:
    """Experts [E, rows, columns]: every expert, row and block of 16 columns has a size of its own."""
    n_experts, n_rows, n_columns = shape
    values = rng.standard_normal((n_experts, n_rows, n_columns // 16, 16))
    values *= np.exp(0.3 * rng.standard_normal((n_experts, 1, 1, 1)))
    values *= np.exp(0.4 * rng.standard_normal((n_experts, n_rows, n_columns // 16, 1)))
    # A block of zeros has scale 1; the scale of a block as small as this one underflows to 0.
    values[0, 1, 0] = 0
    values[0, 2, -1] *= 1e-6
    return (1.5 / np.sqrt(n_columns) * values).reshape(shape)


def random_state(model: Qwen4ExpForCausalLM, seed: int) -> dict:
    """Random weights for every parameter, in order of their names; the hash constants as the model derives them."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.dtype == torch.int64:
            state[name] = tensor.numpy()
        elif ".experts." in name:
            state[name] = _random_experts(tuple(tensor.shape), rng).astype(np.float32)
        else:
            state[name] = _random_weight(name, tuple(tensor.shape), rng).astype(np.float32)
    return state


@dataclass
class CutMargins:
    """Least relative gap at the cut of every top-k so far: between the last value taken and the first left out."""

    router: float = np.inf
    index: float = np.inf
    n_sparse: int = 0  # index selections that left a block out

    def add_router(self, probabilities: torch.Tensor, k: int) -> None:
        if k < probabilities.shape[-1]:
            top = probabilities.topk(k + 1, dim=-1).values
            self.router = min(self.router, ((top[..., k - 1] - top[..., k]) / top[..., k - 1]).min().item())

    def add_index(self, scores: torch.Tensor, k: int) -> None:
        if k < scores.shape[0]:
            top = scores.topk(k + 1, dim=0).values
            self.n_sparse += 1
            self.index = min(self.index, ((top[k - 1] - top[k]) / top[0].clamp_min(1e-30)).item())


class StableTopk:
    """Stands in for topk: descending values, the lower index first among equal ones. dim is the last one."""

    def __init__(self, values: torch.Tensor, k: int):
        self.indices = torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :k]
        self.values = values.gather(-1, self.indices)

    def __iter__(self):
        return iter((self.values, self.indices))


@contextmanager
def watched_topk(margins: CutMargins, stable: bool = False):
    """While active, every topk of the oracle reports its margin; with `stable`, ties go to the lower index.

    The router calls torch.topk, the indexer Tensor.topk: that tells them apart.
    """
    function, method = torch.topk, torch.Tensor.topk

    def watched_function(values, k, dim=-1):
        torch.Tensor.topk = method
        margins.add_router(values, k)
        torch.Tensor.topk = watched_method
        return StableTopk(values, k) if stable else function(values, k, dim=dim)

    def watched_method(scores, k, dim=0):
        torch.Tensor.topk = method
        margins.add_index(scores, k)
        torch.Tensor.topk = watched_method
        return StableTopk(scores, k) if stable else method(scores, k, dim=dim)

    torch.topk, torch.Tensor.topk = watched_function, watched_method
    try:
        yield
    finally:
        torch.topk, torch.Tensor.topk = function, method


@dataclass
class Recording:
    """Outputs of one model on one prompt. See tests/golden/README.md for names and shapes."""

    datasets: dict = field(default_factory=dict)
    margins: CutMargins = field(default_factory=CutMargins)
    argmax_margin: float = np.inf
    noise: float = 0.0


def _selected_blocks(mask: torch.Tensor, ratio: int) -> np.ndarray:
    """Mask [1, 1, P, P] of visible tokens -> uint8 [P, P / ratio], 1 where a complete block is visible."""
    n_tokens = mask.shape[-1]
    n_blocks = n_tokens // ratio
    blocks = mask[0, 0, :, : n_blocks * ratio].reshape(n_tokens, n_blocks, ratio)
    complete = torch.arange(n_blocks)[None] < ((torch.arange(n_tokens) + 1) // ratio)[:, None]
    visible = blocks.all(-1) & complete
    # A block is taken or left as a whole; the partly visible last block is the tail.
    assert torch.equal(blocks.any(-1) & complete, visible)
    return visible.numpy().astype(np.uint8)


@contextmanager
def _recorded_forward(model: Qwen4ExpForCausalLM, datasets: dict, selections: bool = True):
    """While active, a forward pass leaves its intermediate results in `datasets`, the index selections if asked."""
    config = model.config
    ratio = config.indexer_compress_ratio
    handles = []

    def record(module, name, convert):
        def hook(_module, _inputs, output):
            datasets[name] = convert(output)

        handles.append(module.register_forward_hook(hook))

    def streams(output):
        return output[0].reshape(-1, config.hc_count, config.hidden_size).numpy().copy()

    record(model.model.embed_tokens, "embed", lambda output: output[0].numpy().copy())
    record(model.model.hyper_connection_mixer, "final", lambda output: output[0].numpy().copy())
    for number, layer in enumerate(model.model.layers):
        record(layer, f"layers/{number:02d}", streams)
        record(layer.mlp, f"moe/{number:02d}", lambda output: output[0].numpy().copy())
        record(layer.mlp.gate, f"router/{number:02d}/weights", lambda output: output[1].numpy().copy())
        record(layer.mlp.gate, f"router/{number:02d}/experts", lambda output: output[2].numpy().astype(np.int32))
        if layer.ple is not None:
            record(layer.ple, f"ple/{number:02d}", streams)
        if layer.layer_type == "linear_attention":
            record(layer.linear_attn, f"attention/{number:02d}", lambda output: output[0].numpy().copy())
        else:
            record(layer.self_attn, f"attention/{number:02d}", lambda output: output[0][0].numpy().copy())
            if selections:
                record(layer.self_attn.indexer, f"selected/{number:02d}", lambda mask: _selected_blocks(mask, ratio))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward(model: Qwen4ExpForCausalLM, tokens: list, cache=None) -> np.ndarray:
    """Logits [len(tokens), V]."""
    return model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=cache is not None).logits[0].numpy()


def token_difference(values: np.ndarray, expected: np.ndarray) -> float:
    """Largest over tokens (axis 0) of max |x - y| / max |y| over the token's values."""
    difference = np.abs(values - expected).reshape(len(expected), -1).max(axis=1)
    return (difference / np.abs(expected).reshape(len(expected), -1).max(axis=1)).max()


def _cached_run(model: Qwen4ExpForCausalLM, tokens: list) -> dict:
    """Runs the tokens one by one through transformers' cache; what _recorded_forward records, and the logits."""
    cache = DynamicCache(config=model.config)
    parts = {}
    for token in tokens:
        step = {}
        with _recorded_forward(model, step, selections=False):
            step["logits"] = _forward(model, [token], cache)
        for name, values in step.items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def run_model(model: Qwen4ExpForCausalLM, prompt: list, n_new: int, stable_ties: bool = False) -> Recording:
    """Runs the prompt and a greedy continuation; every step computes the whole sequence anew, without a cache.

    The same tokens then go one by one through transformers' cache: the largest difference, which is that of FP32 sums
    in another order, is recorded as noise.
    """
    recording = Recording()
    datasets = recording.datasets
    with watched_topk(recording.margins, stable_ties):
        with _recorded_forward(model, datasets):
            logits = _forward(model, prompt)
        datasets["logits"] = logits.copy()
        tokens, rows = list(prompt), []
        for step in range(n_new):
            row = logits[-1] if step == 0 else _forward(model, tokens)[-1]
            second, first = np.sort(row)[-2:]
            recording.argmax_margin = min(recording.argmax_margin, (first - second) / np.abs(row).max())
            rows.append(row.copy())
            tokens.append(int(row.argmax()))
        cached = _cached_run(model, tokens[:-1])
    for name, values in datasets.items():
        if values.dtype == np.float32:
            recording.noise = max(recording.noise, token_difference(cached[name][: len(prompt)], values))
    datasets["prompt"] = np.array(prompt, dtype=np.int32)
    datasets["greedy"] = np.array(tokens[len(prompt) :], dtype=np.int32)
    datasets["greedy_logits"] = np.stack(rows)
    greedy_noise = token_difference(cached["logits"][len(prompt) - 1 :], datasets["greedy_logits"])
    recording.noise = max(recording.noise, greedy_noise)
    return recording


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _decode_nvfp4(tensors: dict, name: str) -> torch.Tensor:
    codes, scales = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"].float()
    values = _E2M1[torch.stack([codes & 15, codes >> 4], dim=-1).long()].reshape(codes.shape[0], -1, 16)
    return (values * scales[..., None]).reshape(codes.shape[0], -1) * tensors[f"{name}.weight_scale_2"]


def verify_checkpoint(directory: str, model: Qwen4ExpForCausalLM) -> int:
    """Reads the files with the safetensors package, decodes with torch, and compares every parameter of the model.

    Returns the number of tensors that belong to the text model. A difference in one bit raises ValueError.
    """
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        tensors.update(load_file(path))
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith(("mtp.", "model.visual."))}
    for name, expected in model.state_dict().items():
        stored = name.replace("model.", TEXT_PREFIX, 1) if name.startswith("model.") else name
        if stored in text:
            decoded = text[stored].to(expected.dtype)
        elif name.endswith(".ngram_embedding.weight"):
            base = stored[: -len(".weight")]
            shards = [text[f"{base}.shard_{part}.weight"] for part in range(model.config.split_ngram_parts)]
            decoded = torch.cat([shard.float() for shard in shards]) * text[f"{base}.weight_scale"].float()
        else:
            prefix, _, kind = stored.rpartition(".")
            names = PROJECTIONS[:2] if kind == "gate_up_proj" else PROJECTIONS[2:]
            experts = range(model.config.num_experts)
            decoded = torch.stack(
                [torch.cat([_decode_nvfp4(text, f"{prefix}.{expert}.{name}") for name in names]) for expert in experts]
            )
        if not torch.equal(decoded, expected):
            raise ValueError(f"{directory}: {stored} does not decode to the oracle's values")
    return len(text)
