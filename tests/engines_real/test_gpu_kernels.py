"""Kernels per decoded token and per minibatch, compiled for an H200 on a CPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.engines_real.frameworks import ROOT, interpreter

HOME = Path(os.environ.get("SIMLAB_VENVS") or ROOT / ".cache" / "venvs") / "cuda"
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not HOME.is_dir(), reason="needs scripts/make_env.py cuda, 5.5 GB"),
]
# Measured with jax 0.10.2 on 2026-11-24 at 64 runs per batch of the flagship's shape, autotuning off. One
# kernel of fused attention replaces five in each of two layers; its mask is one more.
MOST = {("f32", "sample"): 58, ("f32-flash", "sample"): 51, ("bf16", "sample"): 79, ("f32", "learn"): 290}


def count_kernels(engine: str) -> dict[str, int]:
    """Return the kernels of the largest loop of each compiled function."""
    command = [interpreter("cuda"), "tests/engines_real/gpu_kernels_side.py", engine]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loops = json.loads(done.stdout.splitlines()[-1])
    return {name: sum(bodies[0].values()) for name, bodies in loops.items()}


@pytest.mark.parametrize("engine", ["f32", "f32-flash", "bf16"])
def test_kernels_per_token_and_minibatch_do_not_grow(engine):
    for name, number in count_kernels(engine).items():
        assert 0 < number <= MOST[engine, name], name
