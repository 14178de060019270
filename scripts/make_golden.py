#!/usr/bin/env python3
"""Writes tests/golden: small random checkpoints and what transformers computes from them.

    pip install torch transformers h5py safetensors numpy
    make golden PYTHON=python3        (or: python3 scripts/make_golden.py [CASE...])

Every case has a fixed seed, so a rerun with the same versions gives the same bytes. The layout of the files is
described in tests/golden/README.md. Not needed to run the tests.

Where the router's or the indexer's cut falls on a near tie, two right programs may differ, so the seeds are those with
a clear margin: `CASE --search N` prints the margins of seeds 1 to N.
"""

import argparse
import os
import shutil
from dataclasses import dataclass

import h5py
import numpy as np
import torch

import golden_ops
from checkpoint_writer import Layout, ple_constants, quantize_state, text_config, write_checkpoint, write_json
from golden_oracle import (
    VERSIONS,
    build_model,
    load_state,
    oracle_config,
    random_state,
    run_model,
    verify_checkpoint,
    write_dataset,
)

TOLERANCE = 1e-4
MIN_ROUTER_MARGIN = 2e-4
MIN_INDEX_MARGIN = 5e-4
MIN_ARGMAX_MARGIN = 2e-3
MAX_NOISE = 2e-5


@dataclass
class Case:
    """One model: its configuration, its files, its prompt."""

    seed: int
    tp_sizes: list
    config: dict  # changes to the published text_config
    layout: Layout
    n_prompt: int
    n_new: int
    n_used_tokens: int  # ids from here on are the unused tail of the vocabulary
    eos_positions: tuple = ()
    equal_index_scores: bool = False
    also_nvfp4: bool = False  # a second golden with the experts quantised


def rope(rotary_dim: int, theta: float, factor: float) -> dict:
    """The two rope fields for `rotary_dim` rotated dimensions, `factor` being their share of head_dim."""
    pairs = rotary_dim // 2
    section = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return {
        "partial_rotary_factor": factor,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": section,
            "partial_rotary_factor": factor,
            "rope_theta": theta,
            "rope_type": "default",
        },
    }


def small_ple(**changes) -> dict:
    fields = {
        "heads_per_ngram": 4,
        "make_ngram_vocab_size_divisible_by": 24,
        "ngram_vocab_size_base": 100,
        "ple_embed_dim": 64,
        "ple_layer_ids": [2],
        "split_ngram_parts": 12,
    }
    return {**fields, **changes}


