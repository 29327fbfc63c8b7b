"""Run the flagship as a sweep: `examples/flagship.toml`, four arms and two seeds, on all cores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.studies.runs import SMOKE as TRAINING_SMOKE
from simlab.core.json_value import Json
from simlab.core.paths import checkout_root
from simlab.metrics import PROBABILITY_EDGES
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps import Grid, sweep
from simlab.sweeps.file import read_file

CHUNK = 20
START = ["warm_start", "seed"]
METRICS = ["reward", "entropy", "response_length", "grad_norm", "rms_log_rho", "std_rho", "abs_seq_log_ratio"]
SMOKE = {name: value for name, value in TRAINING_SMOKE.items() if name != "engines"} | {"steps": CHUNK}


def run(run: ExperimentContext) -> None:
    described = read_file(checkout_root() / "examples" / "flagship.toml")
    base, points = described.base, described.grid
    if run.smoke:
        base, points = {**base, **SMOKE}, Grid(points.points[::4])
    record(run, base, points, described.runs_per_batch)


def record(
    run: ExperimentContext,
    base: Mapping[str, Json],
    points: Grid,
    runs_per_batch: int | None,
    start: str = "warm_start",
) -> None:
    """Sweep, and write the tables `steps` and `bins`; `start` is the column of the first policies."""
    result = sweep(base, points, run.out / "sweep", name=run.name, runs_per_batch=runs_per_batch, yes=True)
    run.seeds(sorted(set(result.runs()["seed"])))
    run.configure(arms=list(dict.fromkeys(result.runs()["arm"])), sweep=result.manifest["config"])
    run.timings.update({f"sweep {phase}": seconds for phase, seconds in result.manifest["timings"].items()})
    named = {start: "warm_start"}
    steps: Any = result.frame([start, "seed"]).rename(columns=named)
    run.table("steps", steps[["arm", *START, "run", "step", *METRICS]])
    run.table("bins", bins(result.vector_frame([start, "seed"]).rename(columns=named)))


def bins(vectors: pd.DataFrame) -> pd.DataFrame:
    """Mean rho by bin of pi_train, over chunks of steps and with each token counted once."""
    wide: Any = vectors.pivot(index=["arm", *START, "run", "step", "index"], columns="metric", values="value")
    tokens = wide["tokens_by_pi_train"].astype(float)
    rows: Any = pd.DataFrame({"tokens": tokens, "total": (wide["mean_rho_by_pi_train"] * tokens).fillna(0.0)})
    rows = rows.reset_index()
    rows["step"] = rows["step"] // CHUNK * CHUNK
    rows = rows.groupby(
        ["arm", *START, "run", "step", "index"], sort=False, as_index=False, dropna=False
    ).sum()
    edges = np.asarray(PROBABILITY_EDGES)
    rows["low"], rows["high"] = edges[rows["index"]], edges[rows["index"] + 1]
    rows["mean_rho"] = rows["total"] / rows["tokens"].where(rows["tokens"] > 0)
    return rows.drop(columns=["index", "total"])


EXPERIMENT = Experiment(
    name="flagship_sweep",
    question="Does the flagship's picture show in five minutes, with four arms and two seeds?",
    decision_rule=(
        "None: two seeds are too few for a verdict. The experiment `flagship` runs more policies."
    ),
    minutes=5.0,
    claims=(),
    run=run,
)
