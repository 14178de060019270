"""Goldens of single operators: transformers' modules, their projections replaced by slices of a given input.

Layout of the file: tests/golden/README.md. Weights are random values exact in BF16.
"""

import itertools
from contextlib import contextmanager
from unittest import mock

import h5py
import numpy as np
import torch
import transformers.models.qwen4_exp.modeling_qwen4_exp as modeling

from checkpoint_writer import ple_constants, text_config
from golden_oracle import VERSIONS, StableTopk, oracle_config, write_dataset
from number_formats import bf16_round, fp8_dequantize, fp8_quantize, nvfp4_dequantize, nvfp4_quantize

MIN_MARGIN = 1e-3
EPS = 1e-6


class Columns(torch.nn.Module):
    """Stands in for a projection: takes columns begin ... begin + width - 1 of its input."""

    def __init__(self, begin: int, width: int):
        super().__init__()
        self.columns = slice(begin, begin + width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., self.columns]


class StateRecorder:
    """Stands in for a cache at the start of a sequence and keeps what is stored into it."""

    def __init__(self):
        self.conv_inputs = {}  # state_idx -> [1, channels, n_tokens]
        self.recurrent = None

    def get_conv_state(self, _layer, state_idx=0):
        return None

    def get_recurrent_state(self, _layer, state_idx=0):
        return None

    def update_conv_state(self, inputs, _layer, state_idx=0, conv_kernel_size=None):
        self.conv_inputs[state_idx] = inputs
        return inputs

    def update_recurrent_state(self, state, _layer):
        self.recurrent = state

    def last_inputs(self, state_idx: int, n: int) -> np.ndarray:
        """The last n inputs of a convolution, zeros before the first one: [n, channels]."""
        inputs = self.conv_inputs[state_idx][0].numpy().T
        return np.concatenate([np.zeros((n, inputs.shape[1]), np.float32), inputs])[-n:]


class RowRecorder(torch.nn.Module):
    """Stands in for the n-gram table of the real model, which no test machine can hold."""

    def __init__(self, _n_rows: int, _width: int):
        super().__init__()
        self.weight = torch.empty(0)
        self.rows = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows = rows[0]
        return rows[..., None].float()


def hash_module(config, ple_index: int):
    """The oracle's n-gram embedding without its table."""
    with mock.patch.object(modeling.nn, "Embedding", RowRecorder):
        return modeling.Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, 0, ple_index)


def hash_rows(embedding, tokens: torch.Tensor) -> torch.Tensor:
    """Tokens [1, n] of a whole sequence -> rows [n, n_heads]."""
    embedding(tokens, None)
    return embedding.ngram_embedding.rows


def weight(rng: np.random.Generator, *shape: int, around: float = 0.0, std: float = 0.25) -> np.ndarray:
    return bf16_round((around + std * rng.standard_normal(shape)).astype(np.float32))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def set_parameter(module: torch.nn.Module, name: str, values: np.ndarray) -> None:
    parameter = module.get_parameter(name)
    parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))


def small_config(**changes):
    """A configuration with the given sizes and PLE only where it is asked for."""
    defaults = {"ple_layer_ids": [], "vocab_size": 64, "bos_token_id": 60, "eos_token_id": 60}
    defaults.update(num_experts=8, num_experts_per_tok=2)
    return oracle_config(text_config(**{**defaults, **changes}))


@contextmanager
def recorded_topk(scores_list: list, stable: bool):
    """While active, keeps (values, k) of every topk of the indexer; with `stable`, ties go to the lower index."""
    method = torch.Tensor.topk

    def watched(scores, k, dim=0):
        scores_list.append((scores.clone(), k))
        return StableTopk(scores, k) if stable else method(scores, k, dim=dim)

    with mock.patch.object(torch.Tensor, "topk", watched):
        yield


@contextmanager
def recorded_rotations(outputs: list):
    """While active, keeps what every apply_rotary_pos_emb returns."""
    function = modeling.apply_rotary_pos_emb

    def watched(*args, **kwargs):
        outputs.append(function(*args, **kwargs))
        return outputs[-1]

    with mock.patch.object(modeling, "apply_rotary_pos_emb", watched):
        yield


