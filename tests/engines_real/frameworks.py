"""Ask an installed framework for fresh goldens."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def interpreter(name: str) -> str:
    """The interpreter of environment `name`; a failed installation fails the test with pip's output."""
    return _run(sys.executable, "scripts/make_env.py", name).strip().splitlines()[-1]


def fresh_seed() -> int:
    """A seed nobody has used, or SIMLAB_GOLDEN_SEED to repeat one that a failure printed."""
    return int(os.environ.get("SIMLAB_GOLDEN_SEED", secrets.randbelow(2**31)))


def fresh_goldens(name: str, folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Run `scripts/<name>_goldens.py` in its environment on new random batches; file stem -> arrays."""
    seed = fresh_seed()
    print(f"SIMLAB_GOLDEN_SEED={seed}")
    _run(interpreter(name), f"scripts/{name}_goldens.py", "--seed", str(seed), "--out", str(folder))
    files = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            files[path.stem] = dict(arrays)
    return files


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
