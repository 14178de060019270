"""Names, dtypes, shapes and configuration of the published Qwen3.8-Flash-Next checkpoints. See checkpoint_writer.py."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from number_formats import BLOCK

TEXT_PREFIX = "model.language_model."
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Spec(NamedTuple):
    """What a header says of a tensor."""

    name: str
    dtype: str
    shape: tuple


def text_config(**changes) -> dict:
    """The published text_config, every field, with `changes` applied.

    layer_types and mtp follow num_hidden_layers, full_attention_interval and rope_parameters unless given. A change
    to None for a field that the published file does not have, or that may be absent, drops the field.
    """
    config = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 248044,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "hc_count": 4,
        "hc_lowrank": 320,
        "head_dim": 256,
        "heads_per_ngram": 8,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 128,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 4,
        "initializer_range": 0.02,
        "layer_types": None,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "make_ngram_vocab_size_divisible_by": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "model_type": "qwen4_exp_text",
        "moe_intermediate_size": 640,
        "mtp": None,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "ngram_size": 3,
        "ngram_vocab_size_base": 20000000,
        "num_attention_heads": 24,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "output_gate_type": "sigmoid",
        "output_router_logits": False,
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "ple_conv_kernel_size": 4,
        "ple_embed_dim": 2560,
        "ple_layer_ids": [2],
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 640,
        "split_ngram_parts": 128,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 248320,
    }
    config.update(changes)
    for name in [name for name, value in changes.items() if value is None and name != "pad_token_id"]:
        del config[name]
    if config.get("layer_types") is None:
        interval = config["full_attention_interval"]
        config["layer_types"] = [
            "linear_attention" if (layer + 1) % interval else "full_attention"
            for layer in range(config["num_hidden_layers"])
        ]
    if config.get("mtp") is None:
        config["mtp"] = {
            "hybrid": True,
            "layer_types": ["full_attention"],
            "mtp_use_hidden_state_from_layer": None,
            "num_hidden_layers": 1,
            "rope_theta": config["rope_parameters"]["rope_theta"],
        }
    return config


@dataclass(frozen=True)
class Layout:
    """How the tensors are stored. The defaults are RadixArk's layout."""

    style: str = "radixark"  # or "nvidia": file names, quantisation description, MTP experts
    experts: str = "nvfp4"  # or "fused_bf16": two 3-D tensors a layer
    shared_gate_up_scale: bool = True  # gate and up of an expert carry one weight_scale_2
    a_log_dtype: str = "BF16"  # or "F32"
    single_file: bool = False  # one model.safetensors, no index
    n_expert_files: int = 4  # files a layer (RadixArk)
    n_model_files: int = 3  # model-NNNNN-of-NNNNN files (NVIDIA)
    n_ple_files: int = 10  # files of PLE shards (RadixArk)
    vision_depth: int = 27
    skipped_groups: bool = True  # write mtp.* and model.visual.*
    header: str = "odd"  # see write_safetensors
    reverse_data: bool = False


IGNORED_MODULES = [
    "model.embed_tokens",
    "mtp.*",
    "model.mtp.*",
    "*.self_attn.*",
    "*.linear_attn.*",
    "*.mlp.gate*",
    "*.mlp.shared_expert.*",
    "*.mlp.shared_expert_gate*",
    "*hyper_connection*",
    "*.ple.*",
    "model.visual.*",
    "model.language_model.embed_tokens",
    "lm_head",
]


