"""What no preset has: ACRL with other distances, with an X that moves, and a penalty on the discrepancy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from experiments import campaign
from experiments.dynamics_study.runs import CHUNK, Frames, places
from experiments.dynamics_study.studies import curves, policies, run_row, taught
from simlab.core.experiment import Run
from simlab.core.pytree import Scalar, pytree
from simlab.objectives import TokenBatch, named
from simlab.objectives.advantages import grpo
from simlab.objectives.batch import clamp, masked_mean
from simlab.objectives.corrections import ACRL_LEVELS, LOG_RHO_LIMIT, sequence_discrepancy, token_log_rho
from simlab.sweeps.program import Lane, stacked
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState

PENALTY = 1.0
"""What a sequence with the mean discrepancy of its batch loses: as much as a right answer earns."""
GAMMA, CLIP = 0.35, 5.0
FIRST_STEPS = 5
NONE = campaign.long(campaign.NONE)


def distances(batch: TokenBatch) -> Array:
    """Return the distances of the engines per sequence, [3, B]: absolute, squared, Kullback-Leibler.

    The last from sampled tokens, by the estimator rho - 1 - log rho, which is never negative.
    Source: acrl Eq. 5, Remark 1.
    """
    train, infer, log_rho = jnp.exp(batch.logp_train), jnp.exp(batch.logp_infer), token_log_rho(batch)
    tokens = jnp.stack([jnp.abs(train - infer), (train - infer) ** 2, jnp.expm1(log_rho) - log_rho])
    return jax.vmap(lambda x: masked_mean(x, batch.mask, axis=1))(tokens)


@pytree
class Distance:
    """ACRL with X and Y in one of the `distances`, per group."""

    which: Any
    reference: Scalar

    def __call__(self, batch: TokenBatch, advantages: Array) -> Array:
        """Weights [B, T]."""
        d = distances(batch)[self.which]
        current = ACRL_LEVELS["group"](d, batch.mask.any(axis=1), batch.group_size)
        alpha = jnp.sign(advantages) * (GAMMA * (1 - current / self.reference))[:, None]
        exponent = clamp(alpha * token_log_rho(batch), -LOG_RHO_LIMIT, LOG_RHO_LIMIT)
        return jnp.minimum(jnp.exp(exponent), CLIP)


def penalized(batch: TokenBatch, survivors: Array) -> Array:
    """Advantages of GRPO from the reward less the discrepancy in units of the batch's mean."""
    d = sequence_discrepancy(batch)
    share = d / jnp.maximum(masked_mean(d, batch.mask.any(axis=1)), 1e-9)
    return grpo(replace(batch, rewards=batch.rewards - PENALTY * share), survivors)


@dataclass(frozen=True)
class Variant:
    """Either `advantage`, or ACRL by distance number `which`, whose X follows by `follow` per chunk."""

    which: int = 0
    follow: float = 0.0
    advantage: Callable[..., Array] | None = None


SQUARED, KL, MOVING, PENALIZED = "ACRL, squared", "ACRL, KL", "ACRL, moving X", "penalized discrepancy"
VARIANTS: dict[str, Variant] = {
    SQUARED: Variant(1),
    KL: Variant(2),
    MOVING: Variant(0, follow=0.2),
    PENALIZED: Variant(advantage=penalized),
}


def varied(run: Run, names: Sequence[str], seed: int) -> Frames:
    """Run these variants from the starts of the arm without correction; return the runs and their steps."""
    wanted = places(NONE, seed, run.smoke)
    recipe, first = policies(wanted, taught(run))
    runs, steps = [], []
    count = wanted[0].changes["steps"]
    for name in run.track(names, "variants"):
        variant = VARIANTS[name]
        seeds = [place.changes["seed"] for place in wanted]
        lanes = [Lane(_changed(recipe, variant), params, s) for params, s in zip(first, seeds, strict=True)]
        parts = _trained(*stacked(lanes, len(lanes)), variant, count)
        keys = [f"{name} {place.start} {place.changes['seed']}" for place in wanted]
        steps.append(curves(keys, parts, 0))
        runs += [run_row(key, name, place, count) for key, place in zip(keys, wanted, strict=True)]
    return {"runs": pd.DataFrame(runs), "steps": pd.concat(steps, ignore_index=True)}


def _changed(recipe: Recipe, variant: Variant) -> Recipe:
    grpo_objective = replace(named("grpo"), source="")
    if variant.advantage is not None:
        return replace(recipe, objective=replace(grpo_objective, advantage=variant.advantage))
    correction = Distance(np.int32(variant.which), 1.0)  # its X is measured before the first step
    return replace(recipe, objective=replace(grpo_objective, correction=correction))


def _trained(recipe: Recipe, state: TrainState, variant: Variant, steps: int) -> list[dict[str, Any]]:
    if variant.advantage is None:
        recipe = _with_reference(recipe, _first_distance(recipe, state))
    parts = []
    for _ in range(steps // CHUNK):
        state, metrics = train(recipe, state, CHUNK, chunk=CHUNK, axes=(0, 0))
        parts.append(metrics)
        if variant.follow:
            correction: Any = recipe.objective.correction
            seen, x = metrics["discrepancy"].mean(axis=1), correction.reference
            recipe = _with_reference(recipe, x + jnp.float32(variant.follow) * (seen - x))
    return parts


def _with_reference(recipe: Recipe, reference: Array) -> Recipe:
    correction: Any = recipe.objective.correction
    correction = replace(correction, reference=reference)
    return replace(recipe, objective=replace(recipe.objective, correction=correction))


@jax.jit
def _first_distance(recipe: Recipe, state: TrainState) -> Array:
    """X of every lane: the distance over the first rollouts, all by the first policy."""

    def of_lane(recipe: Recipe, state: TrainState) -> Array:
        correction: Any = recipe.objective.correction

        def at(step: Array) -> Array:
            batch = DiagnosticContext(recipe, replace(state, step=step)).batch
            return jnp.mean(distances(batch)[correction.which])

        return jnp.mean(lax.map(at, jnp.arange(FIRST_STEPS, dtype=jnp.int32)))

    return jax.vmap(of_lane)(recipe, state)
