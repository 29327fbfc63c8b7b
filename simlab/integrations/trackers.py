"""Export the curves of a finished sweep to trackio or Weights & Biases, with verl's metric names."""

import math
from typing import Any

import pandas as pd

from simlab.core.catalog import lookup
from simlab.metrics import VERL_ALIASES
from simlab.sweeps.result import OWN, SweepResult

VERL_NAMES = {ours: verl for verl, ours in reversed(VERL_ALIASES.items())} | {
    "reward": "critic/score/mean",
    "response_length": "response_length/mean",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "critic_loss": "critic/vf_loss",
    "critic_grad_norm": "critic/grad_norm",
}
"""The lab's name of a metric to the name under which verl 0.9.1 logs the same quantity."""
PREFIX = "simlab/"
"""Start of the names of metrics that verl does not log, such as `simlab/rms_log_rho`."""


def _trackio() -> Any:
    try:
        import trackio
    except ImportError as error:
        raise ImportError("trackio is missing. Install it with: pip install 'simlab[trackio]'") from error
    return trackio


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("wandb is missing. Install it with: pip install 'simlab[wandb]'") from error
    return wandb


TRACKERS = {"trackio": _trackio, "wandb": _wandb}


def log_result(result: SweepResult, tracker: str, project: str, **options: Any) -> int:
    """Log every run of a sweep as one run of a tracker.

    A run is named by its arm and key, belongs to the group of its arm, and carries its config.

    Args:
        result: the sweep, from `simlab.sweep` or `simlab.load`.
        tracker: `trackio` or `wandb`.
        project: name of the tracker's project.
        options: passed to the tracker's `init`, such as `space_id` or `entity`.

    Returns:
        The number of runs.

    Raises:
        ValueError: unknown tracker.
        ImportError: the tracker is not installed.

    Example:
        >>> log_result(simlab.load("runs/first_sweep"), "trackio", project="precision")
    """
    library = lookup(TRACKERS, tracker, "tracker")()
    steps = result.steps()
    metrics = [name for name in steps if name not in ("run", "step")]
    runs = result.stored_runs()
    for _, run in runs.iterrows():
        name = f"{run['arm']} {run['run'][:8]}"
        library.init(project=project, name=name, group=str(run["arm"]), config=config_of(run), **options)
        rate = float(run.get("optimizer.learning_rate", math.nan))
        for _, row in steps[steps["run"] == run["run"]].sort_values("step").iterrows():
            values = {
                VERL_NAMES.get(metric, PREFIX + metric): float(row[metric])
                for metric in metrics
                if math.isfinite(row[metric])
            }
            if math.isfinite(rate) and "learning_rate_factor" in metrics:
                values["actor/lr"] = rate * float(row["learning_rate_factor"])
            library.log(values, step=int(row["step"]))
        library.finish()
    return len(runs)


def config_of(run: pd.Series) -> dict[str, Any]:
    """Return the config columns of a run as plain values, without those that are empty."""
    plain = {str(name): value for name, value in run.items() if name not in OWN}
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in plain.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }
