"""An objective that can be any of the catalog's: each stage is picked by a traced index.

Presets differ in their functions, so each has a static signature of its own. Here a stage computes all the
alternatives of the catalogs and selects one; they are `[B, T]` arrays, a hundredth of a step's time. So all
objectives share one program, and which of them a sweep holds changes no bit of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from simlab.core.pytree import Flag, Integer, pytree, static_names
from simlab.objectives import ADVANTAGES, AGGREGATIONS, OBJECTIVES, SUFFIXES, Objective, TokenBatch
from simlab.objectives.advantages import group_filter
from simlab.objectives.objective import transformed_weights

PICKED = ("advantage", "surrogate", "correction", "staleness", "transform", "distortion", "aggregation")
OFFERED = ("key",)  # what a stage may need beyond what every batch has


def kind(stage: Any) -> str:
    """Return what of a stage shapes the program: its class and static fields, without its numbers."""
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


def _path(code: Any) -> str:
    # With the module: a function of another module may have the name of one of ours.
    return f"{code.__module__}.{getattr(code, '__qualname__', type(code).__name__)}"


def _menu(field: str) -> dict[str, Any]:
    """The alternatives of a stage in the catalogs, by kind, each with the numbers of its first preset."""
    if field in ("advantage", "aggregation"):
        found = list((ADVANTAGES if field == "advantage" else AGGREGATIONS).values())
    else:
        found = [getattr(objective, field, None) for objective in OBJECTIVES.values()]
        found = [stage for stage in found if stage != ()]
        found += [suffix.stage for suffix in SUFFIXES.values() if suffix.field == field]
    offered = [stage for stage in found if set(getattr(stage, "needs", ())) <= set(OFFERED)]
    return {kind(stage): stage for stage in reversed(offered)}


MENUS: dict[str, dict[str, Any]] = {field: _menu(field) for field in PICKED}
REJECTIONS: dict[str, Any] = {
    kind(suffix.stage): suffix.stage for suffix in SUFFIXES.values() if suffix.field == "rejections"
}
REGULARIZERS: dict[str, Any] = {
    kind(suffix.stage): suffix.stage for suffix in SUFFIXES.values() if suffix.field == "regularizers"
}
PROGRAM = repr(
    [(field, list(menu)) for field, menu in MENUS.items()] + [list(REJECTIONS), list(REGULARIZERS)]
)
"""What the shared program holds; part of the key of every run that it computes."""


@pytree
class AnyObjective:
    """Reads as an `Objective` whose stages are those of the one it was made from.

    `picks` are indices into `MENUS` by stage, `stages` the menus' records with this objective's numbers in
    the picked ones, `rejects` and `rejection_stages` likewise for masks, of which several may apply, and
    `regularizes` and `regularizer_stages` for regularizers. All of it is data.
    """

    picks: dict[str, Integer]
    stages: dict[str, tuple]
    rejects: tuple[Flag, ...]
    rejection_stages: tuple
    regularizes: tuple[Flag, ...]
    regularizer_stages: tuple
    all_in_baseline: Flag
    filter_groups: Flag

    # What `rollout_terms` and `value_from_terms` read of an objective; the surrogate does the transform.
    baseline = "survivors"
    group_filter = False
    transform = None
    centering = None

    def _pick(self, field: str, apply: Callable[..., Array], *arguments: Any) -> Array:
        branches = [
            lambda *given, stage=stage: apply(stage, *given)
            for stage in self.stages.get(field) or MENUS[field].values()
        ]
        return lax.switch(jnp.asarray(self.picks[field], jnp.int32), branches, *arguments)

    def advantage(self, batch: TokenBatch, survivors: Array) -> Array:
        """Advantages [B, T]."""

        def apply(estimator: Any, survivors: Array) -> Array:
            found = estimator(batch, survivors)
            column = found[:, None] if found.ndim == 1 else found
            return jnp.broadcast_to(column, batch.mask.shape).astype(jnp.float32)

        return self._pick("advantage", apply, survivors | jnp.asarray(self.all_in_baseline, bool))

    @property
    def rejections(self) -> tuple[Callable[[TokenBatch], Array], ...]:
        """The masks, each a full one where it does not apply."""
        return tuple(
            lambda batch, on=on, stage=stage: jnp.where(jnp.asarray(on, bool), stage(batch), True)
            for on, stage in zip(self.rejects, self.rejection_stages, strict=True)
        )

    @property
    def regularizers(self) -> tuple[Callable[[TokenBatch], Array], ...]:
        """The regularizers, each zero where it does not apply."""
        return tuple(
            lambda batch, on=on, stage=stage: jnp.where(jnp.asarray(on, bool), stage(batch), 0)
            for on, stage in zip(self.regularizes, self.regularizer_stages, strict=True)
        )

    def staleness(self, batch: TokenBatch, advantages: Array) -> Array:
        """Tokens [B, T] that stay: not off policy, and in a group that is not filtered."""

        def apply(stage: Any, advantages: Array) -> Array:
            return jnp.ones(batch.mask.shape, bool) if stage is None else stage(batch, advantages)

        kept = group_filter(batch)[:, None] | ~jnp.asarray(self.filter_groups, bool)
        return self._pick("staleness", apply, advantages) & kept

    def correction(self, batch: TokenBatch, advantages: Array) -> Array:
        """Weights for rho [B, T]."""

        def apply(stage: Any, advantages: Array) -> Array:
            return jnp.ones(batch.mask.shape, jnp.float32) if stage is None else stage(batch, advantages)

        return self._pick("correction", apply, advantages)

    def distortion(self, batch: TokenBatch) -> Array:
        """Injected weights [B, T]."""
        return self._pick(
            "distortion", lambda s: jnp.ones(batch.mask.shape, jnp.float32) if s is None else s(batch)
        )

    @property
    def surrogate(self) -> "AnySurrogate":
        """The policy ratio, its clip and the group transform."""
        return AnySurrogate(self)

    def aggregation(self, terms: Array, mask: Array) -> Array:
        """The terms [B, T] as one number."""
        return self._pick("aggregation", lambda aggregate, terms: aggregate(terms, mask), terms)


@dataclass(frozen=True)
class AnySurrogate:
    """The surrogate of an `AnyObjective`; the weights that it returns are transformed already."""

    objective: AnyObjective

    def __call__(self, batch: TokenBatch, advantages: Array) -> Array:
        """u [B, T]."""

        def transformed(transform: Any, weights: Array) -> Array:
            if transform is None:
                return weights
            # The check that surrogate and transform fit was made when the config was read.
            shared = SimpleNamespace(one_weight_per_sequence=lambda: True)
            stages: Any = SimpleNamespace(surrogate=shared, transform=transform)
            return transformed_weights(stages, weights, batch, advantages)

        weights = self.objective._pick("surrogate", lambda stage: stage(batch, advantages))
        return self.objective._pick("transform", transformed, weights)

    def penalty(self, batch: TokenBatch, advantages: Array) -> Array:
        """Return what to subtract from the advantage times u [B, T]."""

        def apply(stage: Any) -> Array:
            penalty = stage.penalty(batch, advantages)
            return jnp.zeros(batch.mask.shape, jnp.float32) if penalty is None else penalty

        return self.objective._pick("surrogate", apply)

    def pool(self, weights: Array, mask: Array) -> Array:
        """Correction weights [B, T] as they multiply u."""
        return self.objective._pick("surrogate", lambda stage, weights: stage.pool(weights, mask), weights)


def shared(objective: Objective) -> AnyObjective | Objective:
    """Return `objective` in the form that all of the catalog share, or itself if a stage is not in it.

    The latter are compositions that no preset or suffix has, `gae`, which reads a critic, and score
    centering, which reads the vocabulary.
    """
    if objective.centering is not None:
        return replace(objective, source="")
    picks, stages = {}, {}
    for field in PICKED:
        menu, stage = MENUS[field], getattr(objective, field)
        if kind(stage) not in menu:
            return replace(objective, source="")
        picks[field] = list(menu).index(kind(stage))
        # Functions are no data: they are read from the menu itself.
        if field not in ("advantage", "aggregation"):
            stages[field] = tuple((menu | {kind(stage): stage}).values())
    rejections = {kind(stage): stage for stage in objective.rejections}
    if len(rejections) < len(objective.rejections) or not rejections.keys() <= REJECTIONS.keys():
        return replace(objective, source="")
    regularizers = {kind(stage): stage for stage in objective.regularizers}
    if len(regularizers) < len(objective.regularizers) or not regularizers.keys() <= REGULARIZERS.keys():
        return replace(objective, source="")
    return AnyObjective(
        picks=picks,
        stages=stages,
        rejects=tuple(name in rejections for name in REJECTIONS),
        rejection_stages=tuple((REJECTIONS | rejections).values()),
        regularizes=tuple(name in regularizers for name in REGULARIZERS),
        regularizer_stages=tuple((REGULARIZERS | regularizers).values()),
        all_in_baseline=objective.baseline == "all",
        filter_groups=objective.group_filter,
    )
