"""Parts of a mismatch by the sites of an engine pair: engines between the two, and exact shares."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from simlab.engines import Engine
from simlab.engines.engine import Attention, Linear, Norm, Softmax
from simlab.models.config import TransformerConfig

Value = Callable[[frozenset[str]], np.ndarray]

GROUPS: dict[str, tuple[str, ...]] = {
    "weights": ("projection.weights", "projection.dequantized", "experts"),
    "activations": ("projection.activations", "projection.output"),
    "sums": (
        "projection.accumulator",
        "row_parallel",
        "expert_ranks",
        "router.accumulator",
        "lm_head.accumulator",
        "attention.score_accumulator",
        "attention.value_accumulator",
    ),
    "attention": ("attention",),
    "router": ("router",),
    "head": ("lm_head.", "token_softmax."),
    "stream": ("norm.", "residual", "elementwise"),
    "backward": ("projection.backward", "projection.cotangent"),
}
"""Groups of sites, by how their names begin; a site belongs to the first group that fits."""


def differing(train: Engine, infer: Engine, config: TransformerConfig | None = None) -> list[str]:
    """Return the sites at which two engines differ, by their dotted names, in the order of the record.

    The sites of a router are left out where `config` is that of a dense model.
    """
    dense = config is not None and not config.num_experts
    return [
        name
        for name in _names(train, infer)
        if not _equal(*map(attrgetter(name), (train, infer))) and not (dense and name.startswith("router"))
    ]


def group_sites(sites: Iterable[str]) -> dict[str, list[str]]:
    """Return `sites` by group, in the order of `GROUPS`, without the empty groups."""
    by_group: dict[str, list[str]] = {group: [] for group in GROUPS}
    for site in sites:
        by_group[next(group for group, starts in GROUPS.items() if site.startswith(starts))].append(site)
    return {group: members for group, members in by_group.items() if members}


def between(train: Engine, infer: Engine, sites: Iterable[str]) -> Engine:
    """Return `train` with the named `sites` of `infer`."""
    engine = train
    for name in sites:
        engine = _set(engine, name.split("."), attrgetter(name)(infer))
    return engine


def subsets(names: Sequence[str]) -> list[frozenset[str]]:
    """Return all subsets, the empty one first."""
    return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]


def shapley(value: Value, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the exact Shapley value of each name: its average step over all orders of joining.

    They sum to `value` of all names minus that of none. `value` is called 2^n times and may return any shape.
    Reference: L. S. Shapley, A value for n-person games (1953).
    """
    known = {chosen: np.asarray(value(chosen)) for chosen in subsets(names)}
    shares = {}
    for name in names:
        others = [other for other in names if other != name]
        total = np.zeros_like(known[frozenset()])
        for before in subsets(others):
            weight = math.factorial(len(before)) * math.factorial(len(others) - len(before))
            total = total + weight * (known[before | {name}] - known[before])
        shares[name] = total / math.factorial(len(names))
    return shares


def shapley_rows(
    value: Value, names: Sequence[str], describe: Callable[[np.ndarray, np.ndarray], Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return one row per name: what `describe` returns for its Shapley value, and two fractions.

    Args:
        value: maps a set of names to a number, or to an array of terms that sum to it; zero for no names.
        names: the parts.
        describe: called with the Shapley value of a name and with `value` of all names; returns columns.

    Returns:
        By name: the columns of `describe`, and two fractions of the total: of the name `alone`, and lost
        `without` the name.
    """
    every = frozenset(names)
    total = value(every)

    def fraction(chosen: frozenset[str]) -> float:
        return float(value(chosen).sum() / total.sum())

    return {
        name: {
            **describe(part, total),
            "alone": fraction(frozenset({name})),
            "without": 1 - fraction(every - {name}),
        }
        for name, part in shapley(value, names).items()
    }


def _names(record: Any, other: Any, above: str = "") -> Iterator[str]:
    """Yield the names of sites; a record that one of the two engines lacks is one site.

    So is attention if one of the two engines fuses it: the kernel of the other has no sites inside.
    """
    for field in dataclasses.fields(record):
        value, counterpart = getattr(record, field.name), getattr(other, field.name)
        name = f"{above}{field.name}"
        fuses = isinstance(value, Attention) and value.fused != counterpart.fused
        if isinstance(value, Linear | Softmax | Attention | Norm) and counterpart is not None and not fuses:
            yield from _names(value, counterpart, f"{name}.")
        else:
            yield name


def _set(record: Any, path: Sequence[str], value: Any) -> Any:
    head, *rest = path
    return dataclasses.replace(record, **{head: _set(getattr(record, head), rest, value) if rest else value})


def _equal(a: Any, b: Any) -> bool:
    (first, shape), (second, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    # By bytes: formats hold NaN, and one site is a word.
    return shape == other and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(first, second, strict=True)
    )
