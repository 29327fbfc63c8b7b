"""Engines by name: the lab's own, and those of other frameworks in environments of their own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from simlab.core.catalog import lookup
from simlab.core.paths import shop_root
from simlab.engines import ENGINES
from simlab.serving.http_engine import HttpEngine
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.llamacpp_engine import LlamaCppEngine
from simlab.serving.protocol import RealEngine
from simlab.serving.transformers_engine import TransformersEngine
from simlab.serving.vllm_engine import VllmEngine


def interpreter(environment: str) -> Path:
    """Return the Python of an environment: in the folder SIMLAB_VENVS, or where `make_env.py` puts it."""
    home = Path(os.environ.get("SIMLAB_VENVS") or shop_root() / ".cache" / "venvs")
    return home / environment / "bin" / "python"


def python_with(environment: str) -> Path:
    """Return the Python of an environment, or this one, which may have its packages, where there is none."""
    own = interpreter(environment)
    return own if own.exists() else Path(sys.executable)


def _vllm(formats: str) -> RealEngine:
    dtype, _, kv_cache = formats.partition("+")
    return VllmEngine(python_with("vllm"), dtype=dtype or "bfloat16", kv_cache=kv_cache or "auto")


ENGINE_KINDS: dict[str, Callable[[str], RealEngine]] = {
    "transformers": lambda dtype: TransformersEngine(python_with("hf"), dtype=dtype or "float32"),
    "vllm": _vllm,
    "llamacpp": lambda stored: LlamaCppEngine(python_with("llamacpp"), stored=stored or "q8_0"),
    "http": lambda address: HttpEngine(f"http:{address}"),
    "https": lambda address: HttpEngine(f"https:{address}"),
}
"""What stands before the colon of a real engine's name -> engine of what stands behind it."""


def check_name(name: str) -> None:
    """Raise `ValueError` if `name` is no engine; nothing is started."""
    kind, colon, _ = name.partition(":")
    if colon:
        lookup(ENGINE_KINDS, kind, "kind of engine")
    else:
        lookup(ENGINES, name, "engine")


def open_engine(name: str) -> RealEngine:
    """Return `bf16` or any other engine of the lab, `vllm:bfloat16+fp8`, `transformers:float16`, or a URL.

    Behind `vllm:` stand the format of weights and, after a `+`, that of the KV cache. Raises `ValueError` for
    a name that is none, `EngineError` for an engine that does not start.
    """
    check_name(name)
    kind, colon, rest = name.partition(":")
    # A probe measures how far an engine is; of the lab's own, no weights can get lost.
    return ENGINE_KINDS[kind](rest) if colon else JaxEngine(name, parity=float("inf"))