def quantization_configs(config: dict, layout: Layout):
    """(quantization_config of config.json, contents of hf_quant_config.json), or (None, None) for BF16 experts."""
    if layout.experts == "fused_bf16":
        return None, None
    producer = {"name": "modelopt", "version": "0.46.0"}
    if layout.style == "radixark":
        group = {"dynamic": False, "group_size": BLOCK, "num_bits": 4, "type": "float"}
        inner = {
            "config_groups": {
                "group_0": {"input_activations": dict(group), "targets": ["Linear"], "weights": dict(group)}
            },
            "ignore": IGNORED_MODULES,
            "producer": producer,
            "quant_algo": "NVFP4",
            "quant_method": "modelopt",
        }
        outer = {"quant_algo": "NVFP4", "group_size": BLOCK, "exclude_modules": IGNORED_MODULES}
        return inner, {"producer": producer, "quantization": outer}
    layers = [f"{TEXT_PREFIX}layers.{layer}" for layer in range(config["num_hidden_layers"])]
    quantized = {f"{layer}.mlp.experts": {"quant_algo": "NVFP4", "group_size": BLOCK} for layer in layers}
    for layer_id in config.get("ple_layer_ids") or []:
        quantized[f"{layers[layer_id - 1]}.ple.ple_embedding.ngram_embedding"] = {"quant_algo": "FP8"}
    ignore = ["lm_head", "model.language_model.embed_tokens", "model.language_model.hyper_connection_mixer*"]
    ignore.append("model.visual*")
    for layer, kind in zip(layers, config["layer_types"]):
        attention = "linear_attn" if kind == "linear_attention" else "self_attn"
        modules = (attention, "mlp.gate", "mlp.shared_expert", "mlp.shared_expert_gate")
        ignore += [f"{layer}.{module}*" for module in modules]
        ignore += [f"{layer}.{module}*" for module in ("attn_hyper_connection", "mlp_hyper_connection")]
    mtp = "mtp.layers.0.mlp.experts"
    inner_layers = dict(quantized, **{mtp: {"quant_algo": "FP8_PB_WO", "group_size": 128}})
    outer_layers = dict(quantized, **{mtp: {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 128}})
    inner = {
        "ignore": ignore,
        "producer": producer,
        "quant_algo": "MIXED_PRECISION",
        "quant_method": "modelopt",
        "quantized_layers": inner_layers,
    }
    outer = {"quant_algo": "MIXED_PRECISION", "quantized_layers": outer_layers, "exclude_modules": ignore}
    return inner, {"producer": producer, "quantization": outer}


def model_config(config: dict, layout: Layout) -> dict:
    """Contents of config.json around a text_config."""
    text = dict(config)
    if layout.style == "radixark" and text.get("ple_layer_ids"):
        text["ple_embedding_dtype"] = "float8_e4m3fn"
    vocab = config["vocab_size"]
    result = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "image_token_id": min(248056, vocab - 1),
        "language_model_only": False,
        "model_type": "qwen4_exp",
        "text_config": text,
        "tie_word_embeddings": False,
        "transformers_version": "5.8.0.dev0",
        "video_token_id": min(248057, vocab - 1),
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": layout.vision_depth,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 4304,
            "model_type": "qwen4_exp",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": config["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": min(248054, vocab - 1),
        "vision_start_token_id": min(248053, vocab - 1),
    }
    quantization, _ = quantization_configs(config, layout)
    if quantization:
        result["quantization_config"] = quantization
    return dict(sorted(result.items()))


_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _splitmix64(value: int) -> int:
    value = (value + _GAMMA) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _is_prime(value: int) -> bool:
    return value >= 2 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))


class PleConstants(NamedTuple):
    multipliers: np.ndarray  # int64 [ngram_size]
    sizes: np.ndarray  # int64 [n_heads]
    offsets: np.ndarray  # int64 [n_heads]
    n_rows: int  # of the padded table


