"""Traced functions, stored for later processes.

JAX caches compiled functions, but must trace a function to find it. This takes longer than loading it.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import jax
import optax
from jax import export
from jaxtyping import PyTree

from simlab.core.atomic import write_atomically
from simlab.core.paths import PACKAGE_ROOT
from simlab.sweeps.code_version import digest_files, without_addresses

# Packages whose code shapes a function; a function with other code is traced every time.
KNOWN = ("simlab", "builtins", "numpy", "jax", "jaxlib", "optax")
# Pallas kernels, whose text other versions of JAX need not read: the digest holds the version.
KERNELS = tuple(
    export.DisabledSafetyCheck.custom_call(name)
    for name in ("__gpu$xla.gpu.triton", "triton_kernel_call_ffi")
)
# What changes the arithmetic of a trace.
SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl")


def load_or_export(function: Callable, arguments: tuple, name: str, folder: Path | None) -> export.Exported:
    """Return `jax.jit(function)` for arguments of these trees and shapes, traced or read from `folder`.

    It takes a list of leaves per argument, and returns what `function` returns, made of lists and dicts.
    `name` identifies everything else that the function depends on. An unreadable file is replaced.
    """
    leaves = [jax.tree.leaves(argument) for argument in arguments]
    trees = [jax.tree.structure(argument) for argument in arguments]

    def trace() -> export.Exported:
        def of_leaves(*parts: list) -> PyTree:
            return function(*(tree.unflatten(part) for tree, part in zip(trees, parts, strict=True)))

        return export.export(jax.jit(of_leaves), disabled_checks=KERNELS)(*leaves)

    if folder is None or not all(map(_is_known_tree, trees)):
        return trace()
    path = folder / f"{_digest(leaves, trees, name)}.traced"
    try:
        return export.deserialize(bytearray(path.read_bytes()))
    except FileNotFoundError:
        pass
    except Exception:  # whatever flatbuffers raise on a damaged file
        path.unlink(missing_ok=True)
    made = trace()
    write_atomically(path, lambda file: file.write(made.serialize()))
    return made


def _digest(leaves: list, trees: list, name: str) -> str:
    shapes = [[(leaf.shape, str(leaf.dtype)) for leaf in part] for part in leaves]
    # The digest of the package holds what the functions do.
    written = [without_addresses(tree) for tree in trees]
    settings = [getattr(jax.config, setting) for setting in SETTINGS]
    versions = jax.__version__, optax.__version__
    content = (_package(), versions, jax.default_backend(), settings, name, shapes, written)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:40]


@cache
def _package() -> str:
    return digest_files([PACKAGE_ROOT])


def _is_known_tree(tree: PyTree) -> bool:
    node = tree.node_data()
    inside = node is None or (_is_known(node[0]) and _is_known(node[1]))
    return inside and all(map(_is_known_tree, tree.children()))


def _is_module_level(function: object) -> bool:
    """Return whether a function is that of its name in its module; the digest holds what it captures."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    return getattr(module, getattr(function, "__qualname__", ""), None) is function


def _is_known(value: object) -> bool:
    """Return whether the package's digest and the value's text identify a static value."""
    if isinstance(value, tuple | list):
        return all(map(_is_known, value))
    kind = value if isinstance(value, type) or callable(value) else type(value)
    if getattr(kind, "__module__", type(kind).__module__).partition(".")[0] not in KNOWN:
        return False
    if getattr(value, "__closure__", None) and not _is_module_level(value):
        return False
    inner = fields(value) if is_dataclass(value) and not isinstance(value, type) else ()
    return all(_is_known(getattr(value, field.name)) for field in inner)
