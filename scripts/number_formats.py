"""BF16, FP8 E4M3, FP4 E2M1 and NVFP4 in numpy, by the rules of ModelOpt's exports."""

from typing import NamedTuple

import numpy as np

BLOCK = 16  # values of one NVFP4 block, along the input dimension
E2M1_MAX = 6.0
E4M3_MAX = 448.0


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """FP32 array -> the BF16 words (uint16) nearest to it, ties to even. Finite values only."""
    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """BF16 words (uint16) -> their exact FP32 values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_round(values: np.ndarray) -> np.ndarray:
    """FP32 array -> FP32 array of the nearest BF16 values."""
    return bf16_values(bf16_bits(values)).reshape(np.shape(values))


def _e4m3_table() -> np.ndarray:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, 2.0 ** (exponent - 7.0) * (1 + mantissa / 8))
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes >> 7, -magnitude, magnitude).astype(np.float32)


E4M3_VALUES = _e4m3_table()
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)

_E2M1_BOUNDS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32)
_E2M1_TIES_UP = _E2M1_BOUNDS[1:6:2]


def e4m3_codes(values: np.ndarray) -> np.ndarray:
    """FP32 array -> nearest E4M3FN codes (uint8), ties to even, saturating at 448."""
    values = np.asarray(values, dtype=np.float32)
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    positive = E4M3_VALUES[:127]
    upper = np.clip(np.searchsorted(positive, magnitude), 1, 126)
    lower = upper - 1
    # Neighbouring E4M3 values and their midpoint are exact in FP64.
    middle = (positive[lower].astype(np.float64) + positive[upper]) / 2
    take_upper = (magnitude > middle) | ((magnitude == middle) & (upper % 2 == 0))
    codes = np.where(take_upper, upper, lower)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def e2m1_codes(values: np.ndarray) -> np.ndarray:
    """FP32 array -> nearest E2M1 codes (uint8, 0..15) as ModelOpt takes them: ties at 0.75, 1.75 and 3.5 go up."""
    magnitude = np.abs(values)
    codes = np.searchsorted(_E2M1_BOUNDS, magnitude) + np.isin(magnitude, _E2M1_TIES_UP)
    return (codes | np.where(values < 0, 8, 0)).astype(np.uint8)


class Nvfp4(NamedTuple):
    """A matrix [N, K] in NVFP4."""

    codes: np.ndarray  # uint8 [N, K / 2]; the low nibble is the even K index
    scales: np.ndarray  # uint8 [N, K / 16], E4M3 codes
    scale_2: np.float32  # multiplies


def nvfp4_scale_2(*matrices: np.ndarray) -> np.float32:
    """Second-level scale for matrices that share one: amax / (6 x 448). 1 if all values are zero."""
    amax = np.float32(max(np.abs(matrix).max() for matrix in matrices))
    return np.float32(amax / np.float32(E2M1_MAX * E4M3_MAX)) if amax > 0 else np.float32(1)


def nvfp4_quantize(matrix: np.ndarray, scale_2: np.float32 | None = None) -> Nvfp4:
    """FP32 matrix [N, K] (K a multiple of 16) -> NVFP4 by ModelOpt's rules.

    A block of zeros has scale 1. A block scale of at most 2^-10, half of E4M3's least value, becomes 0 and the block's
    codes with it.
    """
    n_rows, n_columns = matrix.shape
    if n_columns % BLOCK:
        raise ValueError(f"NVFP4 needs a multiple of {BLOCK} columns, not {n_columns}")
    scale_2 = nvfp4_scale_2(matrix) if scale_2 is None else np.float32(scale_2)
    blocks = np.asarray(matrix, dtype=np.float32).reshape(n_rows, -1, BLOCK)
    block_scales = np.abs(blocks).max(axis=-1) / (np.float32(E2M1_MAX) * scale_2)
    block_scales[block_scales == 0] = 1
    scales = e4m3_codes(block_scales)
    divisors = (E4M3_VALUES[scales] * scale_2)[..., None]
    scaled = np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors != 0)
    codes = e2m1_codes(scaled).reshape(n_rows, n_columns)
    return Nvfp4(codes[:, 0::2] | codes[:, 1::2] << 4, scales, scale_2)


def nvfp4_dequantize(quantized: Nvfp4) -> np.ndarray:
    """NVFP4 -> FP32 matrix [N, K]: (code x block scale) x scale_2; the first product is exact."""
    codes = np.stack([quantized.codes & 15, quantized.codes >> 4], axis=-1).reshape(quantized.codes.shape[0], -1)
    scales = np.repeat(E4M3_VALUES[quantized.scales], BLOCK, axis=1)
    return E2M1_VALUES[codes] * scales * quantized.scale_2


def fp8_quantize(table: np.ndarray, scale: float | None = None):
    """FP32 table -> (E4M3 codes uint8 of the same shape, the BF16-valued FP32 scale that multiplies them)."""
    if scale is None:
        scale = np.abs(table).max() / E4M3_MAX
    scale = bf16_round(np.array([scale], dtype=np.float32))[0]
    return e4m3_codes(np.asarray(table, dtype=np.float32) / scale), scale


def fp8_dequantize(codes: np.ndarray, scale: np.float32) -> np.ndarray:
    """E4M3 codes and scale -> FP32 values."""
    return E4M3_VALUES[codes] * np.float32(scale)
