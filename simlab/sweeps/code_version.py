"""Dependencies of the bits of a run other than its config: code, versions, JAX settings."""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import jax
import jaxlib
import optax

from simlab.core.catalog import shorten
from simlab.core.paths import PACKAGE_ROOT

COMPUTING = [
    "core",
    "formats",
    "engines",
    "models",
    "objectives",
    "tasks",
    "rollout",
    "metrics",
    "training",
    "sweeps",
]
"""The packages whose code decides what a run computes and how it is written."""
SETTINGS = {
    "jax_enable_x64": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
}
"""Settings that change the bits of a run, with their defaults. Every product names its precision itself."""


@cache
def code_digest() -> str:
    """Return the content hash of the packages `COMPUTING` and of the versions of JAX and optax."""
    versions = jax.__version__, jaxlib.__version__, optax.__version__
    return digest_files((PACKAGE_ROOT / package for package in COMPUTING), repr(versions))


def digest_files(folders: Iterable[Path], prefix: str = "") -> str:
    """Return the hash of `prefix` and of the Python files below `folders`."""
    digest = hashlib.sha256(prefix.encode())
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def without_addresses(value: object) -> str:
    """Return the text of `value` without the addresses that functions print."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def check_settings() -> None:
    """Raise `ValueError` for a JAX setting that would change the bits of a run without changing its key."""
    for name, expected in SETTINGS.items():
        if (found := getattr(jax.config, name)) != expected:
            raise ValueError(
                f"{name} must be {shorten(expected)} when runs are computed, got {shorten(found)}. "
                f"Set it back: jax.config.update({name!r}, {expected!r})."
            )
