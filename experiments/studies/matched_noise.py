"""Run arms with `noise_follows`: the scale of the injected noise follows the mismatch of another run.

After step t, scale_{t+1} = scale_t * (target_t / measured_t)^GAIN, where target is the RMS log rho of the
other run, times `noise_factor`, and measured that of this run. A sweep cannot do this, because it keeps
the scale constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from experiments.regimes import BASE
from experiments.studies.observed_runs import (
    EVERY,
    SMOKE_EVERY,
    DiagnosticRow,
    build_diagnostics,
    rows_of_step,
)
from experiments.studies.repeated_runs import curves, describe_runs, join_frames, load_policies
from experiments.studies.runs import Frames, RunSpec, block_specs, policy_folder, record_arms, run_sweep
from simlab.rollout.noise import KINDS, ON_WEIGHTS
from simlab.studies.arms import Arm
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import run_config
from simlab.sweeps.compilation import BatchProgram, compile_batch
from simlab.sweeps.execute import BATCH_AXES
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.loop import Chunk, HostMetrics, train
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import Metrics

LARGEST_SCALE = 50.0
"""Nats. Noise that hides every logit need not grow further."""
GAIN = 0.3
"""Exponent of the correction. Logit noise changes a confident policy only above a threshold, where the RMS
log rho grows with a high power of the scale: with an exponent of 1 a pilot overshot by a factor of ten."""
EXPECTED_MISMATCH = {kind: 10.0 if kind in ON_WEIGHTS else 1.0 for kind in KINDS}
"""RMS log rho over the scale of the noise, roughly, in a pilot. It sets the first scale alone."""


@dataclass
class FollowingNoise:
    """Controller of the scale of the injected noise; `advance` makes the steps of `train`.

    Args:
        program: the compiled functions of the runs.
        targets: RMS log rho to reach at each step, float [runs, steps], in nats.
        kind: of the noise.
        scales: of the noise at each step so far, float [runs] each.
    """

    program: BatchProgram
    targets: np.ndarray
    kind: str
    scales: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self):
        """Begin with a scale at which the mismatch is about the first target."""
        self._next = self.targets[:, 0] / EXPECTED_MISMATCH[self.kind]

    def advance(self, recipe: Recipe, state: TrainState) -> tuple[TrainState, list[Metrics]]:
        """Make one step, then correct the scale."""
        noise = recipe.sampling.noise
        assert noise is not None
        scale = np.asarray(self._next, np.asarray(noise.scale).dtype)
        sampling = replace(recipe.sampling, noise=replace(noise, scale=jnp.asarray(scale)))
        state, made = self.program.advance(1, replace(recipe, sampling=sampling), state)
        self.scales.append(scale)
        measured, wanted = np.asarray(made[0]["rms_log_rho"]), self.targets[:, len(self.scales) - 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            corrected = scale * (wanted / measured) ** GAIN
        self._next = np.clip(np.where(np.isfinite(corrected), corrected, scale), 0.0, LARGEST_SCALE)
        return state, made


def run_matched(run: ExperimentContext, arms: Sequence[Arm], block: int | None) -> Frames:
    """Run arms with `noise_follows` from a block of initial policies; return runs, steps and diagnostics.

    The steps hold `noise_scale`. The reward on held-out prompts is that of the training engine,
    without noise.
    """
    record_arms(run, arms, gain=GAIN)
    runs, steps, rows = [], [], []
    for arm in arms:
        assert arm.noise_follows is not None
        followed = block_specs(arm.noise_follows, block, run.smoke)
        wanted = [follow(arm, spec) for spec in followed]
        runs.append(describe_runs(arm, wanted, policy_folder(run)))
        keys = list(runs[-1]["run"])
        targets = arm.noise_factor * read_targets(run, followed)
        metrics, diagnosed = follow_noise(run, wanted, keys, targets)
        steps.append(curves(keys, [metrics], 0))
        rows += diagnosed
    return join_frames(runs, steps, rows)


def follow(arm: Arm, spec: RunSpec) -> RunSpec:
    """Return the run of an arm that follows the run `spec`: its policy, seed and steps.

    The noise of each initial policy has a seed of its own, so that no result rests on one draw.
    """
    kept = ("warm_start", "seed", "steps", "model", "task", "prompts_per_step", "group_size")
    shared = {key: value for key, value in spec.changes.items() if key in kept}
    noise = {**arm.changes["sampling.noise"], "seed": list(arm.initial_policies).index(spec.initial_policy)}
    return replace(spec, arm=arm, changes={**arm.changes, "sampling.noise": noise, **shared})


def read_targets(run: ExperimentContext, followed: Sequence[RunSpec]) -> np.ndarray:
    """Return the RMS log rho [runs, steps] of runs that the result cache holds."""
    tables = run_sweep(run, followed)
    wide = tables["steps"].pivot_table(index="run", columns="step", values="rms_log_rho", dropna=False)
    return wide.loc[tables["runs"]["run"]].ffill(axis=1).to_numpy(float)


def follow_noise(
    run: ExperimentContext, wanted: Sequence[RunSpec], keys: Sequence[str], targets: np.ndarray
) -> tuple[HostMetrics, list[DiagnosticRow]]:
    """Train the runs of `wanted` side by side; return their metrics [runs, steps] and diagnostics."""
    _, params = load_policies(wanted, policy_folder(run))
    members = [
        BatchedRun(swept_recipe(run_config(BASE, spec.changes)), first, spec.changes["seed"])
        for spec, first in zip(wanted, params, strict=True)
    ]
    recipe, state = stack_members(members, len(members))
    # A copy: training reuses the memory of the state.
    base = jax.tree.map(np.array, state.params)
    silent = replace(recipe, sampling=replace(recipe.sampling, noise=None))
    diagnose = build_diagnostics(("validation",), recipes=0)
    assert recipe.sampling.noise is not None
    noise = FollowingNoise(compile_batch(recipe, state), targets, recipe.sampling.noise.kind)
    every = SMOKE_EVERY if run.smoke else EVERY
    rows: list[DiagnosticRow] = []

    def record(chunk: Chunk) -> None:
        if chunk.step % every == 0:
            rows.extend(rows_of_step(keys, chunk.step, jax.device_get(diagnose(silent, chunk.state, base))))

    with run.progress(wanted[0].arm.id, targets.shape[1]) as advanced:
        _, metrics = train(
            recipe,
            state,
            targets.shape[1],
            [record, advanced],
            chunk=1,
            axes=BATCH_AXES,
            advance=noise.advance,
        )
    return metrics | {"noise_scale": np.stack(noise.scales, axis=1)}, rows
