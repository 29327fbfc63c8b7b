"""The smallest sweep: one compiled program for all tests."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simlab.core.backend import compile_cache_folder
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.results import write_table
from simlab.sweeps.config import RunConfig, columns
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.tables import run_tables, runs_table

RUNS_PER_BATCH = 2
# A mismatch that is cheap to compile, at one site; without a reward the entropy bonus moves the policy.
BASE: dict[str, Any] = {
    "engines": {"name": "f32/f32", "infer": {"residual": "e5m2"}},
    "objective": "grpo",
    "task": {"name": "sort", "difficulty": 2, "train_size": 64, "held_out_size": 16},
    "model": {
        "name": "tiny-dense",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    },
    "optimizer": {"learning_rate": 0.01},
    "entropy_coeff": 0.1,
    "prompts_per_step": 2,
    "group_size": 2,
    "minibatches": 1,
    "steps": 2,
}
GRID = {"objective": ["grpo", "grpo+tis"], "seed": [0, 1, 2]}

SCRIPT = """
import json, sys
from simlab.sweeps import program, sweep
given = json.loads(sys.argv[1])
program.LONGEST_CHUNK = given.pop("chunk", program.LONGEST_CHUNK)
sweep(given.pop("base"), given.pop("over"), given.pop("out"), **given)
"""


def start(
    out: Path, over: dict[str, Any] | None = None, workers: int = 0, **changes: Any
) -> subprocess.Popen:
    """Start the small sweep in a process of its own."""
    given = {
        "base": BASE,
        "over": over or GRID,
        "out": str(out),
        "runs_per_batch": RUNS_PER_BATCH,
        "workers": workers,
    }
    given |= changes
    environment = {**os.environ, "SIMLAB_CACHE": str(Path(str(compile_cache_folder())).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(given)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> None:
    """Wait for a sweep to end well."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


def tables(folder: Path) -> dict[str, str]:
    """Digests of everything that a sweep leaves but its manifest."""
    paths = [*folder.glob("*.parquet"), *(folder / "store").glob("[0-9a-f]*")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def write_finished_sweep(folder: Path, configs: Sequence[RunConfig], arms: Sequence[str]) -> None:
    """Write a finished sweep of these runs, of one step each, with made-up rewards."""
    cache, keys = ResultCache(folder), [f"{number:020x}" for number in range(len(configs))]
    for key, config in zip(keys, configs, strict=True):
        cache.write(key, run_tables(key, columns(config), {"reward": np.ones(1, np.float32)}))
    table = runs_table([cache.record(key) for key in keys], arms[: len(keys)])
    write_table(folder, "runs", table)
    write_manifest(folder, build_manifest("sweep", {}, [], {"total": 0.0}, {"runs": len(keys)}))