def gr(seed: int, n: int, streams: int, hidden: int, rank: int, inject: bool):
    """Gated residual: mix, and inject where the mixer has it."""
    rng = np.random.default_rng(seed)
    wide = streams * hidden
    config = small_config(hc_count=streams, hidden_size=hidden, hc_lowrank=rank)
    module = modeling.Qwen4ExpTextGatedResidual(config, use_combine=inject)
    data = {
        "h": 3 * normal(rng, n, streams, hidden),
        "hc_norm": weight(rng, wide),
        "down": weight(rng, rank, wide, std=3 / wide**0.5),
        "up": weight(rng, wide, rank, std=3 / rank**0.5),
    }
    set_parameter(module, "hc_norm.weight", data["hc_norm"])
    set_parameter(module, "input_mix_weight_down.weight", data["down"])
    set_parameter(module, "input_mix_weight_up.weight", data["up"])
    h = torch.from_numpy(data["h"]).reshape(1, n, wide)
    if inject:
        data["block_inject"] = weight(rng, streams, wide, std=5 / wide**0.5)
        data["o"] = normal(rng, n, hidden)
        set_parameter(module, "block_inject_weight.weight", data["block_inject"])
        u, _, weights = module(h)
        # As in Qwen4ExpTextDecoderLayer.forward.
        injected = h + (torch.from_numpy(data["o"])[None].unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2)
        data["inject"], data["h_out"] = weights[0].numpy(), injected.reshape(n, streams, hidden).numpy()
    else:
        u = module(h)
    data["u"] = u[0].numpy()
    sizes = {"n_tokens": n, "hc_count": streams, "hidden_size": hidden, "hc_lowrank": rank, "rms_norm_eps": EPS}
    return sizes, data


def gdn(seed: int, n: int, keys: int, values: int, key_dim: int, value_dim: int, kernel: int, gate: str):
    """Gated DeltaNet between its projections, from zero state."""
    rng = np.random.default_rng(seed)
    channels = 2 * keys * key_dim + values * value_dim
    config = small_config(
        linear_num_key_heads=keys,
        linear_num_value_heads=values,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=value_dim,
        linear_conv_kernel_dim=kernel,
        output_gate_type=gate,
    )
    module = modeling.Qwen4ExpTextGatedDeltaNet(config, 0)
    z_width = values * value_dim
    z = rng.uniform(-6, 6, (n, z_width)).astype(np.float32)
    a = 2 * normal(rng, n, values)
    # softplus must neither overflow nor lose its tail.
    a[0, 0], a[1, -1] = 40, -40
    data = {
        "projected": np.concatenate([normal(rng, n, channels), z, normal(rng, n, values), a], axis=1),
        "conv": weight(rng, channels, kernel, std=0.5),
        "A_log": weight(rng, values, around=-1.5, std=0.7),
        "dt_bias": weight(rng, values, std=1.0),
        "norm": weight(rng, value_dim, around=1.0, std=0.2),
    }
    names = {"conv": "conv1d.weight", "norm": "norm.weight", "A_log": "A_log", "dt_bias": "dt_bias"}
    for name, parameter in names.items():
        set_parameter(module, parameter, data[name])
    module.in_proj_qkv = Columns(0, channels)
    module.in_proj_z = Columns(channels, z_width)
    module.in_proj_b = Columns(channels + z_width, values)
    module.in_proj_a = Columns(channels + z_width + values, values)
    module.out_proj = torch.nn.Identity()
    cache = StateRecorder()
    data["y"] = module(torch.from_numpy(data["projected"])[None], cache=cache)[0].numpy()
    data["conv_state_out"] = cache.last_inputs(0, kernel - 1)
    data["state_out"] = cache.recurrent[0].numpy()
    sizes = {
        "n_tokens": n,
        "n_key_heads": keys,
        "n_value_heads": values,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "conv_kernel": kernel,
        "silu_gate": int(gate == "silu"),
        "rms_norm_eps": EPS,
    }
    return sizes, data


