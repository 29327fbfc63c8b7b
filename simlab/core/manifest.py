"""The manifest of every result: what was run, on what, from which commit."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NotRequired, TypedDict

import jax

from simlab.core.atomic import write_atomically
from simlab.core.json_value import Json
from simlab.core.paths import PACKAGE_ROOT
from simlab.core.version import __version__

MANIFEST_NAME = "manifest.json"
UNKNOWN_FAMILY = "unknown"
"""Processor family of a run whose record does not name it: unlike any other, so checks report it."""
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "pandas", "pyarrow", "ml_dtypes")


class Manifest(TypedDict):
    """The manifest of a result. `timings` are seconds by phase, `tables` numbers of rows by table."""

    name: str
    config: dict[str, Json]
    seeds: list[int]
    tables: dict[str, int]
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    device: dict[str, str | int]
    xla_flags: str
    timings: dict[str, float]
    finished: str
    migrated_by: NotRequired[str]


def build_manifest(
    name: str,
    config: Mapping[str, Json],
    seeds: Sequence[int],
    timings: Mapping[str, float],
    tables: Mapping[str, int],
) -> Manifest:
    """Return the manifest of one result as plain JSON values.

    Times live here and never in the tables, so that two runs of one config give byte-identical tables.
    """
    return {
        "name": name,
        "config": dict(config),
        "seeds": [int(seed) for seed in seeds],
        "tables": dict(tables),
        "commit": ask_git(PACKAGE_ROOT, "rev-parse", "HEAD"),
        "dirty": _is_dirty(),
        "versions": versions(),
        "device": device(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "timings": {phase: round(seconds, 3) for phase, seconds in timings.items()},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write `manifest` into `folder` atomically.

    Raises:
        ValueError: For values that JSON lacks (NaN, inf).
    """
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    return write_atomically(folder / MANIFEST_NAME, lambda file: file.write(text.encode()))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result."""
    installed = {"python": platform.python_version(), "simlab": __version__}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def device() -> dict[str, str | int]:
    """Return platform, kind and count of the devices of JAX, and the processor of the host."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "host": platform.machine(),
        "cpu_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 0,
        **processor(),
    }


def processor(description: str | None = None) -> dict[str, str]:
    """Return the processor's name and vector instructions, from Linux's `description` of it.

    XLA compiles for what it finds: a float32 sum may be added in another order on another processor, and a
    policy that was trained there is another one.
    """
    if description is None:
        file = Path("/proc/cpuinfo")
        description = file.read_text() if file.is_file() else ""
    lines = (line.partition(":") for line in description.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    numbers = [f"{name} {facts[name]}" for name in ("cpu family", "model", "stepping") if name in facts]
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = facts.get("flags", facts.get("Features", "")).split()
    return {
        "processor": ", ".join([name, *numbers]),
        "vectors": " ".join(flag for flag in flags if flag.startswith(("avx", "amx", "fma", "sve", "asimd"))),
    }


def processor_family() -> str:
    """Return what all arms of one initial policy must share: the GPU, or the processor without its stepping.

    Two machines of one family compile and add equally, so their runs may be paired.
    """
    first = jax.devices()[0]
    if first.platform != "cpu":
        return first.device_kind
    return processor()["processor"].partition(", stepping")[0]


def ask_git(checkout: Path, *arguments: str) -> str | None:
    """Return git's answer about a checkout; None outside one, and for a command that fails."""
    command = ["git", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _is_dirty() -> bool | None:
    # Results written by an earlier run do not make the code that runs now a different one.
    made = (":(top,exclude)experiments/results", ":(top,exclude)figures/out")
    status = ask_git(PACKAGE_ROOT, "status", "--porcelain", "--", ":(top)", *made)
    return None if status is None else bool(status)
