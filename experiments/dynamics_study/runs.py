"""From arms to tables: `runs`, `chunks`, `bins` and `changes`, the same for every experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.campaign import ARMS, WIDTH
from experiments.regime import BASE
from simlab.core.experiment import Run
from simlab.metrics import PROBABILITY_EDGES
from simlab.studies import change_point
from simlab.studies.estimands import Frame, Tables
from simlab.sweeps import Grid, sweep
from simlab.sweeps.grids import Point
from simlab.sweeps.plan import default_width

CHUNK = 10
CHANGING = ("rms_log_rho", "log_ppl_abs_diff", "entropy", "grad_norm", "reward")
VECTORS = {"rms_log_rho_by_pi_train": "rms_log_rho", "mean_rho_by_pi_train": "mean_rho"}
SMOKE_WIDTH = 4
SMOKE = {
    # A mismatch that is cheap to compile: one site.
    "engines": {"name": "f32/f32", "infer": {"residual": "e5m2"}},
    "model": {"name": "tiny-dense", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    "task": "add",
    "warm_start": None,
    "prompts": 4,
    "group_size": 4,
    "steps": 2 * CHUNK,
}

PER_RUN = ("runs", "chunks", "changes", "bins", "watched")
"""The tables whose every row is of a run."""

Frames = dict[str, Frame]
"""`runs`, their `steps` and `vectors`, and further tables, which stay as they are."""


def collect(run: Run, names: Sequence[str], seed: int) -> Frames:
    """Run the arms with this seed from each of their starts; return the runs, their steps and their vectors.

    The store lies beside the results, so that all experiments below one folder share it.
    """
    references = (ARMS[name].x_from for name in names if ARMS[name].x_factor is not None)
    chosen = list(dict.fromkeys([*names, *references]))
    plain = [name for name in chosen if ARMS[name].x_factor is None]
    frames = [swept(run, [place for name in plain for place in places(name, seed, run.smoke)])]
    if len(plain) < len(chosen):
        first = first_discrepancies(frames[0]["runs"], frames[0]["steps"])
        referred = [place for name in chosen if name not in plain for place in places(name, seed, run.smoke)]
        frames.append(swept(run, [with_reference(place, first) for place in referred]))
    described = {name: asdict(ARMS[name]) for name in chosen}
    run.configure(
        base=BASE,
        width=WIDTH,
        chunk=CHUNK,
        arms=run.config.get("arms", {}) | described,
        **{f"arms of seed {seed}": chosen},
    )
    return {name: pd.concat([frame[name] for frame in frames], ignore_index=True) for name in frames[0]}


def tabled(frames: Frames) -> Tables:
    """Return the tables of runs whose every step is in `steps`."""
    steps = frames["steps"]
    made = {"chunks": chunks(steps), "changes": changes(steps), "bins": bins(frames["vectors"])}
    return Tables({name: frame for name, frame in frames.items() if name not in ("steps", "vectors")} | made)


@dataclass(frozen=True)
class Place:
    """One run: its arm, the warm start and the seed that pair it with others, and what it changes."""

    arm: str
    start: str
    seed: int
    changes: Mapping[str, Any]


def places(name: str, seed: int, smoke: bool) -> list[Place]:
    """Return the runs of an arm with this seed; in the smoke mode few, of few steps from fresh parameters."""
    arm = ARMS[name]
    fixed = {**arm.changes, "steps": arm.steps}
    if smoke:
        few = enumerate(list(arm.starts)[:SMOKE_WIDTH])
        return [Place(name, start, seed, {**fixed, **SMOKE, "seed": lane}) for lane, start in few]
    return [
        Place(name, start, seed, {**fixed, "warm_start": how, "seed": seed})
        for start, how in arm.starts.items()
    ]


def with_reference(place: Place, first: Mapping[tuple[str, str], float]) -> Place:
    """Set the reference X of an ACRL run from the first discrepancies, by arm and initial policy."""
    arm = ARMS[place.arm]
    assert arm.x_factor is not None
    reference = float(f"{arm.x_factor * first[arm.x_from, place.start]:.4g}")
    return replace(place, changes={**place.changes, "objective.acrl_reference": reference})


def swept(run: Run, wanted: Sequence[Place]) -> Frames:
    """Return the runs of these places with their steps and vectors, computing what the store lacks."""
    points = Grid(tuple(Point(place.changes, place.arm) for place in wanted))
    # A GPU takes many runs at once for the price of a few.
    width = SMOKE_WIDTH if run.smoke else max(WIDTH, default_width())
    result = sweep(BASE, points, run.out.parent / "campaign", name=run.name, width=width, yes=True)
    for phase, seconds in result.manifest["timings"].items():
        run.timings[f"sweep {phase}"] = run.timings.get(f"sweep {phase}", 0.0) + seconds
    runs = result.runs()[["run", "seed", "status", "steps_made", "steps"]]
    if len(runs) != len(wanted):
        raise ValueError(f"{len(wanted) - len(runs)} runs are in two arms; give them one name")
    runs["arm"] = [place.arm for place in wanted]
    runs["start"] = [place.start for place in wanted]
    return {"runs": runs, "steps": result.steps(), "vectors": result.vectors()}


def first_discrepancies(runs: Frame, steps: Frame) -> dict[tuple[str, str], float]:
    """Mean discrepancy of the first five steps, by arm and start, to three digits."""
    early = steps[steps["step"] < 5].merge(runs[["run", "arm", "start"]], on="run")
    means = early.groupby(["arm", "start"])["discrepancy"].mean()
    return {key: float(f"{value:.3g}") for key, value in means.items()}


def chunks(steps: Frame) -> Frame:
    """Means over chunks of steps of all scalar metrics, with largest, spread and jitter of some."""
    frame = steps.copy()
    frame["step"] = frame["step"] // CHUNK * CHUNK
    by = frame.groupby(["run", "step"], sort=False)
    table = by.mean(numeric_only=True)
    table["max_rho"] = by["max_rho"].max()
    for name in ("discrepancy", "std_rho"):
        table[f"{name}_max"], table[f"{name}_std"] = by[name].max(), by[name].std()
    table["reward_jitter"] = by["reward"].apply(lambda x: np.abs(np.diff(x, n=2)).mean())
    return table.astype(np.float32).reset_index()


def changes(steps: Frame) -> Frame:
    """Where the curves of a run leave their level."""
    rows = []
    for key, curve in steps.groupby("run", sort=False):
        for metric in CHANGING:
            values = np.asarray(curve[metric], float)
            if len(values) > CHUNK and np.isfinite(values).all():
                found = change_point(values)
                rows.append(
                    {"run": key, "metric": metric, "step": found.index}
                    | {"shift": found.shift, "p_value": found.p_value}
                )
    return pd.DataFrame(rows, columns=["run", "metric", "step", "shift", "p_value"])


def bins(vectors: Frame) -> Frame:
    """Tokens, mean rho and RMS log rho by bin of pi_train, over chunks, each token counted once."""
    wide: Any = vectors.pivot_table(
        index=["run", "step", "index"], columns="metric", values="value", sort=False
    )
    tokens = wide["tokens_by_pi_train"].astype(float)
    rows: Any = pd.DataFrame({"tokens": tokens})
    rows["mean_rho"] = (wide["mean_rho_by_pi_train"] * tokens).fillna(0.0)
    rows["rms_log_rho"] = (wide["rms_log_rho_by_pi_train"] ** 2 * tokens).fillna(0.0)
    rows = rows.reset_index()
    rows["step"] = rows["step"] // CHUNK * CHUNK
    rows = rows.groupby(["run", "step", "index"], sort=False, as_index=False).sum()
    counted = rows["tokens"].where(rows["tokens"] > 0)
    rows["mean_rho"] = rows["mean_rho"] / counted
    rows["rms_log_rho"] = np.sqrt(rows["rms_log_rho"] / counted)
    edges = np.asarray(PROBABILITY_EDGES)
    rows["low"], rows["high"] = edges[rows["index"]], edges[rows["index"] + 1]
    kept = ["tokens", "mean_rho", "rms_log_rho", "low", "high"]
    return rows.drop(columns="index").astype(dict.fromkeys(kept, np.float32))