def qsa(seed, n: int, shape: tuple, index_shape: tuple, ratio: int, select: int, theta=1e7, equal_scores=False):
    """QSA attention between its projections, from position 0. Seeds with a near tie at the cut are passed over."""
    heads, kv_heads, dim, rotary = shape
    index_heads, index_dim = index_shape
    rope_parameters = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotary / dim}
    config = small_config(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        rope_parameters={**rope_parameters, "mrope_section": [rotary // 2, 0, 0], "mrope_interleaved": True},
        partial_rotary_factor=rotary / dim,
        indexer_n_heads=index_heads,
        indexer_head_dim=index_dim,
        indexer_budget=ratio * select,
        indexer_compress_ratio=ratio,
    )
    module = modeling.Qwen4ExpTextAttention(config, 3)
    widths = [2 * heads * dim, kv_heads * dim, kv_heads * dim, (index_heads + 1) * index_dim]
    begins = [0, *itertools.accumulate(widths)]
    module.q_proj, module.k_proj, module.v_proj, module.indexer.index_qk_proj = (
        Columns(begin, width) for begin, width in zip(begins, widths)
    )
    module.o_proj = torch.nn.Identity()
    for attempt in itertools.count():
        rng = np.random.default_rng([seed, attempt])
        data = {
            "projected": normal(rng, n, begins[-1]),
            "q_norm": weight(rng, dim),
            "k_norm": weight(rng, dim),
            "index_q_norm": weight(rng, index_dim),
            "index_k_norm": weight(rng, index_dim),
        }
        if equal_scores:
            data["projected"][:, begins[3] : begins[4] - index_dim] = 0
        for name, parameter in (
            ("q_norm", "q_norm.weight"),
            ("k_norm", "k_norm.weight"),
            ("index_q_norm", "indexer.q_layernorm.weight"),
            ("index_k_norm", "indexer.k_layernorm.weight"),
        ):
            set_parameter(module, parameter, data[name])
        x = torch.from_numpy(data["projected"])[None]
        positions = torch.arange(n).expand(3, 1, -1)
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        cuts, rotations = [], []
        with recorded_topk(cuts, stable=equal_scores), recorded_rotations(rotations):
            rope = modeling.Qwen4ExpTextRotaryEmbedding(config)(x, positions)
            data["y"] = module(x, rope, mask)[0][0].numpy()
        gaps = [torch.sort(scores, descending=True).values for scores, k in cuts if len(scores) > k]
        if equal_scores or all((gap[select - 1] - gap[select]) > MIN_MARGIN * gap[0] for gap in gaps):
            break
    n_blocks = n // ratio
    data["scores"] = np.full((n, n_blocks), -1, np.float32)
    data["blocks"] = np.full((n, select), -1, np.int32)
    data["n_blocks"] = np.zeros(n, np.int32)
    for query, (scores, k) in enumerate(cuts, start=ratio - 1):
        chosen = StableTopk(scores, k).indices.sort().values
        data["scores"][query, : len(scores)] = scores.numpy()
        data["blocks"][query, :k] = chosen.numpy()
        data["n_blocks"][query] = k
    query, key = rotations[-1]
    data["q"] = query[0].transpose(0, 1).contiguous().numpy()
    data["k"] = key[0].numpy()
    value = data["projected"][:, begins[2] : begins[3]].reshape(n, kv_heads, dim)
    data["v"] = np.ascontiguousarray(value.transpose(1, 0, 2))
    data["index_q"] = rotations[0][0].numpy()
    # The last query of the prompt sees every block.
    data["index_keys"] = rotations[-2][:, 0].numpy()
    sizes = {
        "n_tokens": n,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": dim,
        "rotary_dim": rotary,
        "index_n_heads": index_heads,
        "index_dim": index_dim,
        "ratio": ratio,
        "n_select": select,
        "rope_theta": float(theta),
        "rms_norm_eps": EPS,
    }
    return sizes, data


def router(seed: int, n: int, n_experts: int, top_k: int, norm: bool, equal_logits: bool = False):
    """Softmax, top k and renormalisation. With equal_logits many are equal, and the lower id must win."""
    config = small_config(hidden_size=n_experts, num_experts=n_experts, num_experts_per_tok=top_k, norm_topk_prob=norm)
    module = modeling.Qwen4ExpTextTopKRouter(config)
    module.weight.copy_(torch.eye(n_experts))
    for attempt in itertools.count():
        rng = np.random.default_rng([seed, attempt])
        logits = 2 * normal(rng, n, n_experts + 1)
        if equal_logits:
            logits = np.round(logits)
        top = np.sort(logits[:, :-1], axis=1)[:, ::-1][:, : top_k + 1]
        if equal_logits or np.diff(-top, axis=1).min() > MIN_MARGIN:
            break
    topk = StableTopk if equal_logits else torch.topk
    with mock.patch.object(torch, "topk", lambda values, k, dim: topk(values, k)):
        _, weights, experts = module(torch.from_numpy(logits[:, :-1].copy()))
    data = {
        "logits": logits,
        "experts": experts.numpy().astype(np.int32),
        "weights": weights.numpy(),
        "shared_gate": torch.sigmoid(torch.from_numpy(logits[:, -1])).numpy(),
    }
    return {"n_tokens": n, "n_experts": n_experts, "top_k": top_k, "norm_topk_prob": int(norm)}, data


def moe(seed: int, n: int, n_experts: int, top_k: int, hidden: int, inner: int, shared: int, fp16: bool):
    """Routed experts (NVFP4, or values exact in FP16) and the shared expert."""
    rng = np.random.default_rng(seed)
    config = small_config(
        hidden_size=hidden,
        moe_intermediate_size=inner,
        shared_expert_intermediate_size=shared,
        num_experts=n_experts,
        num_experts_per_tok=top_k,
    )
    module = modeling.Qwen4ExpTextSparseMoeBlock(config)
    gate_up = normal(rng, n_experts, 2 * inner, hidden) * 2 / hidden**0.5
    down = normal(rng, n_experts, hidden, inner) * 2 / inner**0.5
    data = {
        "u": normal(rng, n, hidden),
        "shared_gate_up": weight(rng, 2 * shared, hidden, std=2 / hidden**0.5),
        "shared_down": weight(rng, hidden, shared, std=2 / shared**0.5),
    }
    if fp16:
        data["gate_up"] = gate_up.astype(np.float16).astype(np.float32)
        data["down"] = down.astype(np.float16).astype(np.float32)
        gate_up, down = data["gate_up"], data["down"]
    else:
        halves = [[nvfp4_quantize(half) for half in np.split(matrix, 2)] for matrix in gate_up]
        downs = [nvfp4_quantize(matrix) for matrix in down]
        data["gate_up_codes"] = np.stack([np.concatenate([half.codes for half in pair]) for pair in halves])
        data["gate_up_scales"] = np.stack([np.concatenate([half.scales for half in pair]) for pair in halves])
        data["gate_up_scale_2"] = np.array([[half.scale_2 for half in pair] for pair in halves])
        data["down_codes"] = np.stack([matrix.codes for matrix in downs])
        data["down_scales"] = np.stack([matrix.scales for matrix in downs])
        data["down_scale_2"] = np.array([matrix.scale_2 for matrix in downs])
        gate_up = np.stack([np.concatenate([nvfp4_dequantize(half) for half in pair]) for pair in halves])
        down = np.stack([nvfp4_dequantize(matrix) for matrix in downs])
    set_parameter(module, "experts.gate_up_proj", gate_up)
    set_parameter(module, "experts.down_proj", down)
    set_parameter(module, "shared_expert.gate_proj.weight", data["shared_gate_up"][:shared])
    set_parameter(module, "shared_expert.up_proj.weight", data["shared_gate_up"][shared:])
    set_parameter(module, "shared_expert.down_proj.weight", data["shared_down"])
    set_parameter(module, "gate.weight", weight(rng, n_experts, hidden, std=2 / hidden**0.5))
    set_parameter(module, "shared_expert_gate.weight", weight(rng, 1, hidden, std=2 / hidden**0.5))
    recorded = {}
    for part in ("gate", "experts", "shared_expert_gate"):
        getattr(module, part).register_forward_hook(lambda _m, _i, output, part=part: recorded.update({part: output}))
    data["o"] = module(torch.from_numpy(data["u"])[None])[0].numpy()
    _, weights, experts = recorded["gate"]
    data["experts"], data["weights"] = experts.numpy().astype(np.int32), weights.numpy()
    data["o_experts"] = recorded["experts"].numpy()
    data["shared_gate"] = torch.sigmoid(recorded["shared_expert_gate"])[:, 0].numpy()
    sizes = {
        "n_tokens": n,
        "n_experts": n_experts,
        "top_k": top_k,
        "hidden_size": hidden,
        "intermediate": inner,
        "shared_intermediate": shared,
    }
    return sizes, data


def ple(seed: int, n: int, streams: int, hidden: int, heads: int, width: int, ngram: int, kernel: int, index: int):
    """PLE layer from the start of a sequence: hash, gather, projections, gate, convolution."""
    rng = np.random.default_rng(seed)
    n_heads = (ngram - 1) * heads
    sizes = {
        "vocab_size": 64,
        "eos_token_id": 60,
        "ngram_size": ngram,
        "heads_per_ngram": heads,
        "ngram_vocab_size_base": 40,
        "make_ngram_vocab_size_divisible_by": 16,
        "seed": 1234 + seed,
        "hc_count": streams,
        "hidden_size": hidden,
        "ple_embed_dim": n_heads * width,
        "ple_conv_kernel_size": kernel,
    }
    config = small_config(**sizes, ple_layer_ids=[1])
    module = modeling.Qwen4ExpTextPLELayer(config, 0, index)
    wide, width_in = streams * hidden, n_heads * width
    tokens = rng.integers(0, 60, n)
    tokens[[2, 3]] = 60
    n_rows = ple_constants(sizes, index).n_rows
    codes, scale = fp8_quantize(0.03 * normal(rng, n_rows, width))
    data = {
        "tokens": tokens.astype(np.int32),
        "table_codes": codes,
        "table_scale": np.array([scale]),
        "key_proj": weight(rng, wide, width_in, std=30 / width_in**0.5),
        "value_proj": weight(rng, hidden, width_in, std=30 / width_in**0.5),
        "norm_key": weight(rng, wide),
        "norm_query": weight(rng, wide),
        "norm_conv": weight(rng, wide),
        "conv": weight(rng, wide, kernel, std=0.5),
        "h": normal(rng, n, streams, hidden),
    }
    # A zero gate: sign(0) = 0.
    data["h"][1, 0] = 0
    set_parameter(module, "ple_embedding.ngram_embedding.weight", fp8_dequantize(codes, scale))
    set_parameter(module, "conv1d.weight", data["conv"])
    for name in ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv"):
        set_parameter(module, f"{name}.weight", data[name])
    recorded = {}
    for part in (module.ple_embedding, module.key_proj, module.value_proj):
        part.register_forward_hook(lambda part, _inputs, output: recorded.update({part: output[0]}))
    table = module.ple_embedding.ngram_embedding
    table.register_forward_hook(lambda part, inputs, _output: recorded.update({part: inputs[0][0]}))
    cache = StateRecorder()
    h = torch.from_numpy(data["h"]).reshape(1, n, wide)
    added = module(h, torch.from_numpy(tokens)[None], cache)
    data["rows"] = recorded[table].numpy()
    data["e"] = recorded[module.ple_embedding].numpy()
    data["projected"] = torch.cat([recorded[module.key_proj], recorded[module.value_proj]], dim=-1).numpy()
    data["h_out"] = (h + added).reshape(n, streams, hidden).numpy()
    data["conv_state_out"] = cache.last_inputs(1, (kernel - 1) * ngram)
    sizes.update(n_tokens=n, n_heads=n_heads, row_width=width, conv_kernel=kernel, dilation=ngram)
    return {**sizes, "ple_index": index, "rms_norm_eps": EPS}, data


def nvfp4(seed: int, n_rows: int, n_columns: int, edges: bool):
    """Quantisation of a matrix that is exact in BF16."""
    rng = np.random.default_rng(seed)
    matrix = normal(rng, n_rows, n_columns) * np.exp(normal(rng, n_rows, 1))
    if edges:
        matrix[0] = 0  # zero blocks: scale 1
        matrix[1, :16] = [2688, -2688, *[0.0] * 14]  # makes weight_scale_2 exactly 1
        ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6]
        matrix[2, :16] = [*ties, *[-tie for tie in ties]]
        matrix[3] = 1e-5 * matrix[3]  # block scales that underflow to 0
        matrix[4] = 0.01 * matrix[4]  # subnormal block scales
    matrix = bf16_round(matrix.astype(np.float32))
    quantized = nvfp4_quantize(matrix)
    data = {"matrix": matrix, "codes": quantized.codes, "scales": quantized.scales}
    data.update(scale_2=np.array([quantized.scale_2]), values=nvfp4_dequantize(quantized))
    return {"n_rows": n_rows, "n_columns": n_columns}, data


def case(function, **arguments):
    return function, arguments


# operator -> case -> (function, arguments)
CASES = {
    "gr": {
        "four_streams": case(gr, n=5, streams=4, hidden=24, rank=7, inject=True),
        "three_streams": case(gr, n=3, streams=3, hidden=33, rank=5, inject=True),
        "final": case(gr, n=4, streams=4, hidden=24, rank=7, inject=False),
    },
    "gdn": {
        "sigmoid": case(gdn, n=9, keys=2, values=6, key_dim=10, value_dim=10, kernel=4, gate="sigmoid"),
        "silu": case(gdn, n=9, keys=2, values=6, key_dim=10, value_dim=10, kernel=4, gate="silu"),
        "long": case(gdn, n=70, keys=2, values=2, key_dim=8, value_dim=6, kernel=3, gate="sigmoid"),
        "real_heads": case(gdn, n=4, keys=1, values=3, key_dim=128, value_dim=128, kernel=4, gate="sigmoid"),
        "two_tokens": case(gdn, n=2, keys=3, values=9, key_dim=5, value_dim=7, kernel=4, gate="sigmoid"),
    },
    # shape: heads, KV heads, head_dim, rotary_dim; index_shape: heads, head_dim
    "qsa": {
        "sparse": case(qsa, n=27, shape=(4, 2, 12, 6), index_shape=(4, 10), ratio=4, select=2),
        "ratio3": case(qsa, n=17, shape=(3, 1, 8, 4), index_shape=(3, 6), ratio=3, select=3, theta=10000.0),
        "dense": case(qsa, n=11, shape=(2, 2, 16, 4), index_shape=(2, 8), ratio=4, select=8),
        "real_heads": case(qsa, n=14, shape=(2, 1, 256, 64), index_shape=(4, 128), ratio=4, select=2),
        "ties": case(qsa, n=19, shape=(2, 1, 8, 4), index_shape=(2, 6), ratio=4, select=2, equal_scores=True),
    },
    "router": {
        "ten_of_512": case(router, n=5, n_experts=512, top_k=10, norm=True),
        "unnormed": case(router, n=4, n_experts=11, top_k=3, norm=False),
        "ties": case(router, n=6, n_experts=40, top_k=7, norm=True, equal_logits=True),
    },
    "moe": {
        "nvfp4": case(moe, n=5, n_experts=6, top_k=3, hidden=48, inner=32, shared=20, fp16=False),
        "fp16": case(moe, n=4, n_experts=5, top_k=2, hidden=24, inner=10, shared=6, fp16=True),
    },
    "ple": {
        "short": case(ple, n=5, streams=4, hidden=12, heads=3, width=4, ngram=3, kernel=4, index=0),
        "long": case(ple, n=23, streams=4, hidden=12, heads=3, width=4, ngram=3, kernel=4, index=1),
        "order4": case(ple, n=19, streams=2, hidden=20, heads=2, width=5, ngram=4, kernel=3, index=0),
    },
    "nvfp4": {
        "random": case(nvfp4, n_rows=6, n_columns=48, edges=False),
        "edges": case(nvfp4, n_rows=6, n_columns=32, edges=True),
    },
}


def make_ops(path: str) -> None:
    """Writes ops.h5."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "galvani-golden-ops"
        for name, version in VERSIONS.items():
            file.attrs[name] = version
        for op, cases in CASES.items():
            for seed, (name, (make, arguments)) in enumerate(cases.items()):
                sizes, data = make(seed=seed, **arguments)
                group = file.create_group(f"{op}/{name}")
                for size, value in sizes.items():
                    group.attrs[size] = np.float64(value) if isinstance(value, float) else np.int64(value)
                for dataset, values in data.items():
                    write_dataset(group, dataset, values)
    print(f"ops.h5: {sum(map(len, CASES.values()))} cases of {len(CASES)} operators")
