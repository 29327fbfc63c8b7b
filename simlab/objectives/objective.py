"""An objective is a record of small functions; this file composes them and overrides their numbers.

per token:  (A  x  u(r, A)  -  penalty  -  centering)  x  correction(rho)  x  distortion,   aggregated over
the tokens that are kept, minus the regularizers
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf
from typing import get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Float, PyTree

from simlab.core.catalog import lookup
from simlab.core.pytree import pytree, static, static_names
from simlab.objectives.advantages import ADVANTAGES, Estimator, group_filter
from simlab.objectives.aggregation import AGGREGATIONS, Aggregation, seq_mean_token_mean
from simlab.objectives.batch import (
    Array,
    PerSequence,
    PerToken,
    SequenceMask,
    TokenBatch,
    TokenMask,
    by_group,
)
from simlab.objectives.corrections import ACRL_LEVELS
from simlab.objectives.divergences import ANCHORS
from simlab.objectives.override_ranges import Override, check_range
from simlab.objectives.ratios import Surrogate
from simlab.objectives.rejection import OffPolicySequenceMask
from simlab.objectives.token_baseline import OptimalTokenBaseline
from simlab.objectives.transforms import GroupTransform
from simlab.objectives.vocabulary_terms import ScoreCentering

Weights = Callable[[TokenBatch, PerToken], PerToken]

BASELINES = {"all": "all", "survivors": "survivors"}

# Overrides that choose by name and are static; every other override is a number and may be traced.
CHOICES: dict[str, Mapping[str, object]] = {
    "advantage": ADVANTAGES,
    "aggregation": AGGREGATIONS,
    "baseline": BASELINES,
    "acrl_level": ACRL_LEVELS,
    "anchor": ANCHORS,
}
SWITCHES = ("group_filter",)


@pytree
class Objective:
    """A policy objective, to be maximized. Numbers inside its stages are pytree leaves.

    - `advantage`: estimator, see `advantages.py`; `group_filter` drops groups with equal rewards from the
      loss.
    - `surrogate`: PPO ratio and clip, see `ratios.py`.
    - `correction`: weights for rho, see `corrections.py`.
    - `rejections`: masks by rho, see `rejection.py`. With `baseline` "survivors" a sequence that is wholly
      rejected does not enter its siblings' baseline; with "all" it does, as in verl.
    - `staleness`: mask that depends on theta, applied per update, see `OffPolicySequenceMask`.
    - `transform`: of the group's sequence weights, see `transforms.py`.
    - `distortion`: injected weights, see `distortions.py`.
    - `regularizers`: terms to subtract that do not depend on the advantage, see `regularizers.py`.
    - `centering`: baseline of the score over the vocabulary, see `vocabulary_terms.py`.
    - `source`: where the preset's form and numbers come from.

    Reference: cancel Eq. 1, 14, 15; hacking Eq. 11-15, 33-35.
    """

    advantage: Estimator = static()
    surrogate: Surrogate
    correction: Weights | None = None
    rejections: tuple[Callable[[TokenBatch], TokenMask], ...] = ()
    staleness: OffPolicySequenceMask | None = None
    transform: GroupTransform | None = None
    distortion: Callable[[TokenBatch], PerToken] | None = None
    regularizers: tuple[Callable[[TokenBatch], Float[Array, ""]], ...] = ()
    centering: ScoreCentering | None = None
    aggregation: Aggregation = static(default=seq_mean_token_mean)
    group_filter: bool = static(default=False)
    baseline: str = static(default="survivors")
    source: str = static(default="")


@pytree
class RolloutTerms:
    """Terms that stay constant during the updates on one rollout, without gradient; all [B, T]."""

    advantages: PerToken
    correction: PerToken
    distortion: PerToken
    mask: TokenMask


def rollout_terms(objective: Objective, batch: TokenBatch) -> RolloutTerms:
    """Return everything that does not depend on theta, from a prepared batch: compute it once per rollout.

    Raises:
        ValueError: For a missing column of the batch, or components that do not go together.
    """
    _check_needs(objective, batch)
    mask = batch.mask
    for rejection in objective.rejections:
        mask = mask & rejection(batch)
    survivors = jnp.ones_like(batch.rewards, bool)
    if objective.baseline == "survivors":
        survivors = mask.any(axis=1) | ~batch.mask.any(axis=1)
    advantages = _advantages(objective, batch, survivors)
    if objective.transform is not None and advantages.ndim == 2:
        raise ValueError(
            f"advantage must be one number per sequence for {_type_name(objective.transform)}, got one per "
            f"token from {objective.advantage}. Choose another advantage, such as 'grpo'."
        )
    if advantages.ndim == 1:
        advantages = jnp.broadcast_to(advantages[:, None], mask.shape)
    if objective.group_filter:
        mask = mask & group_filter(batch)[:, None]
    ones = jnp.ones(mask.shape, jnp.float32)
    terms = RolloutTerms(
        advantages=advantages,
        correction=ones if objective.correction is None else objective.correction(batch, advantages),
        distortion=ones if objective.distortion is None else objective.distortion(batch),
        mask=mask,
    )
    return jax.lax.stop_gradient(terms)


def _advantages(objective: Objective, batch: TokenBatch, survivors: SequenceMask) -> PerSequence | PerToken:
    estimator, correction = objective.advantage, objective.correction
    if correction is None or not isinstance(estimator, OptimalTokenBaseline):
        return estimator(batch, survivors)
    # The weights of a correction that reads advantages are those of a token without one.
    return estimator.weigh(batch, survivors, correction(batch, jnp.zeros(batch.mask.shape, jnp.float32)))


def value_from_terms(objective: Objective, batch: TokenBatch, terms: RolloutTerms) -> Float[Array, ""]:
    """Return the objective of a prepared batch, or of complete groups of it: a float32 scalar to maximize.

    Args:
        objective: its record.
        batch: rows as `prepare_batch` returns them.
        terms: `rollout_terms` of the same rows.

    Raises:
        ValueError: For a transform or a centering that the surrogate does not allow.
    """
    return surrogate_value(objective, batch, terms) - regularization(objective, batch, terms)


def surrogate_value(objective: Objective, batch: TokenBatch, terms: RolloutTerms) -> Float[Array, ""]:
    """Return the objective without its regularizers; arguments and errors as `value_from_terms`."""
    remaining = _keep_remaining(objective, batch, terms)
    weights = objective.surrogate(remaining, terms.advantages)
    if objective.transform is not None:
        weights = transform_weights(objective, weights, remaining, terms.advantages)
    correction = objective.surrogate.pool(terms.correction, remaining.mask)
    per_token = terms.advantages * weights
    penalty = objective.surrogate.penalty(remaining, terms.advantages)
    if penalty is not None:
        per_token = per_token - penalty
    if objective.centering is not None:
        per_token = per_token - objective.centering(objective.surrogate, remaining, terms.advantages)
    per_token = per_token * correction * terms.distortion
    return objective.aggregation(jnp.where(remaining.mask, per_token, 0), remaining.mask)


def regularization(objective: Objective, batch: TokenBatch, terms: RolloutTerms) -> Float[Array, ""]:
    """Return the sum of the regularizers, which the objective subtracts: a float32 scalar, 0 without any."""
    remaining = _keep_remaining(objective, batch, terms)
    return sum((regularizer(remaining) for regularizer in objective.regularizers), jnp.float32(0))


def _keep_remaining(objective: Objective, batch: TokenBatch, terms: RolloutTerms) -> TokenBatch:
    """Return the batch with the tokens that rejection and staleness leave."""
    batch = replace(batch, mask=terms.mask)
    if objective.staleness is None:
        return batch
    return replace(batch, mask=terms.mask & objective.staleness(batch, terms.advantages))


def transform_weights(
    objective: Objective, weights: PerToken, batch: TokenBatch, advantages: PerToken
) -> PerToken:
    """Apply the group transform to the one weight that all tokens of a sequence share; [B, T] to [B, T]."""
    assert objective.transform is not None
    if not objective.surrogate.one_weight_per_sequence():
        raise ValueError(
            f"surrogate must have one weight per sequence for {_type_name(objective.transform)}, got "
            f"{_type_name(objective.surrogate)}. Take a preset with a sequence ratio, such as 'gspo'."
        )
    real = batch.mask.any(axis=1)
    highest = jnp.max(jnp.where(batch.mask, weights, -jnp.inf), axis=1)
    per_sequence = jnp.where(real, highest, 1)
    groups = [by_group(x, batch.group_size) for x in (per_sequence, advantages[:, 0], real)]
    transformed = jax.vmap(objective.transform)(*groups).reshape(-1)
    return objective.transform.attach(jnp.broadcast_to(transformed[:, None], weights.shape), batch.logp)


def _check_needs(objective: Objective, batch: TokenBatch) -> None:
    if objective.centering is not None and (objective.correction or objective.transform) is not None:
        raise ValueError("score_centering must not be combined with a correction or a group transform.")
    for name in columns_needed(objective):
        if getattr(batch, name) is None:
            raise ValueError(f"this objective reads TokenBatch.{name}, which is None; fill that column")


def columns_needed(objective: Objective) -> tuple[str, ...]:
    """Return the optional columns of `TokenBatch` that `objective` reads."""
    stages = (objective.advantage, objective.distortion, objective.surrogate, objective.centering)
    return tuple(name for stage in stages for name in getattr(stage, "needs", ()))


def _type_name(component: object) -> str:
    return type(component).__name__


def _find_overrides(node: PyTree, path: tuple = ()) -> Iterator[tuple[str, tuple]]:
    """Yield (name, path) of every number and named choice in a tree of records."""
    for field in fields(node):
        value, here = getattr(node, field.name), (*path, field.name)
        if field.name in static_names(node):
            if field.name in CHOICES or field.name in SWITCHES:
                yield field.name, here
        elif is_dataclass(value):
            yield from _find_overrides(value, here)
        elif path:
            yield field.name, here
        elif isinstance(value, tuple):
            for position, stage in enumerate(value):
                yield from _find_overrides(stage, (*here, position))


def override_names(objective: Objective) -> tuple[str, ...]:
    """Return the names that `objective_value(objective, batch, **overrides)` accepts, sorted."""
    return tuple(sorted(_paths(objective)))


def override_defaults(objective: Objective) -> dict[str, object]:
    """Return each name of `override_names` with its value in `objective`; choices by their names."""
    return {
        name: _show_value(name, _at(objective, paths[0])) for name, paths in sorted(_paths(objective).items())
    }


def _at(node: PyTree, path: Sequence) -> PyTree:
    for step in path:
        node = node[step] if isinstance(node, tuple) else getattr(node, step)
    return node


def _show_value(name: str, value: object) -> object:
    if value == inf:
        return "inf"
    return next((key for key, choice in CHOICES.get(name, {}).items() if choice == value), value)


def _paths(objective: Objective) -> dict[str, list[tuple]]:
    paths: dict[str, list[tuple]] = {}
    for name, path in _find_overrides(objective):
        if name != "baseline" or objective.rejections:
            paths.setdefault(name, []).append(path)
    return paths


def with_overrides(
    objective: Objective, overrides: Mapping[str, Override] | str = "this objective", **more: Override
) -> Objective:
    """Return an objective with numbers or choices replaced; numbers may be traced.

    Args:
        objective: the record to change.
        overrides: a mapping such as `{"clip_high": 0.3}`; or a string, the name of the objective in errors.
        more: the same as keywords.

    Raises:
        ValueError: for a name that the objective does not use, an unknown choice, a number out of its
            range, and a name that two of its stages share.

    Example:
        >>> wide = with_overrides(OBJECTIVES["grpo"], {"clip_high": 0.3})  # doctest: +SKIP
    """
    name = overrides if isinstance(overrides, str) else "this objective"
    changes = more if isinstance(overrides, str) else {**overrides, **more}
    for key, value in changes.items():
        paths = lookup(_paths(objective), key, kind=f"override of {name}:")
        if len(paths) > 1:
            raise ValueError(f"{key!r} is used by {len(paths)} stages of {name}; set it where they are built")
        *above, field = paths[0]
        check_range(key, value, get_type_hints(type(_at(objective, above)), include_extras=True)[field])
        if key in CHOICES and isinstance(value, str):
            choice = lookup(CHOICES[key], value, kind=key)
            value = value if key == "acrl_level" else choice
        objective = _replace_field(objective, paths[0], value)
    return objective


def _replace_field(node: PyTree, path: tuple, value: object) -> PyTree:
    if not path:
        return value
    if isinstance(node, tuple):
        return (*node[: path[0]], _replace_field(node[path[0]], path[1:], value), *node[path[0] + 1 :])
    return replace(node, **{path[0]: _replace_field(getattr(node, path[0]), path[1:], value)})
