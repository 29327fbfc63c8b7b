"""Save the signatures of the simulated logs of one policy, so that an interrupted run resumes."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd

from simlab.core.atomic import write_atomically

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "experiments/diagnosis_study/faults*.py",
    "experiments/diagnosis_study/forward_passes.py",
    "experiments/diagnosis_study/log_assembly.py",
    "experiments/diagnosis_study/random_policies.py",
    "simlab/diagnosis/*signatures.py",
    "simlab/diagnosis/injected_faults.py",
    "simlab/diagnosis/log.py",
    "simlab/diagnosis/rank_tests.py",
    "simlab/diagnosis/routing.py",
    "simlab/diagnosis/token_view.py",
    "simlab/engines/*.py",
    "simlab/formats/*.py",
    "simlab/models/*.py",
    "simlab/rollout/*.py",
)
"""Code that the signatures depend on."""


@cache
def digest_sources() -> str:
    """Return a digest of the code that simulates and measures logs, as it was at the first call."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load_or_simulate(folder: Path, key: str, simulate: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return the table `key` of an interrupted run of the same code, or simulate and save it.

    Args:
        folder: Folder of the parts.
        key: Split, policy, seed and sizes of the logs.
        simulate: Returns the table.
    """
    path = folder / f"{hashlib.sha256(f'{digest_sources()} {key}'.encode()).hexdigest()[:16]}.parquet"
    if not path.is_file():
        write_atomically(path, simulate().to_parquet)
    return pd.read_parquet(path)
