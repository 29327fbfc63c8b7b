"""Write a Slurm script of a sweep whose jobs resume where the previous one stopped."""

import math
import re
import shlex
from pathlib import Path


def slurm_script(
    sweep: Path, name: str, *, hours: float = 12.0, parts: int = 4, cpus: int = 16, gpus: int = 0,
    partition: str | None = None, account: str | None = None, setup: str | None = None,
) -> str:  # fmt: skip
    """Return a batch script: `parts` jobs of `hours` each, one after another, the same sweep in each.

    A killed sweep resumes from its result directory. Jobs that start after the sweep has finished end at
    once. `sweep` is its TOML file, `name` that of the job; `setup` is a shell command that makes `simlab`
    available on the node, such as `source /path/.venv/bin/activate`.

    Raises:
        ValueError: A size is not valid for a job.
    """
    for what, value, least in (
        ("hours", hours, 1 / 60),
        ("parts", parts, 1),
        ("cpus", cpus, 1),
        ("gpus", gpus, 0),
    ):
        if not least <= value < math.inf:
            raise ValueError(f"{what} must be at least {least:g} and finite, got {value}.")
    minutes = round(hours * 60)
    job = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    options = [
        f"--job-name={job}",
        f"--array=1-{parts}%1",
        f"--time={minutes // 60:02d}:{minutes % 60:02d}:00",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        "--requeue",
        "--open-mode=append",
        f"--output={job}_%a.log",
    ]
    options += [f"--gpus={gpus}"] if gpus else []
    options += [f"--partition={partition}"] if partition else []
    options += [f"--account={account}"] if account else []
    # On an accelerator one process maps over the runs; on a CPU there is one per core.
    workers = "0" if gpus else '"$SLURM_CPUS_PER_TASK"'
    out = shlex.quote(f"runs/{job}")
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {option}" for option in options),
            "set -euo pipefail",
            *([setup] if setup else []),
            f"simlab sweep {shlex.quote(str(sweep))} --out {out} --workers {workers} --yes",
            "",
        ]
    )