def ple_constants(config: dict, ple_index: int) -> PleConstants:
    """Hash constants of the PLE layer at position `ple_index` of ple_layer_ids."""
    half = max(1, ((1 << 63) - 1) // config["vocab_size"] // 2)
    base = config.get("seed", 1234) + 10007 * ple_index
    multipliers = [
        2 * (_splitmix64((base + _GAMMA * (i + 1)) & _MASK64) % half) + 1 for i in range(config["ngram_size"])
    ]
    n_heads = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    primes, candidate = [], config["ngram_vocab_size_base"]
    while len(primes) < n_heads * (ple_index + 1):
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    sizes = primes[-n_heads:]
    offsets = [sum(sizes[:head]) for head in range(n_heads)]
    divisor = config["make_ngram_vocab_size_divisible_by"]
    n_rows = -(-sum(sizes) // divisor) * divisor
    return PleConstants(*(np.array(v, dtype=np.int64) for v in (multipliers, sizes, offsets)), n_rows)


def _mixer_shapes(prefix: str, config: dict, inject: bool) -> dict:
    wide, rank = config["hc_count"] * config["hidden_size"], config["hc_lowrank"]
    shapes = {
        f"{prefix}.hc_norm.weight": (wide,),
        f"{prefix}.input_mix_weight_down.weight": (rank, wide),
        f"{prefix}.input_mix_weight_up.weight": (wide, rank),
    }
    if inject:
        shapes[f"{prefix}.block_inject_weight.weight"] = (config["hc_count"], wide)
    return shapes


def _linear_attention_shapes(prefix: str, config: dict) -> dict:
    hidden, n_values = config["hidden_size"], config["linear_num_value_heads"]
    values = n_values * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    return {
        f"{prefix}.in_proj_qkv.weight": (channels, hidden),
        f"{prefix}.in_proj_z.weight": (values, hidden),
        f"{prefix}.in_proj_b.weight": (n_values, hidden),
        f"{prefix}.in_proj_a.weight": (n_values, hidden),
        f"{prefix}.conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]),
        f"{prefix}.A_log": (n_values,),
        f"{prefix}.dt_bias": (n_values,),
        f"{prefix}.norm.weight": (config["linear_value_head_dim"],),
        f"{prefix}.out_proj.weight": (hidden, values),
    }


def _attention_shapes(prefix: str, config: dict) -> dict:
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    index_head = config["indexer_head_dim"]
    return {
        f"{prefix}.q_proj.weight": (2 * queries, hidden),
        f"{prefix}.k_proj.weight": (keys, hidden),
        f"{prefix}.v_proj.weight": (keys, hidden),
        f"{prefix}.o_proj.weight": (hidden, queries),
        f"{prefix}.q_norm.weight": (head,),
        f"{prefix}.k_norm.weight": (head,),
        f"{prefix}.indexer.index_qk_proj.weight": ((config["indexer_n_heads"] + 1) * index_head, hidden),
        f"{prefix}.indexer.q_layernorm.weight": (index_head,),
        f"{prefix}.indexer.k_layernorm.weight": (index_head,),
    }


def _moe_dense_shapes(prefix: str, config: dict) -> dict:
    hidden, shared = config["hidden_size"], config["shared_expert_intermediate_size"]
    return {
        f"{prefix}.gate.weight": (config["num_experts"], hidden),
        f"{prefix}.shared_expert.gate_proj.weight": (shared, hidden),
        f"{prefix}.shared_expert.up_proj.weight": (shared, hidden),
        f"{prefix}.shared_expert.down_proj.weight": (hidden, shared),
        f"{prefix}.shared_expert_gate.weight": (1, hidden),
    }


def _ple_shapes(prefix: str, config: dict) -> dict:
    hidden, wide, width = config["hidden_size"], config["hc_count"] * config["hidden_size"], config["ple_embed_dim"]
    return {
        f"{prefix}.key_proj.weight": (wide, width),
        f"{prefix}.value_proj.weight": (hidden, width),
        f"{prefix}.norm_key.weight": (wide,),
        f"{prefix}.norm_query.weight": (wide,),
        f"{prefix}.norm_conv.weight": (wide,),
        f"{prefix}.conv1d.weight": (wide, 1, config["ple_conv_kernel_size"]),
    }


def expert_specs(config: dict, layout: Layout, layer: int) -> list:
    """Specs of the routed experts of one layer."""
    n_experts, hidden, inner = config["num_experts"], config["hidden_size"], config["moe_intermediate_size"]
    prefix = f"{TEXT_PREFIX}layers.{layer}.mlp.experts"
    if layout.experts == "fused_bf16":
        return [
            Spec(f"{prefix}.gate_up_proj", "BF16", (n_experts, 2 * inner, hidden)),
            Spec(f"{prefix}.down_proj", "BF16", (n_experts, hidden, inner)),
        ]
    specs = []
    for expert in range(n_experts):
        for projection in PROJECTIONS:
            rows, columns = (hidden, inner) if projection == "down_proj" else (inner, hidden)
            name = f"{prefix}.{expert}.{projection}"
            specs += [
                Spec(f"{name}.weight", "U8", (rows, columns // 2)),
                Spec(f"{name}.weight_scale", "F8_E4M3", (rows, columns // BLOCK)),
                Spec(f"{name}.weight_scale_2", "F32", ()),
                Spec(f"{name}.input_scale", "F32", ()),
            ]
    return specs


def text_specs(config: dict, layout: Layout) -> list:
    """Specs of every tensor of the text model, as stored."""
    shapes = {
        f"{TEXT_PREFIX}embed_tokens.weight": (config["vocab_size"], config["hidden_size"]),
        "lm_head.weight": (config["vocab_size"], config["hidden_size"]),
        **_mixer_shapes(f"{TEXT_PREFIX}hyper_connection_mixer", config, inject=False),
    }
    specs = []
    ple_layer_ids = sorted(set(config.get("ple_layer_ids") or []))
    for layer, kind in enumerate(config["layer_types"]):
        prefix = f"{TEXT_PREFIX}layers.{layer}"
        shapes.update(_mixer_shapes(f"{prefix}.attn_hyper_connection", config, inject=True))
        shapes.update(_mixer_shapes(f"{prefix}.mlp_hyper_connection", config, inject=True))
        if kind == "linear_attention":
            shapes.update(_linear_attention_shapes(f"{prefix}.linear_attn", config))
        else:
            shapes.update(_attention_shapes(f"{prefix}.self_attn", config))
        shapes.update(_moe_dense_shapes(f"{prefix}.mlp", config))
        specs += expert_specs(config, layout, layer)
        if layer + 1 in ple_layer_ids:
            shapes.update(_ple_shapes(f"{prefix}.ple", config))
            specs += _ple_embedding_specs(f"{prefix}.ple.ple_embedding", config, ple_layer_ids.index(layer + 1))
    for name, shape in shapes.items():
        specs.append(Spec(name, layout.a_log_dtype if name.endswith(".A_log") else "BF16", shape))
    return specs


def _ple_embedding_specs(prefix: str, config: dict, ple_index: int) -> list:
    n_heads = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    n_parts = config["split_ngram_parts"]
    n_rows = ple_constants(config, ple_index).n_rows
    if n_rows % n_parts:
        raise ValueError(f"{n_rows} PLE rows do not split into {n_parts} parts")
    shard = (n_rows // n_parts, config["ple_embed_dim"] // n_heads)
    return [
        Spec(f"{prefix}.layer_multipliers", "I64", (config["ngram_size"],)),
        Spec(f"{prefix}.ngram_heads_vocab_sizes", "I64", (n_heads,)),
        Spec(f"{prefix}.ngram_heads_offsets", "I64", (n_heads,)),
        Spec(f"{prefix}.ngram_embedding.weight_scale", "BF16", (1,)),
    ] + [Spec(f"{prefix}.ngram_embedding.shard_{part}.weight", "F8_E4M3", shard) for part in range(n_parts)]


def skipped_specs(config: dict, layout: Layout) -> list:
    """Specs of the `mtp.*` and `model.visual.*` tensors that a text runner skips.

    The names are complete. The vision tower and the MTP expert count are shrunk: nothing reads them.
    """
    hidden, inner, n_experts = config["hidden_size"], config["moe_intermediate_size"], min(config["num_experts"], 2)
    shapes = {
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (config["hc_count"] * hidden,),
        "mtp.fc_embedding.weight": (hidden, hidden),
        "mtp.fc_hidden.weight": (hidden, hidden),
        **_mixer_shapes("mtp.hyper_connection_mixer", config, inject=False),
        **_mixer_shapes("mtp.layers.0.attn_hyper_connection", config, inject=True),
        **_mixer_shapes("mtp.layers.0.mlp_hyper_connection", config, inject=True),
        **_attention_shapes("mtp.layers.0.self_attn", config),
        **_moe_dense_shapes("mtp.layers.0.mlp", config),
    }
    experts = "mtp.layers.0.mlp.experts"
    specs = []
    if layout.style == "nvidia":
        for expert in range(n_experts):
            for projection in PROJECTIONS:
                shape = (hidden, inner) if projection == "down_proj" else (inner, hidden)
                name = f"{experts}.{expert}.{projection}"
                specs.append(Spec(f"{name}.weight", "F8_E4M3", shape))
                specs.append(Spec(f"{name}.weight_scale_inv", "BF16", tuple(-(-n // 128) for n in shape)))
    else:
        shapes[f"{experts}.gate_up_proj"] = (n_experts, 2 * inner, hidden)
        shapes[f"{experts}.down_proj"] = (n_experts, hidden, inner)
    visual = ["patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed.weight"]
    visual += [f"merger.{leaf}.{kind}" for leaf in ("norm", "linear_fc1", "linear_fc2") for kind in ("weight", "bias")]
    for block in range(layout.vision_depth):
        for leaf in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"):
            visual += [f"blocks.{block}.{leaf}.weight", f"blocks.{block}.{leaf}.bias"]
    shapes.update({f"model.visual.{name}": (3,) for name in visual})
    return specs + [Spec(name, "BF16", shape) for name, shape in shapes.items()]
