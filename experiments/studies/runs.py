"""Run arms and build the tables `runs`, `chunks`, `bins` and `changes` of an experiment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments.regimes import BASE, RUNS_PER_BATCH
from simlab.core.json_value import Json
from simlab.core.manifest import processor_family
from simlab.core.paths import checkout_root
from simlab.metrics import PROBABILITY_EDGES
from simlab.studies import change_point
from simlab.studies.arms import Arm
from simlab.studies.estimands import Frame, Tables
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import Grid, recipe_of, run_config, sweep
from simlab.sweeps.batch_size import default_runs_per_batch
from simlab.sweeps.grids import Point
from simlab.sweeps.start import load_initial_params, policy_sha256
from simlab.training.recipe import Recipe, TrainState, initial_state

CHUNK = 10
NOISE_SCALES = tuple(0.01 * 1.5**number for number in range(10))
"""Scales of noise at which the mismatch is measured: 0.01 to 0.38."""
CHANGING = ("rms_log_rho", "abs_seq_log_ratio", "entropy", "grad_norm", "reward")
SMOKE_RUNS_PER_BATCH = 4
BLOCK = 8
"""Initial policies of a block."""
SMOKE = {
    # A mismatch that is cheap to compile: one site.
    "engines": {"name": "f32/f32", "infer": {"residual": "e5m2"}},
    "model": {"name": "tiny-dense", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    "task": "add",
    "warm_start": None,
    "prompts_per_step": 4,
    "group_size": 4,
    "steps": 2 * CHUNK,
}

PER_RUN = ("runs", "chunks", "changes", "bins", "diagnostics")
"""The tables with one or more rows per run."""

Frames = dict[str, Frame]
"""`runs`, their `steps` and `vectors`, and further tables, which are stored unchanged."""


def run_arms(run: ExperimentContext, arms: Sequence[Arm], block: int | None) -> Frames:
    """Run the arms from each initial policy of a block, or of all; return runs, steps and vectors.

    The result cache lies next to the results: all experiments below one folder share it.
    """
    frames = run_sweep(run, list_specs(run, arms, block))
    run.configure(base=BASE, runs_per_batch=count_per_batch(run), chunk=CHUNK)
    record_arms(run, arms)
    if block is not None:
        run.configure(**{f"arms of block {block}": [arm.id for arm in arms]})
    return frames


def record_arms(run: ExperimentContext, arms: Sequence[Arm], **facts: Json) -> None:
    """Describe arms in the manifest: `simlab claims --check` rejects a result whose arms were changed."""
    described = {arm.id: arm.recorded | facts for arm in arms}
    run.configure(arms=run.config.get("arms", {}) | described)


def build_tables(frames: Frames) -> Tables:
    """Return the tables of runs whose every step is in `steps`."""
    steps = frames["steps"]
    made = {
        "chunks": with_flips(summarize_chunks(steps), frames["vectors"]),
        "changes": find_changes(steps),
        "bins": pool_bins(frames["vectors"]),
    }
    return Tables({name: frame for name, frame in frames.items() if name not in ("steps", "vectors")} | made)


@dataclass(frozen=True)
class RunSpec:
    """One run: its arm, the initial policy and the seed that pair it with others, and what it changes."""

    arm: Arm
    initial_policy: str
    seed: int
    changes: Mapping[str, Json]


def block_specs(arm: Arm, block: int | None, smoke: bool) -> list[RunSpec]:
    """Return the runs of an arm from one block of initial policies, or all, each with the seeds of the arm.

    In smoke mode return few short runs from new parameters, of one block. An arm may have fewer initial
    policies than others: the list may be empty.
    """
    fixed = {**arm.changes, "steps": arm.steps}
    policies = list(arm.initial_policies.items())
    if smoke:
        few = enumerate(label for label, _ in policies[:SMOKE_RUNS_PER_BATCH])
        return [RunSpec(arm, label, index, {**fixed, **SMOKE, "seed": index}) for index, label in few]
    return [
        RunSpec(arm, label, seed, {**fixed, "warm_start": policy, "seed": seed})
        for label, policy in (policies if block is None else policies[BLOCK * block : BLOCK * (block + 1)])
        for seed in arm.seeds
    ]


def list_specs(run: ExperimentContext, arms: Sequence[Arm], block: int | None) -> list[RunSpec]:
    """Return the runs of the arms from a block of initial policies, or all.

    The reference X of an ACRL run is measured for it, in the first steps of another arm. So is the scale of
    the noise of an arm with `noise_mismatch`, in its own first steps.
    """
    sources = dict.fromkeys(arm.x_from for arm in arms if arm.x_from is not None)
    first = {arm: first_discrepancies(run, arm, block) for arm in sources}
    by_arm = [
        block_specs(arm, block, run.smoke) if arm.noise_mismatch is None else scaled_specs(run, arm, block)
        for arm in arms
    ]
    specs = [spec for each in by_arm for spec in each]
    return [spec if spec.arm.x_from is None else with_reference(spec, first) for spec in specs]


def with_reference(spec: RunSpec, first: Mapping[Arm, Mapping[str, float]]) -> RunSpec:
    """Set the reference X of an ACRL run from the first discrepancies, by arm and initial policy."""
    arm = spec.arm
    assert arm.x_from is not None
    assert arm.x_factor is not None
    reference = float(f"{arm.x_factor * first[arm.x_from][spec.initial_policy]:.4g}")
    return replace(spec, changes={**spec.changes, "objective.acrl_reference": reference})


def count_per_batch(run: ExperimentContext) -> int:
    """Return the number of runs per batch: larger on a GPU, where more runs take hardly more time."""
    return SMOKE_RUNS_PER_BATCH if run.smoke else max(RUNS_PER_BATCH, default_runs_per_batch())


def run_sweep(run: ExperimentContext, wanted: Sequence[RunSpec], base: Mapping[str, Json] = BASE) -> Frames:
    """Return runs, steps and vectors of `wanted`, changes of `base`; compute what the result cache lacks."""
    points = Grid(tuple(Point.of_arm(spec.changes, spec.arm.id) for spec in wanted))
    result = sweep(
        base,
        points,
        run.out.parent / "cache",
        name=run.name,
        runs_per_batch=count_per_batch(run),
        # The few steps of a smoke run are done before another process has started.
        workers=0 if run.smoke else None,
        yes=True,
    )
    for phase, seconds in result.manifest["timings"].items():
        run.timings[f"sweep {phase}"] = run.timings.get(f"sweep {phase}", 0.0) + seconds
    runs: Any = result.runs()[["run", "seed", "status", "steps_completed", "steps"]]
    if len(runs) != len(wanted):
        raise ValueError(f"{len(wanted) - len(runs)} runs are in two arms; give them one name")
    runs["arm"] = [spec.arm.id for spec in wanted]
    runs["initial_policy"] = [spec.initial_policy for spec in wanted]
    runs = with_attributes(runs, (spec.arm for spec in wanted), base)
    runs = with_provenance(runs, wanted, policy_folder(run), result.processor_families(), base)
    return {"runs": runs, "steps": result.steps(), "vectors": result.vectors()}


def start_run(objective: str, warm_start: str, smoke: bool) -> tuple[Recipe, TrainState]:
    """Return the recipe of a run of `BASE` and its state before the first step."""
    changes = {"warm_start": warm_start, "objective": objective} | (SMOKE if smoke else {})
    config = run_config(BASE, changes)
    recipe = recipe_of(config)
    params = load_initial_params(config.warm_start, recipe.task, recipe.model, 0, checkout_root())
    return recipe, initial_state(recipe, params, jax.random.key(0))


def policy_folder(run: ExperimentContext) -> Path:
    """Return the folder of initial policies that the sweeps of an experiment share."""
    return run.out.parent / "cache" / "warm_starts"


def with_provenance(
    runs: Frame,
    wanted: Sequence[RunSpec],
    folder: Path,
    families: Sequence[str] | None = None,
    base: Mapping[str, Json] = BASE,
) -> Frame:
    """Return the table `runs` with `processor_family` and `policy_sha256` of each run.

    Args:
        runs: one row per run.
        wanted: the same runs, in the same order.
        folder: of the policies that were trained from seeds.
        families: of the processors that computed the runs; by default that of this process.
        base: the run that the specifications change.
    """
    hashes = [hash_policy(spec, folder, base) for spec in wanted]
    return runs.assign(processor_family=families or processor_family(), policy_sha256=hashes)


def hash_policy(spec: RunSpec, folder: Path, base: Mapping[str, Json] = BASE) -> str:
    """Return the content hash of the initial policy of a run; empty if it has new parameters."""
    config = run_config(base, spec.changes)
    recipe = recipe_of(config)
    return policy_sha256(config.warm_start, recipe.task, recipe.model, folder)


def with_attributes(runs: Frame, arms: Iterable[Arm], base: Mapping[str, Json] = BASE) -> Frame:
    """Return the table `runs` of `arms`, changes of `base`, with the attributes of each as columns."""
    attributes = {arm.id: arm.attributes(base) for arm in dict.fromkeys(arms)}
    return runs.merge(pd.DataFrame.from_dict(attributes, orient="index"), left_on="arm", right_index=True)


def first_discrepancies(run: ExperimentContext, arm: Arm, block: int | None) -> dict[str, float]:
    """Return the mean discrepancy of the first five steps by initial policy, to three digits.

    The first steps of a run do not depend on its length, so one chunk of the arm is run for them.
    """
    specs = [
        replace(spec, changes={**spec.changes, "steps": CHUNK}) for spec in block_specs(arm, block, run.smoke)
    ]
    tables = run_sweep(run, specs)
    early = tables["steps"][tables["steps"]["step"] < 5].merge(
        tables["runs"][["run", "initial_policy"]], on="run"
    )
    means = early.groupby("initial_policy")["discrepancy"].mean()
    return {str(key): float(f"{value:.3g}") for key, value in means.items()}


def scaled_specs(run: ExperimentContext, arm: Arm, block: int | None) -> list[RunSpec]:
    """Return the runs of an arm with `noise_mismatch`; the manifest records the scales of their noise.

    The RMS log rho of the first chunk is measured at `NOISE_SCALES` and interpolated, both in logarithms.
    The noise of each initial policy has a seed of its own, so that no result rests on one draw.
    """
    assert arm.noise_mismatch is not None
    kind, numbers = arm.changes["sampling.noise"]["kind"], list(arm.initial_policies)

    def with_scale(spec: RunSpec, scale: float, **changes: Json) -> RunSpec:
        noise = {"kind": kind, "scale": scale, "seed": numbers.index(spec.initial_policy)}
        return replace(spec, changes={**spec.changes, "sampling.noise": noise, **changes})

    specs = block_specs(arm, block, run.smoke)
    short = [with_scale(spec, scale, steps=CHUNK) for spec in specs for scale in NOISE_SCALES]
    tables = run_sweep(run, short)
    means = tables["steps"].groupby("run")["rms_log_rho"].mean().loc[tables["runs"]["run"]]
    curves = means.to_numpy(float).reshape(len(specs), len(NOISE_SCALES))
    scales = [scale_at(arm.noise_mismatch, curve) for curve in curves]
    recorded = run.config.get("noise_scales", {})
    by_policy = {spec.initial_policy: scale for spec, scale in zip(specs, scales, strict=True)}
    run.configure(noise_scales=recorded | {arm.id: recorded.get(arm.id, {}) | by_policy})
    return [with_scale(spec, scale) for spec, scale in zip(specs, scales, strict=True)]


def scale_at(mismatch: float, measured: np.ndarray) -> float:
    """Return the scale of the noise at which the RMS log rho is `mismatch`, to three digits.

    `measured` is the RMS log rho at each of `NOISE_SCALES`, float [scales], in nats.

    Raises:
        ValueError: If no scale is that large or that small.
    """
    if not measured[0] <= mismatch <= measured[-1]:
        raise ValueError(
            f"noise_mismatch must be between {measured[0]:.3g} and {measured[-1]:.3g} nats, those of the "
            f"noise scales {NOISE_SCALES[0]:g} and {NOISE_SCALES[-1]:.3g}, got {mismatch:g}."
        )
    # Sampling makes the measured curve uneven where it is flat.
    rising = np.maximum.accumulate(np.log(measured))
    return float(f"{np.exp(np.interp(np.log(mismatch), rising, np.log(NOISE_SCALES))):.3g}")


def summarize_chunks(steps: Frame) -> Frame:
    """Average all scalar metrics over chunks of steps; add maximum, std and jitter of some."""
    frame = steps.copy()
    frame["step"] = frame["step"] // CHUNK * CHUNK
    by = frame.groupby(["run", "step"], sort=False)
    table = by.mean(numeric_only=True)
    table["max_rho"] = by["max_rho"].max()
    for name in ("discrepancy", "std_rho"):
        table[f"{name}_max"], table[f"{name}_std"] = by[name].max(), by[name].std()
    table["reward_jitter"] = by["reward"].apply(lambda x: np.abs(np.diff(x, n=2)).mean())
    return table.astype(np.float32).reset_index()


def with_flips(chunks: Frame, vectors: Frame) -> Frame:
    """Return `chunks` with `router_flips`, averaged over layers and steps, if a run has any: MoE only."""
    flips = vectors[vectors["metric"] == "router_flips"].copy()
    if not len(flips):
        return chunks
    flips["step"] = flips["step"] // CHUNK * CHUNK
    means = flips.groupby(["run", "step"], sort=False)["value"].mean().astype(np.float32)
    return chunks.merge(means.rename("router_flips").reset_index(), how="left")


def find_changes(steps: Frame) -> Frame:
    """Return the change point of each metric in `CHANGING`, by run."""
    rows = []
    for key, curve in steps.groupby("run", sort=False):
        for metric in CHANGING:
            values = np.asarray(curve[metric], float)
            if len(values) > CHUNK and np.isfinite(values).all():
                change = change_point(values)
                rows.append(
                    {"run": key, "metric": metric, "step": change.index}
                    | {"shift": change.shift, "p_value": change.p_value}
                )
    return pd.DataFrame(rows, columns=["run", "metric", "step", "shift", "p_value"])


def pool_bins(vectors: Frame) -> Frame:
    """Pool tokens, mean rho and RMS log rho by bin of pi_train over chunks; each token counts once."""
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
    columns = ["tokens", "mean_rho", "rms_log_rho", "low", "high"]
    return rows.drop(columns="index").astype(dict.fromkeys(columns, np.float32))
