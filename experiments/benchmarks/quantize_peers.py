"""Other libraries that round float32 to E4M3 and back, each as one function of an array, or why not.

A peer that is not installed becomes a row that says how to install it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Call = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """A library: `prepare` imports it and returns a call that quantizes `x`; `hint` says how to get it.

    `elements` keeps slow libraries on a shorter array; they are not limited by memory.
    """

    name: str
    variant: str
    prepare: Callable[[np.ndarray], Call]
    hint: str
    elements: int = 2**24


def _ml_dtypes(x: np.ndarray) -> Call:
    ml_dtypes = importlib.import_module("ml_dtypes")
    return lambda: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _torch(x: np.ndarray) -> Call:
    torch = importlib.import_module("torch")
    tensor = torch.from_numpy(x)
    return lambda: tensor.to(torch.float8_e4m3fn).to(torch.float32)


def _gfloat(x: np.ndarray) -> Call:
    gfloat = importlib.import_module("gfloat")
    fmt = importlib.import_module("gfloat.formats").format_info_ocp_e4m3
    rounded = jax.jit(lambda v: gfloat.round_ndarray(fmt, v, sat=True))
    array = jnp.asarray(x)
    return lambda: rounded(array).block_until_ready()


def _pychop(x: np.ndarray) -> Call:
    pychop = importlib.import_module("pychop")
    pychop.backend("torch")
    chop = pychop.Chop(exp_bits=4, sig_bits=3, rmode=1)
    tensor = importlib.import_module("torch").from_numpy(x)
    return lambda: chop(tensor)


def _cpfloat(_: np.ndarray) -> Call:
    raise ModuleNotFoundError("no module of that name exists", name="cpfloat")


EXTRA = "pip install 'simlab[peers]'"
PEERS = (
    Peer("torch", "cast", _torch, EXTRA),
    Peer("ml_dtypes", "cast", _ml_dtypes, "a dependency of simlab", 2**22),
    Peer("gfloat", "jit", _gfloat, "pip install 'simlab[test]'", 2**22),
    Peer("pychop", "torch", _pychop, EXTRA, 2**20),
    Peer(
        "cpfloat",
        "C",
        _cpfloat,
        "in no package registry: build https://github.com/north-numerical-computing/cpfloat",
    ),
)