CASES = {
    "mixed": Case(
        seed=51,
        tp_sizes=[1, 2, 4],
        config=dict(
            **rope(8, 10000000, 0.25),
            **small_ple(),
            bos_token_id=290,
            eos_token_id=290,
            hc_lowrank=16,
            head_dim=32,
            hidden_size=64,
            indexer_budget=16,
            indexer_head_dim=16,
            linear_key_head_dim=16,
            linear_num_key_heads=4,
            linear_num_value_heads=12,
            linear_value_head_dim=16,
            max_position_embeddings=1024,
            moe_intermediate_size=64,
            num_attention_heads=8,
            num_experts=16,
            num_experts_per_tok=4,
            num_hidden_layers=8,
            shared_expert_intermediate_size=64,
            vocab_size=320,
        ),
        layout=Layout(n_expert_files=2, n_ple_files=3, shared_gate_up_scale=False),
        n_prompt=54,
        n_new=24,
        n_used_tokens=300,
        eos_positions=(0, 7, 8, 10, 30, 52),
    ),
    "experts512": Case(
        seed=23,
        tp_sizes=[1, 2],
        config=dict(
            **rope(4, 10000000, 0.25),
            bos_token_id=120,
            eos_token_id=120,
            full_attention_interval=2,
            hc_lowrank=8,
            head_dim=16,
            hidden_size=32,
            indexer_budget=16,
            indexer_head_dim=8,
            linear_key_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_value_head_dim=8,
            max_position_embeddings=256,
            moe_intermediate_size=32,
            num_attention_heads=4,
            num_hidden_layers=2,
            ple_layer_ids=[],
            shared_expert_intermediate_size=32,
            vocab_size=128,
        ),
        layout=Layout(single_file=True, vision_depth=1),
        n_prompt=30,
        n_new=12,
        n_used_tokens=124,
        eos_positions=(9,),
    ),
    "tp8": Case(
        seed=22,
        tp_sizes=[1, 2, 4, 8],
        config=dict(
            **rope(4, 10000000, 0.25),
            **small_ple(ple_layer_ids=[1]),
            bos_token_id=290,
            eos_token_id=290,
            hc_lowrank=16,
            head_dim=16,
            hidden_size=48,
            indexer_budget=16,
            indexer_head_dim=16,
            linear_key_head_dim=8,
            linear_num_key_heads=8,
            linear_num_value_heads=24,
            linear_value_head_dim=8,
            max_position_embeddings=1024,
            moe_intermediate_size=128,
            num_attention_heads=8,
            num_experts=8,
            num_experts_per_tok=3,
            num_hidden_layers=4,
            shared_expert_intermediate_size=128,
            vocab_size=320,
        ),
        layout=Layout(n_expert_files=1, n_ple_files=2, vision_depth=1),
        n_prompt=41,
        n_new=20,
        n_used_tokens=300,
        eos_positions=(5, 20),
    ),
    "two_ple": Case(
        seed=20,
        tp_sizes=[1, 2],
        config=dict(
            **rope(8, 10000, 0.5),
            **small_ple(ple_layer_ids=[1, 3], ple_embed_dim=32, heads_per_ngram=2, ngram_vocab_size_base=150),
            bos_token_id=200,
            eos_token_id=[200, 202],
            hc_count=3,
            hc_lowrank=12,
            head_dim=16,
            hidden_size=48,
            indexer_budget=8,
            indexer_compress_ratio=2,
            indexer_head_dim=12,
            indexer_n_heads=3,
            linear_conv_kernel_dim=3,
            linear_key_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_value_head_dim=16,
            max_position_embeddings=512,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=3,
            num_hidden_layers=4,
            num_key_value_heads=1,
            output_gate_type=None,
            ple_conv_kernel_size=3,
            seed=4321,
            shared_expert_intermediate_size=64,
            vocab_size=216,
        ),
        layout=Layout(style="nvidia", a_log_dtype="F32", header="natural", reverse_data=True, vision_depth=1),
        n_prompt=33,
        n_new=16,
        n_used_tokens=210,
        eos_positions=(4, 5, 19),
    ),
    "fused_bf16": Case(
        seed=1,
        tp_sizes=[1, 2],
        config=dict(
            **rope(4, 10000000, 0.25),
            **small_ple(ple_embed_dim=32),
            bos_token_id=200,
            eos_token_id=200,
            hc_lowrank=8,
            head_dim=16,
            hidden_size=32,
            indexer_budget=16,
            indexer_head_dim=8,
            linear_key_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_value_head_dim=8,
            max_position_embeddings=512,
            moe_intermediate_size=32,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=2,
            num_hidden_layers=4,
            shared_expert_intermediate_size=32,
            vocab_size=216,
        ),
        layout=Layout(experts="fused_bf16", n_expert_files=1, n_ple_files=2, vision_depth=1),
        n_prompt=30,
        n_new=16,
        n_used_tokens=210,
        eos_positions=(11,),
        also_nvfp4=True,
    ),
    "ties": Case(
        seed=9,
        tp_sizes=[1, 2],
        config=dict(
            **rope(4, 10000000, 0.25),
            bos_token_id=200,
            eos_token_id=200,
            full_attention_interval=2,
            hc_lowrank=8,
            head_dim=16,
            hidden_size=32,
            indexer_budget=12,
            indexer_head_dim=8,
            linear_key_head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_value_head_dim=8,
            max_position_embeddings=512,
            moe_intermediate_size=32,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=2,
            num_hidden_layers=2,
            ple_layer_ids=[],
            shared_expert_intermediate_size=32,
            vocab_size=216,
        ),
        layout=Layout(n_expert_files=1, vision_depth=1),
        n_prompt=30,
        n_new=12,
        n_used_tokens=210,
        equal_index_scores=True,
    ),
}


def make_prompt(case: Case, seed: int) -> list:
    """Random used tokens, EOS at the case's positions."""
    config = text_config(**case.config)
    eos = config["eos_token_id"]
    eos = eos[0] if isinstance(eos, list) else eos
    tokens = np.random.default_rng([seed, 1]).integers(0, min(eos, case.n_used_tokens), case.n_prompt).tolist()
    for position in case.eos_positions:
        tokens[position] = eos
    return tokens


