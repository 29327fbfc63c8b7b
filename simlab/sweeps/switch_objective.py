"""An objective that can be any one of the catalog: a traced branch index selects each stage.

Presets differ in their functions, so each has its own static signature. Here a stage computes all
alternatives and selects one; they are `[B, T]` arrays. There are two sets of alternatives: `all` has those of
the catalogs, `common` those without a sort, which take a tenth of a step and 3 s of compilation. An
objective's own stages decide which it uses, so the objectives of a sweep share at most two compiled functions
and do not change the bits of a run. Where a sweep has one objective, `plan` takes its stages alone
(`lone_recipe`).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import PyTree

from simlab.core.pytree import Flag, Integer, pytree, static, static_names
from simlab.objectives import ADVANTAGES, AGGREGATIONS, OBJECTIVE_MODIFIERS, OBJECTIVES, Objective, TokenBatch
from simlab.objectives.advantages import group_filter
from simlab.objectives.corrections import KpopWeights
from simlab.objectives.covariance import ClipCov, KlCov
from simlab.objectives.objective import transform_weights
from simlab.objectives.rejection import KpopMask, SecondMomentMask
from simlab.objectives.trust_regions import Kpop, M2po

SWITCHED = ("advantage", "surrogate", "correction", "staleness", "transform", "distortion", "aggregation")
SEVERAL: dict[str, int] = {"rejections": True, "regularizers": 0}
"""Stages of which several may apply, and the value of one that does not."""
AVAILABLE = ("key",)  # optional arrays of a batch that a stage may need here


def kind(stage: object) -> str:
    """Return what shapes the compiled function: class and static fields of a stage, not its numbers."""
    if not is_dataclass(stage):
        return "none" if stage is None else _path(stage)
    parts = []
    for field in fields(stage):
        value = getattr(stage, field.name)
        if field.name in static_names(stage):
            parts.append(_path(value) if hasattr(value, "__qualname__") else repr(value))
        elif is_dataclass(value):
            parts.append(kind(value))
        else:
            parts.append({tuple: "pair", type(None): "none"}.get(type(value), "number"))
    return f"{_path(type(stage))}({', '.join(parts)})"


def _path(code: object) -> str:
    # With the module: an own function may have the name of a built-in one.
    return f"{code.__module__}.{getattr(code, '__qualname__', type(code).__name__)}"


Branches = dict[str, PyTree]


def _branches(field: str) -> Branches:
    """Return the alternatives of a stage in the catalogs, by kind, with the numbers of the first preset."""
    modifiers = [suffix.stage for suffix in OBJECTIVE_MODIFIERS.values() if suffix.field == field]
    if field in SEVERAL:
        return {kind(stage): stage for stage in modifiers}
    if field in ("advantage", "aggregation"):
        stages = list((ADVANTAGES if field == "advantage" else AGGREGATIONS).values())
    else:
        stages = [getattr(objective, field) for objective in OBJECTIVES.values()] + modifiers
    offered = [stage for stage in stages if set(getattr(stage, "needs", ())) <= set(AVAILABLE)]
    return {kind(stage): stage for stage in reversed(offered)}


SORTING = (ClipCov, KlCov, M2po, Kpop, KpopWeights, KpopMask, SecondMomentMask)
_ALL = {field: _branches(field) for field in (*SWITCHED, *SEVERAL)}
_COMMON = {
    field: {name: stage for name, stage in branches.items() if not isinstance(stage, SORTING)}
    for field, branches in _ALL.items()
}
ALTERNATIVES = {"common": _COMMON, "all": _ALL}
"""The stages that a compiled function computes for every objective, by field and kind."""


def list_kinds(alternatives: str) -> str:
    """Return all kinds of stages in `alternatives`; part of the key of every run that uses them."""
    return repr([(field, list(branches)) for field, branches in ALTERNATIVES[alternatives].items()])


@pytree
class SwitchObjective:
    """Behave as the `Objective` that it was made from.

    `indices` selects an alternative per stage. `stages` holds their records, with the numbers of this
    objective in the selected ones. `applies` marks the stages that apply, of those of which several may. All
    but `alternatives`, a name in `ALTERNATIVES`, are data.
    """

    indices: dict[str, Integer]
    stages: dict[str, tuple]
    applies: dict[str, tuple[Flag, ...]]
    all_in_baseline: Flag
    filter_groups: Flag
    alternatives: str = static()

    # What `rollout_terms` and `value_from_terms` read of an objective; the surrogate does the transform.
    baseline = "survivors"
    group_filter = False
    transform = None
    centering = None

    def _switch(self, field: str, apply: Callable[..., Array], *arguments: Array) -> Array:
        branches = [
            lambda *arguments, stage=stage: apply(stage, *arguments)
            for stage in self.stages.get(field) or _ALL[field].values()
        ]
        return lax.switch(jnp.asarray(self.indices[field], jnp.int32), branches, *arguments)

    def advantage(self, batch: TokenBatch, survivors: Array) -> Array:
        """Return advantages [B, T]."""

        def apply(estimator: Callable[..., Array], survivors: Array) -> Array:
            advantages = estimator(batch, survivors)
            column = advantages[:, None] if advantages.ndim == 1 else advantages
            return jnp.broadcast_to(column, batch.mask.shape).astype(jnp.float32)

        return self._switch("advantage", apply, survivors | jnp.asarray(self.all_in_baseline, bool))

    @property
    def selection(self) -> Hashable:
        """Choice of all stages, before it is traced: equal for objectives that differ in numbers alone."""
        indices, applies = tuple(self.indices.items()), tuple(self.applies.items())
        return indices, applies, self.all_in_baseline, self.filter_groups, self.alternatives

    @property
    def rejections(self) -> tuple[Callable[[TokenBatch], Array], ...]:
        """Return the masks; one that does not apply keeps all tokens."""
        return self._several("rejections")

    @property
    def regularizers(self) -> tuple[Callable[[TokenBatch], Array], ...]:
        """Return the regularizers; one that does not apply is zero."""
        return self._several("regularizers")

    def _several(self, field: str) -> tuple[Callable[[TokenBatch], Array], ...]:
        return tuple(
            lambda batch, on=on, stage=stage: jnp.where(jnp.asarray(on, bool), stage(batch), SEVERAL[field])
            for on, stage in zip(self.applies[field], self.stages[field], strict=True)
        )

    def _one_or_ones(self, field: str, dtype: type, batch: TokenBatch, *arguments: Array) -> Array:
        """Return the selected stage [B, T], ones without a stage."""

        def apply(stage: Callable[..., Array] | None, *arguments: Array) -> Array:
            return jnp.ones(batch.mask.shape, dtype) if stage is None else stage(batch, *arguments)

        return self._switch(field, apply, *arguments)

    def staleness(self, batch: TokenBatch, advantages: Array) -> Array:
        """Return which tokens [B, T] stay: not off policy, and in a group that is not filtered."""
        is_used = group_filter(batch)[:, None] | ~jnp.asarray(self.filter_groups, bool)
        return self._one_or_ones("staleness", bool, batch, advantages) & is_used

    def correction(self, batch: TokenBatch, advantages: Array) -> Array:
        """Return IS weights [B, T]."""
        return self._one_or_ones("correction", jnp.float32, batch, advantages)

    def distortion(self, batch: TokenBatch) -> Array:
        """Return injected weights [B, T]."""
        return self._one_or_ones("distortion", jnp.float32, batch)

    @property
    def surrogate(self) -> "SwitchSurrogate":
        """Return the surrogate: PPO ratio, clip and group transform."""
        return SwitchSurrogate(self)

    def aggregation(self, terms: Array, mask: Array) -> Array:
        """Return the aggregate of the terms [B, T]."""
        return self._switch("aggregation", lambda aggregate, terms: aggregate(terms, mask), terms)


@dataclass(frozen=True)
class SwitchSurrogate:
    """The surrogate of a `SwitchObjective`; its weights are already transformed."""

    objective: SwitchObjective

    def __call__(self, batch: TokenBatch, advantages: Array) -> Array:
        """Return u [B, T]."""

        def transform(transform: PyTree, weights: Array) -> Array:
            if transform is None:
                return weights
            # The config was checked: surrogate and transform fit.
            surrogate = SimpleNamespace(one_weight_per_sequence=lambda: True)
            stages: PyTree = SimpleNamespace(surrogate=surrogate, transform=transform)
            return transform_weights(stages, weights, batch, advantages)

        weights = self.objective._switch("surrogate", lambda stage: stage(batch, advantages))
        return self.objective._switch("transform", transform, weights)

    def penalty(self, batch: TokenBatch, advantages: Array) -> Array:
        """Return what to subtract from the advantage times u [B, T]."""

        def apply(stage: PyTree) -> Array:
            penalty = stage.penalty(batch, advantages)
            return jnp.zeros(batch.mask.shape, jnp.float32) if penalty is None else penalty

        return self.objective._switch("surrogate", apply)

    def pool(self, weights: Array, mask: Array) -> Array:
        """Return correction weights [B, T], as they multiply u."""
        return self.objective._switch("surrogate", lambda stage, weights: stage.pool(weights, mask), weights)


def as_switch_objective(objective: Objective) -> SwitchObjective | Objective:
    """Return `objective` as a `SwitchObjective` of the fewest alternatives that contain its stages.

    It is unchanged if a stage is not in the catalogs: user-defined stages, compositions that no preset or
    modifier has, `gae` (reads a critic), and score centering (reads the vocabulary).
    """
    for name in ALTERNATIVES:
        if objective.centering is None and _contains(name, objective):
            return _select(name, objective)
    return replace(objective, source="")


def _contains(name: str, objective: Objective) -> bool:
    offered = ALTERNATIVES[name]
    for field in SEVERAL:
        kinds = [kind(stage) for stage in getattr(objective, field)]
        if len(set(kinds)) < len(kinds) or not set(kinds) <= offered[field].keys():
            return False
    return all(kind(getattr(objective, field)) in offered[field] for field in SWITCHED)


def _select(name: str, objective: Objective) -> SwitchObjective:
    indices, stages, applies = {}, {}, {}
    for field, branches in ALTERNATIVES[name].items():
        stage = getattr(objective, field)
        own = {kind(each): each for each in (stage if field in SEVERAL else [stage])}
        if field in SEVERAL:
            applies[field] = tuple(each in own for each in branches)
        else:
            indices[field] = list(branches).index(kind(stage))
        # Functions are not data: they are read from `ALTERNATIVES`.
        if field not in ("advantage", "aggregation"):
            stages[field] = tuple((branches | own).values())
    return SwitchObjective(
        indices=indices,
        stages=stages,
        applies=applies,
        all_in_baseline=objective.baseline == "all",
        filter_groups=objective.group_filter,
        alternatives=name,
    )
