"""Operands on the grid of a format, and rows of a batch in several guises."""

import ml_dtypes
import numpy as np

TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def normal(shape: tuple[int, ...], seed: int, fmt: str = "bf16", spread: float = 0.0) -> np.ndarray:
    """Float32 normals rounded to `fmt`, times 2^(uniform +-spread)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    return x.astype(np.float32).astype(TYPES[fmt]).astype(np.float32)


def any_bits(shape: tuple[int, ...], seed: int, fmt: str) -> np.ndarray:
    """Uniformly random finite values of a format by bit pattern: its whole range of exponents."""
    rng = np.random.default_rng(seed)
    if fmt == "int8":
        return rng.integers(-128, 128, shape).astype(np.float32)
    bits = np.dtype(TYPES[fmt]).itemsize * 8 if fmt != "e2m1" else 4
    words = rng.integers(0, 2**bits, shape).astype(np.uint16 if bits == 16 else np.uint8)
    x = words.view(TYPES[fmt]).astype(np.float32)
    return np.where(np.isfinite(x), x, np.float32(0))


def batches(rows: int) -> list[slice]:
    """Parts of a batch: one row at either end, seven at the start and inside (few shapes to compile)."""
    return [slice(0, 1), slice(rows - 1, rows), slice(0, 7), slice(3, 10)]
