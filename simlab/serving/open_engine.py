"""Open engines by name: simlab's own, and those of other frameworks in separate environments."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from simlab.core.catalog import lookup
from simlab.core.paths import checkout_root
from simlab.engines import ENGINES
from simlab.serving.http_engine import HttpEngine
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.llamacpp_engine import LlamaCppEngine
from simlab.serving.protocol import RealEngine
from simlab.serving.transformers_engine import TransformersEngine
from simlab.serving.vllm_engine import VllmEngine


def find_interpreter(environment: str) -> Path:
    """Return the Python of an environment in SIMLAB_VENVS, by default the directory of `make_env.py`."""
    home = Path(os.environ.get("SIMLAB_VENVS") or checkout_root() / ".cache" / "venvs")
    return home / environment / "bin" / "python"


def find_python(environment: str) -> Path:
    """Return the Python of an environment if it exists, else the current one, which may have its packages."""
    own = find_interpreter(environment)
    return own if own.exists() else Path(sys.executable)


def _open_vllm(formats: str) -> RealEngine:
    dtype, _, kv_cache = formats.partition("+")
    return VllmEngine(find_python("vllm"), dtype=dtype or "bfloat16", kv_cache=kv_cache or "auto")


ENGINE_KINDS: dict[str, Callable[[str], RealEngine]] = {
    "transformers": lambda dtype: TransformersEngine(find_python("hf"), dtype=dtype or "float32"),
    "vllm": _open_vllm,
    "llamacpp": lambda stored: LlamaCppEngine(find_python("llamacpp"), stored=stored or "q8_0"),
    "http": lambda address: HttpEngine(f"http:{address}"),
    "https": lambda address: HttpEngine(f"https:{address}"),
}
"""Part of a real engine's name before the colon -> function of the part after it."""


def check_name(name: str) -> None:
    """Raise `ValueError` if `name` is not an engine, without starting anything."""
    kind, colon, _ = name.partition(":")
    if colon:
        lookup(ENGINE_KINDS, kind, "kind of engine")
    else:
        lookup(ENGINES, name, "engine")


def open_engine(name: str) -> RealEngine:
    """Return a simlab engine such as `bf16`, `vllm:bfloat16+fp8`, `transformers:float16`, or a URL.

    After `vllm:` come the format of the weights and, after a `+`, that of the KV cache.

    Raises:
        ValueError: The name is unknown.
        EngineError: The engine does not start.
    """
    check_name(name)
    kind, colon, rest = name.partition(":")
    # A probe measures the distance of an engine; simlab's own cannot lose weights in a sync.
    return ENGINE_KINDS[kind](rest) if colon else JaxEngine(name, parity=float("inf"))
