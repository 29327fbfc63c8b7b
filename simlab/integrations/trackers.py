"""Export the curves of a finished sweep to trackio or Weights & Biases, with verl's metric names."""

import math
from collections.abc import Mapping
from typing import Any

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.core.plugins import import_module
from simlab.metrics import VERL_ALIASES
from simlab.sweeps.result import SweepResult, filled_values
from simlab.sweeps.tables import OWN

VERL_NAMES = {ours: verl for verl, ours in reversed(VERL_ALIASES.items())} | {
    "reward": "critic/score/mean",
    "response_length": "response_length/mean",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "critic_loss": "critic/vf_loss",
    "critic_grad_norm": "critic/grad_norm",
}
"""simlab's name of a metric to the name under which verl 0.9.1 logs the same quantity."""
PREFIX = "simlab/"
"""Start of the names of metrics that verl does not log, such as `simlab/rms_log_rho`."""


TRACKERS = ("trackio", "wandb")


def log_result(result: SweepResult, tracker: str, project: str, **options: Json) -> int:
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
    lookup(dict.fromkeys(TRACKERS), tracker, "tracker")
    try:
        library = import_module(tracker)
    except ImportError as error:
        message = f"{tracker} is missing. Install it with: pip install 'simlab[{tracker}]'"
        raise ImportError(message) from error
    steps = result.steps().sort_values("step")
    metrics = [str(name) for name in steps if name not in ("run", "step")]
    runs: list[dict[str, Any]] = result.stored_runs().to_dict("records")  # pyright: ignore[reportAssignmentType]
    for run in runs:
        name = f"{run['arm']} {run['run'][:8]}"
        config = {field: value for field, value in filled_values(run).items() if field not in OWN}
        library.init(project=project, name=name, group=str(run["arm"]), config=config, **options)
        for row in steps.loc[steps["run"] == run["run"]].to_dict("records"):
            library.log(named_values(row, metrics, run.get("optimizer.learning_rate")), step=int(row["step"]))
        library.finish()
    return len(runs)


def named_values(row: Mapping[str, float], metrics: list[str], rate: float | None) -> dict[str, float]:
    """Return the finite metrics of one step by verl's names, with the learning rate if it is known."""
    values = {
        VERL_NAMES.get(metric, PREFIX + metric): float(row[metric])
        for metric in metrics
        if math.isfinite(row[metric])
    }
    if rate is not None and math.isfinite(rate) and "learning_rate_factor" in metrics:
        values["actor/lr"] = rate * float(row["learning_rate_factor"])
    return values
