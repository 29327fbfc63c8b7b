"""Objectives outside the catalog: ACRL with other distances or a moving X, and a discrepancy penalty."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.arms.acrl import KL, MOVING, PENALTIES, SQUARED
from experiments.arms.chains import NONE
from experiments.arms.settings import on_chains
from experiments.studies.observed_runs import EVERY, SMOKE_EVERY, build_diagnostics, rows_of_step
from experiments.studies.repeated_runs import (
    curves,
    describe_runs,
    join_frames,
    load_policies,
)
from experiments.studies.runs import CHUNK, Frames, block_specs, policy_folder, record_arms
from simlab.core.pytree import Integer, Scalar, pytree
from simlab.objectives import TokenBatch, get_objective
from simlab.objectives.advantages import grpo
from simlab.objectives.batch import clamp, masked_mean
from simlab.objectives.corrections import ACRL_LEVELS, LOG_RHO_LIMIT, sequence_discrepancy, token_log_rho
from simlab.studies.arms import Arm
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps.program import BatchedRun, stack_members
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState

GAMMA, CLIP = 0.35, 5.0
FIRST_STEPS = 5
VALIDATION = ("validation",)
Metrics = Mapping[str, np.ndarray]


def distances(batch: TokenBatch) -> Array:
    """Return the distances of the engines per sequence, [3, B]: absolute, squared, Kullback-Leibler.

    The last from sampled tokens, by the estimator rho - 1 - log rho, which is never negative.
    Reference: acrl Eq. 5, Remark 1.
    """
    train, infer, log_rho = jnp.exp(batch.logp_train), jnp.exp(batch.logp_infer), token_log_rho(batch)
    tokens = jnp.stack([jnp.abs(train - infer), (train - infer) ** 2, jnp.expm1(log_rho) - log_rho])
    return jax.vmap(lambda x: masked_mean(x, batch.mask, axis=1))(tokens)


@pytree
class Distance:
    """ACRL with X and Y in one of the `distances`, per group."""

    which: Integer
    reference: Scalar

    def __call__(self, batch: TokenBatch, advantages: Array) -> Array:
        """Weights [B, T]."""
        d = distances(batch)[self.which]
        current = ACRL_LEVELS["group"](d, batch.mask.any(axis=1), batch.group_size)
        alpha = jnp.sign(advantages) * (GAMMA * (1 - current / self.reference))[:, None]
        exponent = clamp(alpha * token_log_rho(batch), -LOG_RHO_LIMIT, LOG_RHO_LIMIT)
        return jnp.minimum(jnp.exp(exponent), CLIP)


@dataclass(frozen=True)
class PenalizedAdvantage:
    """GRPO advantages of the reward minus `penalty` for the mean discrepancy of the batch.

    Reference: acrl Sec. 3.1, which names no size; a right answer is rewarded 1.
    """

    penalty: float

    def __call__(self, batch: TokenBatch, survivors: Array) -> Array:
        """Advantages [B]."""
        d = sequence_discrepancy(batch)
        relative = d / jnp.maximum(masked_mean(d, batch.mask.any(axis=1)), 1e-9)
        return grpo(replace(batch, rewards=batch.rewards - self.penalty * relative), survivors)


@dataclass(frozen=True)
class AcrlVariant:
    """Either `advantage`, or ACRL with distance number `which`; X moves by `follow` per chunk."""

    which: int = 0
    follow: float = 0.0
    advantage: Callable[..., Array] | None = None


IMPLEMENTATIONS: dict[str, AcrlVariant] = {
    SQUARED.own_objective: AcrlVariant(1),
    KL.own_objective: AcrlVariant(2),
    MOVING.own_objective: AcrlVariant(0, follow=0.2),
    **{arm.own_objective: AcrlVariant(advantage=PenalizedAdvantage(size)) for size, arm in PENALTIES.items()},
}


def run_variants(run: ExperimentContext, arms: Sequence[Arm], block: int | None) -> Frames:
    """Run these variants from the initial policies of the arm without correction, with validation."""
    record_arms(run, arms)
    wanted = block_specs(on_chains(NONE), block, run.smoke)
    recipe, first = load_policies(wanted, policy_folder(run))
    runs, steps, rows = [], [], []
    every, count = SMOKE_EVERY if run.smoke else EVERY, wanted[0].changes["steps"]
    for arm in run.track(arms, "variants"):
        variant = IMPLEMENTATIONS[arm.own_objective]
        changed = _change_recipe(recipe, variant)
        members = [
            BatchedRun(changed, params, spec.changes["seed"])
            for params, spec in zip(first, wanted, strict=True)
        ]
        runs.append(describe_runs(arm, wanted, policy_folder(run)))
        keys = list(runs[-1]["run"])
        trained = stack_members(members, len(members))
        parts, validated = _train_variant(*trained, variant, count, every)
        steps.append(curves(keys, parts, 0))
        rows += [row for step, values in validated.items() for row in rows_of_step(keys, step, values)]
    return join_frames(runs, steps, rows)


def _change_recipe(recipe: Recipe, variant: AcrlVariant) -> Recipe:
    grpo_objective = replace(get_objective("grpo"), source="")
    if variant.advantage is not None:
        return replace(recipe, objective=replace(grpo_objective, advantage=variant.advantage))
    correction = Distance(np.int32(variant.which), 1.0)  # its X is measured before the first step
    return replace(recipe, objective=replace(grpo_objective, correction=correction))


def _train_variant(
    recipe: Recipe, state: TrainState, variant: AcrlVariant, steps: int, every: int
) -> tuple[list[Metrics], dict[int, Metrics]]:
    """Return the metrics of each chunk [runs, CHUNK], and the diagnostics [runs] by the step after which."""
    if variant.advantage is None:
        recipe = _with_reference(recipe, _first_distance(recipe, state))
    diagnose, base = build_diagnostics(VALIDATION, recipes=0), jax.tree.map(jnp.copy, state.params)
    parts, validated = [], {}
    for step in range(CHUNK, steps + 1, CHUNK):
        state, metrics = train(recipe, state, CHUNK, chunk=CHUNK, axes=(0, 0))
        parts.append(metrics)
        if step % every == 0:
            validated[step] = jax.device_get(diagnose(recipe, state, base))
        if variant.follow:
            correction: Any = recipe.objective.correction
            seen, x = metrics["discrepancy"].mean(axis=1), correction.reference
            recipe = _with_reference(recipe, x + jnp.float32(variant.follow) * (seen - x))
    return parts, validated


def _with_reference(recipe: Recipe, reference: Array) -> Recipe:
    correction: Any = recipe.objective.correction
    correction = replace(correction, reference=reference)
    return replace(recipe, objective=replace(recipe.objective, correction=correction))


@jax.jit
def _first_distance(recipe: Recipe, state: TrainState) -> Array:
    """Return X of every run: the mean distance over the first rollouts, all by the initial policy."""

    def of_run(recipe: Recipe, state: TrainState) -> Array:
        correction: Any = recipe.objective.correction

        def at(step: Array) -> Array:
            batch = DiagnosticContext(recipe, replace(state, step=step)).batch
            return jnp.mean(distances(batch)[correction.which])

        return jnp.mean(lax.map(at, jnp.arange(FIRST_STEPS, dtype=jnp.int32)))

    return jax.vmap(of_run)(recipe, state)
