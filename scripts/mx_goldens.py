"""Make tests/formats/goldens/mx.npz: block-scaled numbers as torchao and microxcaling compute them.

Needs torch 2.13.0, torchao 0.18.0 and a checkout of github.com/microsoft/microxcaling (commit 7bc4195):

    python scripts/mx_goldens.py PATH_OF_MICROXCALING
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).resolve().parents[1] / "tests" / "formats" / "goldens" / "mx.npz"
TORCHAO_MODES = {"floor": "FLOOR", "ceil": "CEIL", "rceil": "RCEIL", "even": "EVEN"}
MICROXCALING_FORMATS = {
    "e4m3fn": "fp8_e4m3",
    "e5m2": "fp8_e5m2",
    "e3m2": "fp6_e3m2",
    "e2m3": "fp6_e2m3",
    "e2m1": "fp4_e2m1",
}


def inputs() -> np.ndarray:
    """Rows of 96 numbers of many magnitudes: normals, one binade, powers of two, ties, zeros."""
    rng = np.random.default_rng(20)
    mixed = rng.standard_normal((9, 96)) * np.exp2(rng.integers(-30, 30, (9, 1)))
    wide = rng.standard_normal((4, 96)) * np.exp2(rng.integers(-20, 20, (4, 96)))
    binade = rng.uniform(1, 2, (2, 96)) * rng.choice([-1, 1], (2, 96))
    powers = np.exp2(rng.integers(-6, 6, (1, 96))) * rng.choice([-1, 1], (1, 96))
    ties = rng.integers(-64, 65, (2, 96)) / 8
    rows = np.concatenate([mixed, wide, binade, powers, ties]).astype(np.float32)
    rows[3, 32:64] = 0.0
    return rows


def torchao_mx(x: Any) -> dict[str, np.ndarray]:
    """Dequantized values for each element format and scale rule."""
    torch = importlib.import_module("torch")
    mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    modes = importlib.import_module("torchao.prototype.mx_formats.config").ScaleCalculationMode
    elements = {
        "e4m3fn": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "e3m2": mx.DTYPE_FP6_E3M2,
        "e2m3": mx.DTYPE_FP6_E2M3,
        "e2m1": torch.float4_e2m1fn_x2,
    }
    made = {}
    for name, element in elements.items():
        for rule, mode in TORCHAO_MODES.items():
            scale, data = mx.to_mx(x, element, 32, getattr(modes, mode))
            values = mx.to_dtype(data, scale, element, 32, torch.float32)
            made[f"torchao/{name}/{rule}"] = values.numpy()
    return made


def torchao_nvfp4(x: Any) -> dict[str, np.ndarray]:
    """Block scales and elements, with the scale of the tensor from its amax."""
    torch = importlib.import_module("torch")
    nvfp4 = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    kernels = importlib.import_module("torchao.prototype.mx_formats.kernels")
    upper = nvfp4.per_tensor_amax_to_scale(x.abs().max())
    levels, packed = nvfp4.nvfp4_quantize(x, 16, upper)
    elements = kernels.f4_unpacked_to_f32(kernels.unpack_uint4(packed))
    return {
        "nvfp4/tensor_scale": upper.numpy(),
        "nvfp4/levels": levels.to(torch.float32).numpy(),
        "nvfp4/elements": elements.reshape(x.shape).numpy(),
    }


def microxcaling_mx(x: Any) -> dict[str, np.ndarray]:
    """Dequantized values by the floor rule; also of rows whose last block is short."""
    quantize = importlib.import_module("mx.mx_ops")._quantize_mx
    made = {}
    for name, element in MICROXCALING_FORMATS.items():
        for case, data in {"full": x, "short": x[:, :80]}.items():
            values = quantize(data, 8, element, axes=[-1], block_size=32, round="even")
            made[f"microxcaling/{name}/{case}"] = values.numpy()
    return made


def main() -> None:
    """Write the file."""
    sys.path.insert(0, sys.argv[1])
    torch = importlib.import_module("torch")
    x = torch.from_numpy(inputs())
    made = {**torchao_mx(x), **torchao_nvfp4(x[-5:]), **microxcaling_mx(x)}
    np.savez_compressed(GOLDENS, x=x.numpy(), allow_pickle=False, **made)
    print(f"{GOLDENS}: {GOLDENS.stat().st_size / 1000:.0f} kB, {len(made)} arrays")


if __name__ == "__main__":
    main()
