#!/usr/bin/env python3
"""Writes a checkpoint of 2 GB or more with the real names and layout, for measuring galvani shard. Needs numpy.

All data are finite, so the checkpoint converts; they say nothing. Every tensor is a window of one random block, at a
place that its name gives, so that writing goes at the speed of the disk.
"""

import argparse
import math
import time
import zlib

import numpy as np

import checkpoint_writer as cw

BLOCK_BYTES = 1 << 24
SIZES = {
    # About a quarter of the real model's width in each direction; 512 experts.
    "small": dict(hidden_size=1280, moe_intermediate_size=320, shared_expert_intermediate_size=320, hc_lowrank=160,
                  ple_embed_dim=1280, num_hidden_layers=4, vocab_size=16384, ngram_vocab_size_base=600000,
                  linear_num_key_heads=8, linear_num_value_heads=24, num_attention_heads=12, eos_token_id=16000),
    # One period of the real model at its real width, with a shorter vocabulary and table: 8 GB.
    "wide": dict(num_hidden_layers=4, vocab_size=65536, ngram_vocab_size_base=600000, eos_token_id=65000),
}  # fmt: skip


def make_blocks(seed):
    """Random items by dtype, twice in a row, so that every window of one block's length exists."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
    scales = (data & 0x7F).clip(max=0x7E)  # E4M3 without NaN
    weights = cw.bf16_bits(0.02 * rng.standard_normal(BLOCK_BYTES // 2, dtype=np.float32))
    numbers = rng.uniform(1e-4, 1e-3, BLOCK_BYTES // 4).astype(np.float32)
    blocks = {"U8": data, "F8_E4M3": scales, "BF16": weights, "F32": numbers}
    return {dtype: np.concatenate([block, block]) for dtype, block in blocks.items()}


def window_entry(spec, blocks):
    """An entry whose data is a window of the block of its dtype, repeated as often as needed."""

    def make():
        block = blocks[spec.dtype]
        half, n_items = len(block) // 2, math.prod(spec.shape)
        start = zlib.crc32(spec.name.encode()) % half
        if n_items <= half:
            return block[start : start + n_items]
        return np.resize(block[start : start + half], n_items)

    return cw.Entry(*spec, make)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--style", choices=["radixark", "nvidia"], default="radixark")
    parser.add_argument("--experts", choices=["nvfp4", "fused_bf16"], default="nvfp4")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    start = time.monotonic()
    config = cw.text_config(bos_token_id=0, **SIZES[arguments.size])
    layout = cw.Layout(style=arguments.style, experts=arguments.experts, vision_depth=1)
    blocks = make_blocks(arguments.seed)
    constants = {entry.name: entry for entry in cw.ple_constant_entries(config)}
    specs = cw.text_specs(config, layout)
    # Of the groups to skip, those that do not grow with the number of experts.
    specs += [spec for spec in cw.skipped_specs(config, layout) if ".experts." not in spec.name]
    entries = [constants.get(spec.name) or window_entry(spec, blocks) for spec in specs]
    lengths = cw.write_files(arguments.directory, config, entries, layout)
    seconds = time.monotonic() - start
    print(f"{arguments.directory}: {sum(lengths.values()) / 1e9:.2f} GB in {len(lengths)} files, {len(specs)} tensors, "
          f"{seconds:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