def make_state(case: Case, config: dict, seed: int, model) -> dict:
    """Random weights of one case, before they are rounded to what the checkpoint stores."""
    state = random_state(model, seed)
    for name, values in state.items():
        if case.equal_index_scores and name.endswith(".index_qk_proj.weight"):
            values[: config["indexer_n_heads"] * config["indexer_head_dim"]] = 0
        if case.layout.experts == "fused_bf16" and ".experts." in name:
            # A BF16 value below 2^-17 may need more bits than FP16 has there.
            values[np.abs(values) < 2.0**-16] = 0
    return state


def end_tokens(config: dict) -> set:
    eos = config["eos_token_id"]
    return set(eos) if isinstance(eos, list) else {eos, eos + 2}


def faults(case: Case, config: dict, recording) -> list:
    """Reasons why a recording is not fit to be a golden."""
    greedy = set(recording.datasets["greedy"].tolist())
    reasons = []
    if greedy & end_tokens(config):
        reasons.append("an end token is generated")
    if max(greedy) >= case.n_used_tokens:
        reasons.append("an unused token is generated")
    if len(greedy) < 4:
        reasons.append("the continuation repeats itself")
    if recording.margins.n_sparse == 0:
        reasons.append("the index budget is never exceeded")
    if recording.margins.router < MIN_ROUTER_MARGIN:
        reasons.append("a router's cut is a near tie")
    if not case.equal_index_scores and recording.margins.index < MIN_INDEX_MARGIN:
        reasons.append("an indexer's cut is a near tie")
    if recording.argmax_margin < MIN_ARGMAX_MARGIN:
        reasons.append("an argmax is a near tie")
    if recording.noise > MAX_NOISE:
        reasons.append("rounding is amplified")
    return reasons


def describe(recording) -> str:
    margins = recording.margins
    return (
        f"router {margins.router:.1e}, index {margins.index:.1e} ({margins.n_sparse} sparse), "
        f"argmax {recording.argmax_margin:.1e}, noise {recording.noise:.1e}"
    )


def write_golden(path: str, case: Case, recording) -> None:
    """Writes one golden.h5, as tests/golden/README.md lays it out."""
    with h5py.File(path, "w") as file:
        for name, values in sorted(recording.datasets.items()):
            write_dataset(file, name, values)
        file.attrs["format"] = "galvani-golden"
        file.attrs["seed"] = case.seed
        file.attrs["tp_sizes"] = np.array(case.tp_sizes, dtype=np.int32)
        file.attrs["tolerance"] = TOLERANCE
        file.attrs["min_router_margin"] = recording.margins.router
        file.attrs["min_index_margin"] = recording.margins.index
        file.attrs["min_argmax_margin"] = recording.argmax_margin
        file.attrs["noise"] = recording.noise
        for name, version in VERSIONS.items():
            file.attrs[name] = version


def run_case(case: Case, config: dict, model, stored: dict, seed: int):
    load_state(model, stored)
    return run_model(model, make_prompt(case, seed), case.n_new, case.equal_index_scores)


def make_case(name: str, out: str) -> None:
    """Writes tests/golden/<name>: the checkpoint, read back and compared, and its goldens."""
    case = CASES[name]
    config = text_config(**case.config)
    directory = os.path.join(out, name)
    shutil.rmtree(directory, ignore_errors=True)
    model = build_model(config)
    state = make_state(case, config, case.seed, model)
    stored = write_checkpoint(os.path.join(directory, "checkpoint"), config, state, case.layout)
    recordings = {"golden.h5": run_case(case, config, model, stored, case.seed)}
    n_tensors = verify_checkpoint(os.path.join(directory, "checkpoint"), model)
    if case.layout.experts == "fused_bf16":
        for tensor, values in stored.items():
            if ".experts." in tensor and not np.array_equal(values.astype(np.float16).astype(np.float32), values):
                raise ValueError(f"{tensor} is not exact in FP16")
    if case.also_nvfp4:
        # Quantised from what the checkpoint stores, as a converter must do it.
        _, requantised = quantize_state(config, stored, Layout(shared_gate_up_scale=False))
        recordings["golden_nvfp4.h5"] = run_case(case, config, model, requantised, case.seed)
    for file, recording in recordings.items():
        reasons = faults(case, config, recording)
        if reasons:
            raise ValueError(f"{name}/{file}: {'; '.join(reasons)} ({describe(recording)}): search another seed")
        write_golden(os.path.join(directory, file), case, recording)
        print(f"{name}/{file}: {n_tensors} tensors; {describe(recording)}", flush=True)


def search_seed(name: str, n_seeds: int) -> None:
    """Prints the margins of seeds 1 ... n_seeds, for choosing one."""
    case = CASES[name]
    config = text_config(**case.config)
    model = build_model(config)
    for seed in range(1, n_seeds + 1):
        _, stored = quantize_state(config, make_state(case, config, seed, model), case.layout)
        recordings = [run_case(case, config, model, stored, seed)]
        if case.also_nvfp4:
            _, requantised = quantize_state(config, stored, Layout(shared_gate_up_scale=False))
            recordings.append(run_case(case, config, model, requantised, seed))
        for recording in recordings:
            print(
                f"seed {seed}: {describe(recording)}; {'; '.join(faults(case, config, recording)) or 'fit'}", flush=True
            )


def make_hash_rows(out: str) -> None:
    """Writes hash_rows.json: the n-gram hash of the real model, by the oracle's own class with its table left out."""
    config = text_config()
    constants = ple_constants(config, 0)
    eos = config["eos_token_id"]
    cases = [
        {"history": [eos, eos], "tokens": [5, 7, eos, 9, 11]},
        {"history": [eos, eos], "tokens": [760, 6511, 314, 9338, 369]},
        {"history": [760, 6511], "tokens": [314, 9338, 369]},
        {"history": [6511, 314], "tokens": [9338]},
        {"history": [7, eos], "tokens": [9, 11]},
        {"history": [eos, 9], "tokens": [11, eos, eos, 248319, 0, 0, 0]},
        {"history": [248319, 248319], "tokens": [248319, 248318, 248317]},
    ]
    embedding = golden_ops.hash_module(oracle_config(config), 0)
    for name, values in zip(("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"), constants):
        if getattr(embedding, name).tolist() != values.tolist():
            raise ValueError(f"{name} differs from the oracle's")
    for case in cases:
        tokens = torch.tensor([case["history"] + case["tokens"]])
        case["rows"] = golden_ops.hash_rows(embedding, tokens)[len(case["history"]) :].tolist()
    fields = ("eos_token_id", "heads_per_ngram", "make_ngram_vocab_size_divisible_by", "ngram_size")
    fields += ("ngram_vocab_size_base", "vocab_size")
    document = {
        "config": {**{name: config[name] for name in fields}, "seed": 1234, "ple_index": 0},
        "multipliers": constants.multipliers.tolist(),
        "sizes": constants.sizes.tolist(),
        "offsets": constants.offsets.tolist(),
        "n_rows": constants.n_rows,
        "cases": cases,
    }
    write_json(os.path.join(out, "hash_rows.json"), document, indent=None)
    print(f"hash_rows.json: {sum(len(case['tokens']) for case in cases)} tokens")


def main() -> None:
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    parser = argparse.ArgumentParser(description="Writes the goldens of tests/golden.")
    choices = [*CASES, "ops", "hash_rows"]
    parser.add_argument("case", nargs="*", help=f"what to make: {', '.join(choices)} (default: all)")
    parser.add_argument(
        "--out", default=os.path.join(root, "tests", "golden"), help="directory (default: tests/golden)"
    )
    parser.add_argument("--search", metavar="N", type=int, help="only print the margins of seeds 1 to N")
    arguments = parser.parse_args()
    unknown = set(arguments.case) - set(choices)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    os.makedirs(arguments.out, exist_ok=True)
    for name in arguments.case or choices:
        if name in CASES and arguments.search:
            search_seed(name, arguments.search)
        elif name in CASES:
            make_case(name, arguments.out)
        elif name == "ops":
            golden_ops.make_ops(os.path.join(arguments.out, "ops.h5"))
        else:
            make_hash_rows(arguments.out)


if __name__ == "__main__":
    main()
